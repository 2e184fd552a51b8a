"""Planted bugs of money and of what it left: each breaks one thing that the caps, the schedules of firings, the pruning
or the collecting promise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import FcctlError, HostError, HostFault
from orchestrator.hosts import hosts, prune
from orchestrator.money import firings, reservations, usage_recorder
from orchestrator.money.book import SpendingBook, State
from orchestrator.money.reservations import Reservation, Scope
from orchestrator.results.store.active import FileActiveRun
from orchestrator.runs import actions, resume_run, transfer
from orchestrator.runs.cost import owners, spending
from orchestrator.runs.cost.spending import CapBalance
from orchestrator.runs.job import prepare
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.machine import release, run_lease
from orchestrator.runs.services import Services
from orchestrator.runs.transfer import Collection
from orchestrator.schedules import fire
from orchestrator.schedules.due import Firing
from orchestrator.sessions import session
from tests.simulation.firings import CountedRecords
from tests.simulation.mutants import Mutant, planted
from tests.simulation.schedule import FiringPlan, Schedule
from tests.simulation.world import Fault

TIGHT = Schedule(0, (), ("rush", "ps"), day_cap=0.5, free_disks=True)
#: Nobody ends their runs in time.
KILLED = replace(TIGHT, faults=tuple(Fault(at, "kill") for at in range(290, 296)))
ROOM_FOR_HALF = replace(TIGHT, faults=tuple(Fault(at, "kill") for at in range(130, 140)), day_cap=0.7)
UP = replace(TIGHT, commands=("run", "up"), day_cap=0.45)
WAKE = replace(TIGHT, commands=("detach", "wake"), day_cap=0.45)
RESUME = replace(TIGHT, faults=(Fault(100, "preempt"),), commands=("run", "go on"), day_cap=0.45)
#: Machines that are kept on after their run, and others that start while they are.
KEPT = Schedule(1, (), ("rush", "run", "rush"), release="keep", project_cap=0.95, free_disks=True)
LEFT_ON = Schedule(
    5710, (Fault(47, "cloud_down", 680),), ("tick", "serve"), release="delete",
    firings=FiringPlan(30, 0.57, 0.67, strictly=True),
)  # fmt: skip

MONEY_MUTANTS: list[Mutant] = []


# --------------------------------------------------------------------------------------------------------------- caps
@planted(MONEY_MUTANTS, "the month's cap is $", seed=5)
def month_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A start is not held to the month's cap."""
    refuse = CapBalance.refuse

    def without_month(balance: CapBalance, worst_usd: float) -> None:
        refuse(replace(balance, budget=balance.budget.model_copy(update={"per_month_usd": None})), worst_usd)

    patch.setattr(CapBalance, "refuse", without_month)


