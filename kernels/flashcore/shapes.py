"""The problem sizes: names, parsing, and the work and memory traffic each one needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashcore.errors import UsageError, nearest


@dataclass(frozen=True)
class Shape:
    """Q, K, V and O are [B, H, S, D]; ``S_kv`` is the key length where it differs from the query length."""

    B: int
    H: int
    S: int
    D: int
    S_kv: int | None = None

    @classmethod
    def of(cls, queries: Sequence[int], keys: Sequence[int]) -> Shape:
        """Of tensors with these sizes, [B, H, S, D] each."""
        B, H, S, D = queries
        return cls(B, H, S, D, None if keys[2] == S else keys[2])

    @property
    def keys(self) -> int:
        return self.S if self.S_kv is None else self.S_kv

    @property
    def tensor_bytes(self) -> int:
        """Bytes of Q, K, V and O together in FP16: the traffic that no kernel can avoid."""
        return 2 * 2 * self.B * self.H * (self.S + self.keys) * self.D

    @property
    def input_bytes(self) -> int:
        """Bytes of Q, K and V in FP16."""
        return 2 * self.B * self.H * (self.S + 2 * self.keys) * self.D

    def as_dict(self) -> dict[str, int]:
        shape = {"B": self.B, "H": self.H, "S": self.S, "D": self.D}
        return shape if self.S_kv is None else {**shape, "S_kv": self.S_kv}

    def __str__(self) -> str:
        return f"{self.B},{self.H},{self.S},{self.D}" + (f" (keys {self.S_kv})" if self.S_kv is not None else "")


#: The five shapes of the correctness cases and of the benchmark. ``mission`` is the one to win.
SHAPES: dict[str, Shape] = {
    "mission": Shape(1, 8, 512, 64),
    "s64": Shape(1, 8, 64, 64),
    "s128": Shape(1, 8, 128, 64),
    "s256": Shape(1, 8, 256, 64),
    "batch2": Shape(2, 8, 512, 64),
}


def parse(text: str) -> dict[str, Shape]:
    """``all``, a name of :data:`SHAPES`, or ``B,H,S,D``; several are separated by ``;`` -> name -> shape.

    Raises:
        UsageError: neither a known name nor four positive numbers.
    """
    chosen: dict[str, Shape] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        if part == "all":
            chosen.update(SHAPES)
            continue
        if part in SHAPES:
            chosen[part] = SHAPES[part]
            continue
        numbers = part.split(",")
        if len(numbers) != 4 or not all(n.strip().isdigit() and int(n) > 0 for n in numbers):
            raise UsageError(
                f"{part!r} is not a shape", hint="use B,H,S,D, or a name; " + nearest(part, ["all", *SHAPES])
            )
        shape = Shape(*(int(n) for n in numbers))
        name = next((known for known, s in SHAPES.items() if s == shape), part.replace(" ", ""))
        chosen[name] = shape
    if not chosen:
        raise UsageError("no shape given", hint=nearest("", ["all", *SHAPES]))
    return chosen
