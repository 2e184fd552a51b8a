"""The problem sizes: names, parsing, and the work and memory traffic each one needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from flashcore.errors import UsageError, nearest


@dataclass(frozen=True)
class Shape:
    """Q, K, V and O are [B, H, S, D]; ``S_kv`` and ``H_kv`` are length and heads of K and V where they differ. With a
    ``window`` a query sees its own key, at the same distance from the last one, and so many before it."""

    B: int
    H: int
    S: int
    D: int
    S_kv: int | None = None
    H_kv: int | None = None
    window: int | None = None

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int], window: int | None = None) -> Shape:
        """Of tensors with these sizes, [B, H, S, D] each."""
        B, H, S, D = queries
        return cls(B, H, S, D, None if keys[2] == S else keys[2], None if keys[1] == H else keys[1], window)

    @property
    def keys(self) -> int:
        return self.S if self.S_kv is None else self.S_kv

    @property
    def kv_heads(self) -> int:
        return self.H if self.H_kv is None else self.H_kv

    @property
    def scores(self) -> int:
        """Of all queries and the keys that they see."""
        if self.window is None:
            return self.B * self.H * self.S * self.keys
        places = range(self.keys - self.S + 1, self.keys + 1)
        return self.B * self.H * sum(min(max(place, 0), self.window + 1) for place in places)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and O together in FP16: the traffic that no kernel can avoid."""
        return 2 * 2 * self.B * (self.H * self.S + self.kv_heads * self.keys) * self.D

    @property
    def input_bytes(self) -> int:
        """Bytes of Q, K and V in FP16."""
        return 2 * self.B * (self.H * self.S + 2 * self.kv_heads * self.keys) * self.D

    def as_dict(self) -> dict[str, int]:
        own = {"S_kv": self.S_kv, "H_kv": self.H_kv, "window": self.window}
        shape = {"B": self.B, "H": self.H, "S": self.S, "D": self.D}
        return shape | {name: size for name, size in own.items() if size is not None}

    def __str__(self) -> str:
        keys = f"keys {self.S_kv}" if self.S_kv is not None else ""
        heads = f"heads of keys {self.H_kv}" if self.H_kv is not None else ""
        window = f"window {self.window}" if self.window is not None else ""
        beside = ", ".join(filter(None, (keys, heads, window)))
        return f"{self.B},{self.H},{self.S},{self.D}" + (f" ({beside})" if beside else "")


#: The five shapes of the correctness cases and of the benchmark. ``mission`` is the one to win.
SHAPES: dict[str, Shape] = {
    "mission": Shape(1, 8, 512, 64),
    "s64": Shape(1, 8, 64, 64),
    "s128": Shape(1, 8, 128, 64),
    "s256": Shape(1, 8, 256, 64),
    "batch2": Shape(2, 8, 512, 64),
}


_NUMBERS = re.compile(r"(\d+),(\d+)(?::(\d+))?,(\d+)(?::(\d+))?,(\d+)(?:,w(\d+))?")


def parse(text: str) -> dict[str, Shape]:
    """``all``, a name of :data:`SHAPES`, or ``B,H,S,D``; several are separated by ``;`` -> name -> shape.
    ``H`` and ``S`` may be two numbers, of queries and of keys: ``1,32:8,1:4096,128``. Behind ``D`` may be a window:
    ``2,16,8192,64,w512``.

    Raises:
        UsageError: neither a known name nor positive numbers, or heads of keys that do not divide those of queries.
    """
    chosen: dict[str, Shape] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        if part == "all":
            chosen.update(SHAPES)
            continue
        if part in SHAPES:
            chosen[part] = SHAPES[part]
            continue
        numbers = _NUMBERS.fullmatch(part.replace(" ", ""))
        *sizes, window = numbers.groups() if numbers else "0000000"
        B, H, H_kv, S, S_kv, D = (int(n or 0) for n in sizes)
        if not (B and H and S and D) or (H_kv and H % H_kv):
            raise UsageError(
                f"{part!r} is not a shape",
                hint="use B,H,S,D, or B,H:H_kv,S:S_kv,D,wWINDOW where H_kv divides H, or a name; "
                + nearest(part, ["all", *SHAPES]),
            )
        shape = Shape.of((B, H, S, D), (B, H_kv or H, S_kv or S, D), int(window) if window else None)
        name = next((known for known, s in SHAPES.items() if s == shape), part.replace(" ", ""))
        chosen[name] = shape
    if not chosen:
        raise UsageError("no shape given", hint=nearest("", ["all", *SHAPES]))
    return chosen
