"""Attributes of an object by their names, for documents whose keys are the same."""

from __future__ import annotations

from typing import Any


def pick(thing: object, names: str) -> dict[str, Any]:
    """The attributes of ``thing`` called ``names``, which are separated by blanks."""
    return {name: getattr(thing, name) for name in names.split()}


def rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)
