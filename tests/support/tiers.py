"""Which tests ``make test`` leaves to ``make test-all``: those marked ``full`` (docs/testing.md)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], keep: Container[Any], name: Callable[[Any], str] | None = None) -> list[Any]:
    """Parameters of a test: those that ``keep`` does not have, by value or by ``name``, are marked ``full``.

    A value is one parameter, or the tuple of several. None is lost: ``make test-all`` runs the others.
    """
    found, kept = [], 0
    for value in values:
        in_both = (value if name is None else name(value)) in keep
        kept += in_both
        parameters = value if isinstance(value, tuple) and name is None else (value,)
        marks = () if in_both else (pytest.mark.full,)
        found.append(pytest.param(*parameters, marks=marks, id=None if name is None else name(value)))
    assert kept, f"{keep} has none of the values"
    return found