@planted(MONEY_MUTANTS, "the day's cap is spent", seed=14)
def guard_without_day(patch: pytest.MonkeyPatch) -> None:
    """The budget guard does not look at the day's cap."""
    caps_of = prepare.books_caps
    patch.setattr(prepare, "books_caps", lambda budget: [cap for cap in caps_of(budget) if cap.over != "day"])


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=KILLED)
def reservations_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What was reserved is taken as free."""
    patch.setattr(spending, "remaining", lambda *_: [])


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=ROOM_FOR_HALF)
def reservations_halved(patch: pytest.MonkeyPatch) -> None:
    """What was reserved is counted at half."""
    whole = spending.remaining
    patch.setattr(spending, "remaining", lambda *args: [replace(one, usd=one.usd / 2) for one in whole(*args)])


@planted(MONEY_MUTANTS, "$")
def worst_case_halved(patch: pytest.MonkeyPatch) -> None:
    """The worst case that is named before the start is half of what the machine's limit allows."""
    whole = SavedPlan.worst_case_usd.fget  # type: ignore[attr-defined]
    patch.setattr(SavedPlan, "worst_case_usd", property(lambda saved: whole(saved) / 2))


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=KILLED)
def asked_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The check is done by the time the book is locked for the reservation; it takes a moment."""
    reserve = spending.reserve

    def in_two_steps(services: Services, wanted: Reservation, *, replaces: Iterable[str] = ()) -> None:
        if services.budget.holds_over_runs:
            spending.account_of(services, without={wanted.reservation_id, *replaces}).refuse(wanted.usd)
        services.clock.sleep(0.1)
        unasked(reserve)(services, wanted, replaces=replaces)

    patch.setattr(spending, "reserve", in_two_steps)


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=UP)
def up_not_asked(patch: pytest.MonkeyPatch) -> None:
    """``hosts up`` asks no cap."""
    patch.setattr(hosts, "reserve", unasked(hosts.reserve))


@planted(MONEY_MUTANTS, "the ", seed=43)
def session_not_asked(patch: pytest.MonkeyPatch) -> None:
    """``session start`` asks no cap."""
    patch.setattr(session, "reserve", unasked(session.reserve))
    patch.setattr(spending, "check_caps", lambda *_: None)


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=WAKE)
def wake_not_asked(patch: pytest.MonkeyPatch) -> None:
    """``pull-results --wake`` asks no cap."""
    patch.setattr(spending, "set_aside_wake", unasked(spending.set_aside_wake))


@planted(MONEY_MUTANTS, "the day's cap is $", schedule=RESUME)
def resume_not_asked(patch: pytest.MonkeyPatch) -> None:
    """``run --resume`` asks no cap."""
    for name in ("set_aside", "set_aside_wake"):
        patch.setattr(resume_run, name, unasked(getattr(resume_run, name)))


def unasked(reserve: Callable[..., Any]) -> Callable[..., Any]:
    """The same, without the check."""
    no_caps = {"per_day_usd": None, "per_month_usd": None, "project_usd": None}

    def act(services: Services, *args: Any, **kwargs: Any) -> Any:
        return reserve(replace(services, budget=services.budget.model_copy(update=no_caps)), *args, **kwargs)

    return act


@planted(MONEY_MUTANTS, "the project's cap is $", schedule=KEPT)
def nothing_kept(patch: pytest.MonkeyPatch) -> None:
    """Nothing is reserved for a machine that a run leaves on."""
    patch.setattr(owners, "kept_on", lambda *_: None)


@planted(MONEY_MUTANTS, "the project's cap is $", schedule=KEPT)
def kept_for_too_short(patch: pytest.MonkeyPatch) -> None:
    """A machine that was left on is taken to be off before its limit."""
    patch.setattr(reservations, "SURELY_OFF_S", -1800.0)


@planted(
    MONEY_MUTANTS,
    "the project's cap is $",
    schedule=Schedule(2, (Fault(120, "beside"),), ("run", "run", "ps"), project_cap=0.5, free_disks=True),
)
def machines_of_others_not_counted(patch: pytest.MonkeyPatch) -> None:
    """What another workspace of the user does with a machine is none of this one's money."""
    patch.setattr(Scope, "has", lambda scope, project, results, _: project == scope.project)


# -------------------------------------------------------------------------------------------------------------- firings
@planted(MONEY_MUTANTS, "the firing of ")
def firing_costs_nothing(patch: pytest.MonkeyPatch) -> None:
    """What a firing did cost is not recorded."""
    ended = fire._ended

    def without_cost(*args: Any) -> Firing:
        return ended(*args).model_copy(update={"usd": None})

    patch.setattr(fire, "_ended", without_cost)


@planted(MONEY_MUTANTS, "a firing of $", seed=19)
def killed_firing_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A firing that was killed, or that ended in an error, counts as one that never started."""
    end, known = firings.end, State.firings
    forgotten: set[str] = set()

    def ended(book: SpendingBook, schedule: str, due: float, usd: float | None) -> None:
        if usd is None:
            forgotten.add(firings.firing_id(book.scope, schedule, due))
        end(book, schedule, due, usd)

    patch.setattr(firings, "end", ended)
    patch.setattr(
        State, "firings", lambda state: {name: one for name, one in known(state).items() if name not in forgotten}
    )


@planted(MONEY_MUTANTS, "a firing of $", schedule=LEFT_ON)
def left_on_by_a_firing(patch: pytest.MonkeyPatch) -> None:
    """What a machine costs that a firing could not stop is nobody's once it is off."""
    patch.setattr(owners, "count_left_on", lambda *_: None)


