"""Planted bugs of money and of what it left: each breaks one thing that the caps, the schedules of firings, the pruning
or the collecting promise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.base.errors import FcctlError, HostError, HostFault
from orchestrator.hosts import prune
from orchestrator.money import record_billable
from orchestrator.money.caps import Budget
from orchestrator.runs import actions, collect
from orchestrator.runs.collect import Collection
from orchestrator.runs.cost import budget_guard, spending
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.machine import hold, release, timer
from orchestrator.runs.services import Services
from orchestrator.schedules import fire
from orchestrator.schedules.due import Firing, Schedule
from tests.simulation.firings import CountedRecords
from tests.simulation.mutants import Mutant


# --------------------------------------------------------------------------------------------------------------- caps
def month_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A start is not held to the month's cap."""
    check = spending.check_caps

    def without_month(services: Services, budget: Budget, *args: Any) -> None:
        check(services, budget.model_copy(update={"per_month_usd": None}), *args)

    patch.setattr(spending, "check_caps", without_month)


def guard_without_day(patch: pytest.MonkeyPatch) -> None:
    """The budget guard does not look at the day's cap."""
    caps_of = budget_guard.books_caps
    patch.setattr(budget_guard, "books_caps", lambda budget: [cap for cap in caps_of(budget) if cap.over != "day"])


def underway_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What runs that are not complete may still cost is left out."""
    patch.setattr(spending, "_underway", lambda _: 0.0)


def underway_halved(patch: pytest.MonkeyPatch) -> None:
    """What runs that are not complete may still cost is counted at half."""
    whole = spending._underway
    patch.setattr(spending, "_underway", lambda services: whole(services) / 2)


def worst_case_halved(patch: pytest.MonkeyPatch) -> None:
    """The worst case that is named before the start is half of what the machine's limit allows."""
    whole = SavedPlan.worst_case_usd.fget  # type: ignore[attr-defined]
    patch.setattr(SavedPlan, "worst_case_usd", property(lambda saved: whole(saved) / 2))


# -------------------------------------------------------------------------------------------------------------- firings
def firing_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a firing did cost is not recorded."""
    ended = fire._ended

    def without_cost(*args: Any) -> Firing:
        return ended(*args).model_copy(update={"usd": None})

    patch.setattr(fire, "_ended", without_cost)


def killed_firing_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A firing whose process was killed counts as one that never started."""
    spent = fire.refusal_by_month

    def without_killed(schedule: Schedule, record: Sequence[Firing], *args: Any) -> str | None:
        gone = {firing.due for firing in record if firing.outcome == "interrupted"}
        return spent(schedule, [firing for firing in record if firing.due not in gone], *args)

    patch.setattr(fire, "refusal_by_month", without_killed)


def launched_before_recorded(patch: pytest.MonkeyPatch) -> None:
    """A tick that is killed leaves nothing of what it decided on the disk."""
    append = CountedRecords.append

    def late(self: CountedRecords, name: str, firings: tuple[Firing, ...]) -> None:
        if any(firing.outcome == "missed" for firing in firings):
            firings = firings[1:]
        append(self, name, firings)

    patch.setattr(CountedRecords, "append", late)


# -------------------------------------------------------------------------------------------------------------- pruning
def only_copy_pruned(patch: pytest.MonkeyPatch) -> None:
    """A snapshot goes although no disk has its content any more."""

    patch.setattr(prune, "_has_content", lambda *_: True)


def young_pruned(patch: pytest.MonkeyPatch) -> None:
    """A snapshot goes while a machine is made of it."""
    patch.setattr(prune, "YOUNG_S", -1.0)


def pruned_and_still_booked(patch: pytest.MonkeyPatch) -> None:
    """What was deleted stays in the ledger."""
    patch.setattr(record_billable.Holdings, "end", lambda *_: None)
    patch.setattr(record_billable.Holdings, "miss", lambda *_: None)


# ------------------------------------------------------------------------------------------ detached, and not collected
def limit_not_set(patch: pytest.MonkeyPatch) -> None:
    """The machine of a run that nobody follows has the longest limit that its target allows."""
    wish = hold.Wish
    patch.setattr(hold, "Wish", lambda **kw: wish(**{**kw, "max_run_s": 7200}))
    patch.setattr(timer, "arm_within", lambda *_: None)


def deleted_uncollected(patch: pytest.MonkeyPatch) -> None:
    """Runs that wait for what is on the machine's disk do not keep it from being deleted."""
    patch.setattr(release.LettingGo, "left_behind", lambda _: [])


def unreadable_is_collected(patch: pytest.MonkeyPatch) -> None:
    """A machine that cannot read its disk is taken for one that has nothing."""

    def collected(*args: Any, **kwargs: Any) -> Collection:
        try:
            return collect.collect(*args, **kwargs)
        except HostFault:
            return Collection(0, 0, [])

    patch.setattr(actions, "collect", collected)


def full_laptop_is_collected(patch: pytest.MonkeyPatch) -> None:
    """A file for which the laptop has no room is taken for one that is here."""

    def collected(*args: Any, **kwargs: Any) -> Collection:
        try:
            return collect.collect(*args, **kwargs)
        except HostError:
            raise
        except FcctlError:
            return Collection(0, 0, [])

    patch.setattr(actions, "collect", collected)


MONEY_MUTANTS = [
    Mutant("the month is not asked", month_not_asked, "the month's cap is $", seed=95),
    Mutant("the guard without the day", guard_without_day, "the day's cap is spent"),
    Mutant("what is underway is forgotten", underway_forgotten, "the ", seed=195),
    Mutant("what is underway is counted at half", underway_halved, "the ", seed=430),
    Mutant("the worst case halved", worst_case_halved, "$"),
    Mutant("a firing costs nothing", firing_costs_nothing, "the firing of "),
    Mutant("a killed firing is forgotten", killed_firing_forgotten, "a firing of $", seed=10),
    Mutant("a time that is not recorded", launched_before_recorded, "the firing of "),
    Mutant("the only copy is pruned", only_copy_pruned, "snapshot ", seed=310),
    Mutant("a snapshot in use is pruned", young_pruned, "snapshot ", seed=145),
    Mutant("pruned, and still in the ledger", pruned_and_still_booked, "the ledger has [", seed=45),
    Mutant("the limit of its target", limit_not_set, "$"),
    Mutant("deleted, and not collected", deleted_uncollected, "2027"),
    Mutant("unreadable, and called collected", unreadable_is_collected, "2027", seed=100),
    Mutant("no room, and called collected", full_laptop_is_collected, "2027", seed=40),
]
