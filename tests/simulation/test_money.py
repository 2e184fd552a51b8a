"""Planted bugs of money that must be found; and what is known to break a cap today, each with the schedule that shows
it."""

from __future__ import annotations

import pytest

from tests.simulation.judge import first_line, outcome
from tests.simulation.money_mutants import MONEY_MUTANTS
from tests.simulation.mutants import Mutant, found_by
from tests.simulation.schedule import FiringPlan, Schedule
from tests.simulation.world import Fault


@pytest.mark.parametrize("mutant", MONEY_MUTANTS, ids=lambda m: m.name)
def test_a_planted_bug_of_money_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found = found_by(mutant)
    assert found is not None, f"600 schedules did not find: {mutant.name}"
    assert found.startswith(mutant.says)


class KnownDefect(AssertionError):
    """The schedule breaks what it is known to break, and nothing else."""


RACED = "the caps are checked, and the money is set aside later: controllers that start at one moment all see it left"
NOT_ASKED = "what is started by this command is not held to the caps of day, month and project"
#: With how the violation begins.
KNOWN: list[tuple[Schedule, str, str]] = [
    (Schedule(0, (), ("rush", "ps"), day_cap=0.5, free_disks=True), "the day's cap is $0.5, and", RACED),
    (Schedule(0, (), ("rush", "ps"), month_cap=0.5, free_disks=True), "the month's cap is $0.5, and", RACED),
    (
        Schedule(0, (), ("rush", "ps"), project_cap=0.5, free_disks=True), "the project's cap is $0.5, and", RACED
    ),
    (Schedule(0, (), ("run", "up"), day_cap=0.45, free_disks=True), "the day's cap is $0.45, $", NOT_ASKED),
    (
        Schedule(0, (), ("detach", "wake"), month_cap=0.45, free_disks=True), "the month's cap is $0.45, $", NOT_ASKED
    ),
    (
        Schedule(0, (Fault(100, "preempt"),), ("run", "go on"), project_cap=0.45, free_disks=True),
        "the project's cap is $0.45, $",
        NOT_ASKED,
    ),
    (
        Schedule(
            5710, (Fault(47, "cloud_down", 680),), ("tick", "serve"), release="delete",
            firings=FiringPlan(30, 0.57, 0.67, strictly=True),
        ),
        "a firing of $0.57 starts",
        "a firing whose machine could not be stopped counts until then only, and not until the machine is off",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        pytest.param(schedule, says, marks=pytest.mark.xfail(strict=True, raises=KnownDefect, reason=why))
        for schedule, says, why in KNOWN
    ],
    ids=str,
)
def test_a_cap_holds(schedule: Schedule, says: str) -> None:
    found = first_line(schedule)
    if found is not None and found.startswith(says):
        raise KnownDefect(found)
    assert found is None


def test_controllers_that_start_at_one_moment_and_fit_the_caps_all_run() -> None:
    assert outcome(Schedule(0, (), ("rush", "ps"), day_cap=3.5, free_disks=True)) is None


def test_a_firing_that_ended_in_an_error_counts_in_its_schedules_month() -> None:
    firings = FiringPlan(30, 0.45, 0.5, strictly=True)
    commands = ("tick", "serve", "serve", "tick")
    assert outcome(Schedule(0, (Fault(80, "kill"),), commands, firings=firings)) is None
