"""Make a schedule that fails as short as it can be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.simulation.schedule import Schedule
from tests.simulation.world import Fault


def shrink(schedule: Schedule, failing: Callable[[Schedule], bool]) -> Schedule:
    """The shortest schedule that still fails: fewer faults, fewer commands, smaller amounts."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(schedule):
            if failing(smaller):
                schedule, changed = smaller, True
                break
    return schedule


def _smaller(schedule: Schedule) -> Iterator[Schedule]:
    faults: Sequence[Fault] = schedule.faults
    for i in range(len(faults)):
        yield replace(schedule, faults=(*faults[:i], *faults[i + 1 :]))
    for i in range(len(schedule.commands) - 1, 0, -1):
        yield replace(schedule, commands=(*schedule.commands[:i], *schedule.commands[i + 1 :]))
    for i, fault in enumerate(faults):
        if fault.amount > 60:
            less = replace(fault, amount=float(round(fault.amount / 2)))
            yield replace(schedule, faults=(*faults[:i], less, *faults[i + 1 :]))
