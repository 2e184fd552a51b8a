"""What an active run or an open reservation has cost so far, and what ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.base.clock import utc_minute
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.leases.find import known
from orchestrator.leases.session_rules import money
from orchestrator.money.caps import began_to_cost, last_change
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.reservations import Reservation, Reserved
from orchestrator.runs.cost.machine_cost import machine_cost, rate_of
from orchestrator.runs.cost.owners import command_in, session_book_of, store_of
from orchestrator.runs.cost.spending import is_start_of
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Action, decide, fold
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

GONE, AUDIT = "its record no longer exists", "fcctl hosts audit"


@dataclass(frozen=True)
class OpenReservation:
    """An open reservation. Times are epoch seconds."""

    reservation: Reservation
    #: What of it may still be spent beyond what the ledger has, dollars.
    usd: float
    #: What it was made for has cost so far, as an estimate; None: no price is known.
    so_far_usd: float | None
    #: What an hour costs now; 0 while nothing is on for it.
    usd_per_hour: float
    #: What ends it, and the command that leads there.
    ends: str
    command: str
    #: When its machine is stopped by the cloud, or by its own timer, if that is known.
    until: float | None = None

    @property
    def beyond_usd(self) -> float:
        """What it has cost so far beyond what the ledger has."""
        booked = self.reservation.usd - self.usd
        return max(0.0, (self.so_far_usd or 0.0) - booked)

    @property
    def text(self) -> str:
        """``run X (fcctl attach X)``."""
        return f"{self.ends}: {self.command}" if self.ends == GONE else f"{self.ends} ({self.command})"


#: What it has cost so far, what an hour costs, what ends it, by which command, and its machine's limit.
_End = tuple[float | None, float, str, str, float | None]


def described(services: Services, one: Reserved, power: Sequence[UsageRecord]) -> OpenReservation:
    """``power`` is the latest record of each start of a machine."""
    reservation, owner = one.reservation, one.reservation.owner
    if owner in ("run", "wake"):
        end = _run(services, reservation)
    else:
        end = _session(services, reservation) if owner == "session" else _left_on(services, reservation, power)
    return OpenReservation(reservation, one.usd, *end)


def _run(services: Services, one: Reservation) -> _End:
    run_id, now = one.owner_id, services.clock.now()
    # In a checkout that was moved, the record is here.
    store = services.store if services.store.plan_of(run_id) is not None else store_of(services, one)
    if store.is_complete(run_id):
        told = f"run {run_id} has ended; the next command in its workspace records its cost"
        return one.usd, 0.0, told, _fcctl(services, one, "ps"), None
    wakes = one.owner == "wake"
    found = cost_so_far(store, run_id, now, since=one.at if wakes else 0.0)
    if found is None:
        return _without_record(store.plan_of(run_id))
    if not wakes and decide(fold(store.journal_of(run_id)), "resume") is Action.WAIT:
        fetch = _fcctl(services, one, f"pull-results --wake {run_id}")
        return found.usd, 0.0, f"run {run_id}: its machine is off", fetch, None
    what = f"fetching the results of {run_id}" if wakes else f"run {run_id}"
    command = _fcctl(services, one, f"attach {run_id}")
    return found.usd, found.usd_per_hour, what, command, newest(store.journal_of(run_id), "acquired").get("deadline")


def _without_record(plan: object | None) -> _End:
    return None, 0.0, GONE if plan is None else "its record cannot be read", AUDIT, None


def _session(services: Services, one: Reservation) -> _End:
    book = session_book_of(services, one)
    found = known(book, one.owner_id)
    if found is None:
        return _without_record(book.plan_of(one.owner_id))
    stands = money(found.saved, found.machine, services.clock.now())
    is_on = found.machine is not None and found.stage != "starting"
    until = found.machine.deadline if found.machine is not None else None
    rate, stop = stands.usd_per_hour if is_on else 0.0, _fcctl(services, one, "session stop")
    return stands.spent, rate, f"session {one.owner_id}", stop, until


def _left_on(services: Services, one: Reservation, power: Sequence[UsageRecord]) -> _End:
    """Describes a machine that was started by hand, or left on after a run."""
    seen = next((s for s in reversed(power) if (s.project, s.name) == one.machine and is_start_of(one, s)), None)
    if seen is None:
        return None, 0.0, "its machine was never seen on", AUDIT, None
    now, rate = services.clock.now(), seen.usd_per_hour
    # When a machine that a run kept on stops itself.
    own = newest(store_of(services, one).journal_of(one.owner_id), "released") if one.owner == "kept" else {}
    limits = [limit for limit in (seen.fence, own.get("until")) if limit is not None]
    until = f"until {utc_minute(min(limits), now)}" if limits else "without a time limit"
    ends = {"up": f"on {until}", "kept": f"kept {until}"}[one.owner]
    if one.owner_id in services.store.pending_releases():
        ends = f"could not be stopped; on {until}"
    so_far = None if rate is None else max(0.0, now - seen.started) / 3600 * rate
    down = _fcctl(services, one, f"hosts down {one.target}")
    return so_far, rate or 0.0, ends, down, min(limits, default=None)


def _fcctl(services: Services, one: Reservation, words: str) -> str:
    return command_in(services, one.results, words)


@dataclass(frozen=True)
class CostSoFar:
    """Dollars of one active run."""

    usd: float
    #: While it costs something; 0 before its machine is on and after that is off.
    usd_per_hour: float
    worst_case_usd: float
    #: Nobody pays: its machine is the sandbox's.
    emulated: bool = False

    def as_json(self) -> dict[str, float]:
        shown = CostSoFar(0.0, 0.0, 0.0) if self.emulated else self
        return {
            "usd": round(shown.usd, 6), "usd_per_hour": shown.usd_per_hour,
            "worst_case_usd": round(shown.worst_case_usd, 6),
        }  # fmt: skip


def cost_so_far(store: FileStore, run_id: str, now: float, *, since: float = 0.0) -> CostSoFar | None:
    """Returns an active run's cost from ``since`` until ``now``, epoch seconds; None if its plan or journal cannot be
    read."""
    try:
        saved = SavedPlan.model_validate(store.plan_of(run_id))
        entries = [entry for entry in store.journal_of(run_id) if entry.time >= since]
        return of_journal(entries, saved, now)
    except (FcctlError, ValueError, TypeError, LookupError, ArithmeticError):  # of another version, or damaged
        return None


def of_journal(entries: Sequence[JournalEntry], saved: SavedPlan, now: float) -> CostSoFar:
    """The same of a journal and a plan. Pure."""
    emulated, rate = saved.target.kind == "sandbox", rate_of(entries, saved)
    if saved.target.cloud is None or saved.fence_s is None:
        began = began_to_cost(entries, machine=False)
        ended = next((e.time for e in entries if e.kind in ("ended", "lost")), None)
        seconds = 0.0 if began is None else max(0.0, (ended if ended is not None else now) - began.time)
        is_on = began is not None and ended is None
        return CostSoFar(seconds / 3600 * rate, rate if is_on else 0.0, saved.worst_case_usd, emulated)
    until_now = [*entries, JournalEntry(seq=0, time=now, kind="released")]
    usd = machine_cost(until_now, saved, []).usd
    return CostSoFar(usd, rate if _is_on(entries) else 0.0, saved.worst_case_usd, emulated)


def _is_on(entries: Sequence[JournalEntry]) -> bool:
    """Whether the machine is on for the run, as far as its journal knows."""
    last = last_change(entries)
    return last is not None and last.kind in ("cloud", "acquired")
