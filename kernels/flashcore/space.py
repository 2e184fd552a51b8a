"""How many legal configurations a variant has, counted without going through them.

Values are chosen parameter by parameter, next the one that a constraint asks for. A constraint that has read only what
is chosen has answered for good: if it says no, nothing below that choice is looked at; once all have said yes, the rest
is a product. Going through them all, as ``Variant.space()`` does, takes seconds where there are hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashcore.variant import Constraint, Parameter


class _Open(Exception):
    """A constraint asks for ``name``, which has no value yet; or for all there is, which is not all yet (None)."""

    def __init__(self, name: str | None) -> None:
        super().__init__(name)
        self.name = name


class _Chosen(Mapping[str, int]):
    """The parameters that have a value, for constraints to look at."""

    def __init__(self, names: Sequence[str]) -> None:
        self.open = dict.fromkeys(names)
        self._values: dict[str, int] = {}

    def __getitem__(self, name: str) -> int:
        if name in self.open:
            raise _Open(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        self._need_all()
        return iter(self._values)

    def __len__(self) -> int:
        self._need_all()
        return len(self._values)

    def _need_all(self) -> None:
        if self.open:
            raise _Open(None)

    def choose(self, name: str, value: int) -> None:
        self.open.pop(name, None)
        self._values[name] = value

    def reopen(self, name: str) -> None:
        self._values.pop(name)
        self.open[name] = None


def count(parameters: Sequence[Parameter], constraints: Sequence[Constraint]) -> int:
    """The combinations of the parameters' values that keep every constraint."""
    values = {p.name: p.values for p in parameters}
    return _count(_Chosen(list(values)), values, constraints)


def _count(chosen: _Chosen, values: Mapping[str, Sequence[int]], asked: Sequence[Constraint]) -> int:
    still, wanted = [], None
    for constraint in asked:
        try:
            if not constraint.holds(chosen):
                return 0
        except _Open as e:
            still.append(constraint)
            wanted = wanted or e.name
    if not still:
        return prod(len(values[name]) for name in chosen.open)
    name = wanted or next(iter(chosen.open))
    total = 0
    for value in values[name]:
        chosen.choose(name, value)
        total += _count(chosen, values, still)
    chosen.reopen(name)
    return total
