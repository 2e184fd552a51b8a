"""The launches of the summary cases, the same for PyTorch's tensors and NumPy's arrays.

What differs, each side says (:class:`Arrays`). What each case is for: :mod:`flashcore.check`.
"""

from __future__ import annotations

import math
from collections.abc import Container, Generator, Iterator
from dataclasses import replace
from typing import Any, Protocol

from flashcore import cases
from flashcore.cases import GUARD, POISON, Trial
from flashcore.roundings import Expected
from flashcore.shapes import Shape


class Guarded:
    """An output full of poison, inside a larger ``buffer`` full of poison: :meth:`size` 16-bit integers."""

    def __init__(self, buffer: Any, shape: Shape, dtype: Any, heads_last: bool) -> None:
        B, H, S, D = shape.B, shape.H, shape.S, shape.D
        self._buffer = buffer
        buffer[...] = POISON
        inner = buffer[GUARD:-GUARD].view(dtype)
        self.out = inner.reshape(B, S, H, D).swapaxes(1, 2) if heads_last else inner.reshape(B, H, S, D)

    @staticmethod
    def size(shape: Shape) -> int:
        return shape.B * shape.H * shape.S * shape.D + 2 * GUARD

    def intact(self) -> bool:
        """Whether the guard zones are as they were."""
        return bool((self._buffer[:GUARD] == POISON).all() and (self._buffer[-GUARD:] == POISON).all())


class Arrays(Protocol):
    """A kernel of head dimension ``D``, and the arrays that it takes."""

    D: int

    def draw(self, shape: Shape, seed: int, values: str = "plain") -> Any:
        """Q, K and V."""

    def target(self, shape: Shape, heads_last: bool = False) -> Guarded:
        """An output: contiguous, or [B, S, H, D] in memory."""

    def judge(
        self, label: str, shape: Shape, arrays: Any, target: Guarded, known: Expected | None = None, **options: Any
    ) -> Trial:
        """Launch once and compare with float64, or with what is ``known`` of it. ``options`` are causal and scale."""

    def expected(self, arrays: Any) -> Expected:
        """The exact output for Q, K and V, and the errors that a correct kernel may have."""


def plain(side: Arrays, shape: Shape, seed: int, values: str = "plain", **options: Any) -> Trial:
    return side.judge(values, shape, side.draw(shape, seed, values), side.target(shape), **options)


def edges(side: Arrays, seed: int) -> Iterator[Trial]:
    return (plain(side, shape, seed) for shape in cases.edges(side.D))


def causal(side: Arrays, seed: int) -> Iterator[Trial]:
    return (plain(side, shape, seed, values, causal=True) for shape, values in cases.causal(side.D))


def values(side: Arrays, seed: int, without: Container[str] = ()) -> Iterator[Trial]:
    shape = Shape(1, 4, 320, side.D)
    for kind in cases.HOSTILE:
        if kind not in without:
            yield plain(side, shape, seed, kind)
    for scale in cases.SCALES:
        yield plain(side, shape, seed, scale=scale)


def layout(side: Arrays, seed: int) -> Iterator[Trial]:
    shape = Shape(2, 4, 130, side.D)
    B, H, S, D = shape.B, shape.H, shape.S, shape.D
    heads_last = [side.target(shape, heads_last=True).out for _ in range(3)]
    for to, array in zip(heads_last, side.draw(shape, seed)):  # noqa: B905 (Python 3.9)
        to[...] = array
    (packed, _, _) = side.draw(Shape(B, 3 * H, S, D), seed + 1)  # [B, H, 3, S, D]: q, k, v in one
    longer = [array[:, :, 5 : 5 + S] for array in side.draw(Shape(B, H, S + 9, D), seed + 2)]
    for label, (q, k, v), last in (
        ("[B,S,H,D]", heads_last, True), ("packed q, k, v", [packed[:, n::3] for n in range(3)], False),
        ("sliced", longer, True),
    ):  # fmt: skip
        yield side.judge(label, shape, (q, k, v), side.target(shape, last))


def repeat(side: Arrays, seed: int) -> Generator[Trial, None, bool]:
    """Returns whether the first launch was right; if not there are no others."""
    shape = Shape(1, 8, 192, side.D)
    arrays, first, second = side.draw(shape, seed), side.target(shape), side.target(shape)
    trial = side.judge("first run", shape, arrays, first)
    yield trial
    if trial.fault is not None:
        return False
    known = side.expected(arrays)
    for number in range(2, cases.REPEATS + 1):
        again = side.judge(f"run {number}", shape, arrays, second, known)
        if again.fault is None and not bool((first.out == second.out).all()):
            again = replace(again, fault="different bits for the same inputs")
        yield again
        second.out[...] = math.nan
    for old, new in zip(arrays, side.draw(shape, seed + 1)):  # noqa: B905 (Python 3.9)
        old[...] = new
    yield side.judge("same memory, new inputs", shape, arrays, second)
    return True