@planted(MONEY_MUTANTS, "the firing of ")
def launched_before_recorded(patch: pytest.MonkeyPatch) -> None:
    """A tick that is killed leaves nothing of what it decided on the disk."""
    append = CountedRecords.append

    def late(self: CountedRecords, name: str, firings: tuple[Firing, ...]) -> None:
        if any(firing.outcome == "missed" for firing in firings):
            firings = firings[1:]
        append(self, name, firings)

    patch.setattr(CountedRecords, "append", late)


# -------------------------------------------------------------------------------------------------------------- pruning
@planted(MONEY_MUTANTS, "snapshot ", seed=370)
def only_copy_pruned(patch: pytest.MonkeyPatch) -> None:
    """A snapshot goes although no disk has its content any more."""

    patch.setattr(prune, "_has_content", lambda *_: True)


@planted(MONEY_MUTANTS, "snapshot ", seed=145)
def young_pruned(patch: pytest.MonkeyPatch) -> None:
    """A snapshot goes while a machine is made of it."""
    patch.setattr(prune, "YOUNG_S", -1.0)


@planted(MONEY_MUTANTS, "the ledger has [", seed=45)
def pruned_and_still_booked(patch: pytest.MonkeyPatch) -> None:
    """What was deleted stays in the ledger."""
    patch.setattr(usage_recorder.ResourceRecorder, "record_deleted", lambda *_: None)
    patch.setattr(usage_recorder.ResourceRecorder, "record_missing", lambda *_: None)


# ------------------------------------------------------------------------------------------ detached, and not collected
@planted(MONEY_MUTANTS, "$")
def limit_not_set(patch: pytest.MonkeyPatch) -> None:
    """The machine of a run that nobody follows has the longest limit that its target allows."""
    wish = run_lease.MachineRequest
    patch.setattr(run_lease, "MachineRequest", lambda **kw: wish(**{**kw, "max_run_s": 7200}))
    patch.setattr(run_lease, "arm_within", lambda *_: None)


@planted(MONEY_MUTANTS, "2027", seed=114)
def deleted_uncollected(patch: pytest.MonkeyPatch) -> None:
    """Runs that wait for what is on the machine's disk do not keep it from being deleted."""
    patch.setattr(release.Releaser, "left_behind", lambda _: [])


@planted(MONEY_MUTANTS, "2027", seed=100)
def unreadable_is_collected(patch: pytest.MonkeyPatch) -> None:
    """A machine that cannot read its disk is taken for one that has nothing."""

    def collected(*args: Any, **kwargs: Any) -> Collection:
        try:
            return transfer.collect(*args, **kwargs)
        except HostFault:
            return Collection(0, 0, [])

    patch.setattr(actions, "collect", collected)


@planted(MONEY_MUTANTS, "2027", seed=40)
def full_laptop_is_collected(patch: pytest.MonkeyPatch) -> None:
    """A file for which the laptop has no room is taken for one that is here."""

    def collected(*args: Any, **kwargs: Any) -> Collection:
        try:
            return transfer.collect(*args, **kwargs)
        except HostError:
            raise
        except FcctlError:
            return Collection(0, 0, [])

    patch.setattr(actions, "collect", collected)


@planted(MONEY_MUTANTS, "a run that stops at $", schedule=Schedule(0, (), ("run",), stop_at=0.35, builder=True))
def builder_not_in_budget(patch: pytest.MonkeyPatch) -> None:
    """What a run may cost until it is stopped does not count its builder."""
    ended_in_time = prepare._ended_in_time

    def alone(services: Services, saved: SavedPlan, *args: Any) -> SavedPlan:
        done = ended_in_time(services, saved.model_copy(update={"builder": None}), *args)
        return done.model_copy(update={"builder": saved.builder})

    patch.setattr(prepare, "_ended_in_time", alone)
    patch.setattr(SavedPlan, "builder_usd", 0.0)


@planted(MONEY_MUTANTS, "$", schedule=replace(ROOM_FOR_HALF, day_cap=0.8, builder=True))
def builder_not_reserved(patch: pytest.MonkeyPatch) -> None:
    """Nothing is reserved for what a run costs on its builder."""
    set_aside = spending.set_aside

    def without_builders(services: Services, active: FileActiveRun, saved: SavedPlan) -> None:
        if saved.builds_for is None:
            set_aside(services, active, saved)

    patch.setattr(spending, "set_aside", without_builders)
