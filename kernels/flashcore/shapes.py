"""The problem sizes: names, parsing, and the work and memory traffic each one needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flashcore.errors import UsageError, nearest

#: Masks of a shape: padding behind the keys of each batch, or before them; of each row, 30 % of the keys.
MASKS = ("right", "left", "rows")


@dataclass(frozen=True)
class Shape:
    """Q, K, V and O are [B, H, S, D]; ``S_kv`` and ``H_kv`` are length and heads of K and V where they differ.

    At most one of: a ``window``, so that a query sees its own key, at the same distance from the last one, and so many
    before it; a ``mask``, one of :data:`MASKS`; so many ``sequences`` of different lengths, one behind the other in S.
    :func:`flashcore.inputs.seen` has what they hide.
    """

    B: int
    H: int
    S: int
    D: int
    S_kv: int | None = None
    H_kv: int | None = None
    window: int | None = None
    mask: str | None = None
    sequences: int | None = None

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int]) -> Shape:
        """Of tensors with these sizes, [B, H, S, D] each."""
        B, H, S, D = queries
        return cls(B, H, S, D, None if keys[2] == S else keys[2], None if keys[1] == H else keys[1])

    @property
    def keys(self) -> int:
        return self.S if self.S_kv is None else self.S_kv

    @property
    def kv_heads(self) -> int:
        return self.H if self.H_kv is None else self.H_kv

    @property
    def lengths(self) -> list[int]:
        """Keys of each batch that are no padding: from a half of all to all, evenly."""
        return [self.keys * (2 * self.B + 2 * b + 1) // (4 * self.B) for b in range(self.B)]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The first row of each packed sequence and the row behind its last. Lengths grow evenly, from half of the
        mean length to 1.5 times it."""
        count = self.sequences or 1
        starts = [self.S * (n * count + n * n) // (2 * count * count) for n in range(count + 1)]
        return [(starts[n], starts[n + 1]) for n in range(count)]

    @property
    def scores(self) -> int:
        """Of all queries and the keys that they see."""
        if self.sequences:
            return self.H * sum((end - start) ** 2 for start, end in self.spans)
        if self.window is not None:
            places = range(self.keys - self.S + 1, self.keys + 1)
            return self.B * self.H * sum(min(max(place, 0), self.window + 1) for place in places)
        if self.mask == "rows":
            each = [sum((row + key) % 10 < 7 for key in range(self.keys)) for row in range(10)]
            return self.B * self.H * sum(each[row % 10] for row in range(self.S))
        return self.H * self.S * (sum(self.lengths) if self.mask else self.B * self.keys)

    @property
    def keys_read(self) -> int:
        """Keys of all batches that some query sees, of a head."""
        if self.mask in ("left", "right"):
            return sum(self.lengths)
        return self.B * (self.keys if self.window is None else min(self.keys, self.S + self.window))

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and O together in FP16."""
        return 2 * 2 * self.B * (self.H * self.S + self.kv_heads * self.keys) * self.D

    @property
    def input_bytes(self) -> int:
        """Bytes that must be read of Q, K and V in FP16."""
        return 2 * (self.B * self.H * self.S + 2 * self.kv_heads * self.keys_read) * self.D

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        keys = f"keys {self.S_kv}" if self.S_kv is not None else ""
        heads = f"heads of keys {self.H_kv}" if self.H_kv is not None else ""
        window = f"window {self.window}" if self.window is not None else ""
        mask = f"mask {self.mask}" if self.mask else ""
        packed = f"{self.sequences} sequences" if self.sequences else ""
        beside = ", ".join(filter(None, (keys, heads, window, mask, packed)))
        return f"{self.B},{self.H},{self.S},{self.D}" + (f" ({beside})" if beside else "")


#: The five shapes of the correctness cases and of the benchmark. ``mission`` is the one to win.
SHAPES: dict[str, Shape] = {
    "mission": Shape(1, 8, 512, 64),
    "s64": Shape(1, 8, 64, 64),
    "s128": Shape(1, 8, 128, 64),
    "s256": Shape(1, 8, 256, 64),
    "batch2": Shape(2, 8, 512, 64),
}


_NUMBERS = re.compile(r"(\d+),(\d+)(?::(\d+))?,(\d+)(?::(\d+))?,(\d+)(?:,w(\d+)|,n(\d+)|,(right|left|rows))?")


def parse(text: str) -> dict[str, Shape]:
    """``all``, a name of :data:`SHAPES`, or ``B,H,S,D``; several are separated by ``;`` -> name -> shape.
    ``H`` and ``S`` may be two numbers, of queries and of keys: ``1,32:8,1:4096,128``. Behind ``D`` may be a window,
    ``2,16,8192,64,w512``, a mask, ``4,16,2048,64,left``, or a number of sequences, ``1,16,20480,64,n16``.

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
        *sizes, window, packed, mask = numbers.groups() if numbers else (None,) * 9
        B, H, H_kv, S, S_kv, D = (int(n or 0) for n in sizes)
        whole = packed is None or (B == 1 and not S_kv and 0 < int(packed) <= S)
        if not (B and H and S and D and whole) or (H_kv and H % H_kv):
            raise UsageError(
                f"{part!r} is not a shape",
                hint="use B,H,S,D, or B,H:H_kv,S:S_kv,D where H_kv divides H; then ,wWINDOW or a mask, "
                f"{', '.join(MASKS)}, or with B = 1 ,nSEQUENCES; or a name; " + nearest(part, ["all", *SHAPES]),
            )
        plain = Shape.of((B, H, S, D), (B, H_kv or H, S_kv or S, D))
        wanted = {name: int(n) for name, n in (("window", window), ("sequences", packed)) if n}
        shape = replace(plain, mask=mask, **wanted)
        name = next((known for known, s in SHAPES.items() if s == shape), part.replace(" ", ""))
        chosen[name] = shape
    if not chosen:
        raise UsageError("no shape given", hint=nearest("", ["all", *SHAPES]))
    return chosen
