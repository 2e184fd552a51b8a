"""Limit the numbers and times in a host's messages to a range that can be shown, added up and stored."""

from __future__ import annotations

from typing import Any, TypeVar

from fcctl_remote import wire
from orchestrator.base.clock import bounded

T = TypeVar("T")

#: Fields of the wire's messages that are times, epoch seconds. Other floats are durations, seconds.
TIMES = frozenset(
    {"created", "started", "finished", "step_started", "heartbeat", "time", "deadline", "not_after"}
)  # fmt: skip
MOST_SECONDS = 1e10
#: The largest whole number that SQLite holds.
MOST = 2**63 - 1


def in_range(value: T) -> T:
    """``value``, a message or a list of them, changed in place: every number is in range and not NaN."""
    if isinstance(value, list):
        for one in value:
            in_range(one)
    elif isinstance(value, wire.Record):
        for name, item in vars(value).items():
            if isinstance(item, (list, wire.Record)):
                in_range(item)
            else:
                setattr(value, name, _number(type(value), name, item))
    return value


def _number(shape: type[wire.Record], name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    if name in TIMES:
        return bounded(float(value))
    if isinstance(value, int):
        return max(-MOST, min(value, MOST))
    if shape is wire.GateResult:
        return value  # of a step's document
    return max(0.0, min(value, MOST_SECONDS)) if value == value else 0.0  # noqa: PLR0124 - NaN alone differs from itself
