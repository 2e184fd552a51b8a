"""What reservations were made for, found by name: what it has cost so far and what ends it; a run or a session that is
over, or off, needs them no more."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.clock import utc_minute
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.leases.session_files import SessionFiles
from orchestrator.leases.session_rules import known, money
from orchestrator.machines.targets import Target
from orchestrator.money.caps import fenced_worst_case_usd, is_start
from orchestrator.money.firings import count_left_on
from orchestrator.money.ledger import NEAR_S, RunUsage, UsageRecord
from orchestrator.money.reservations import Owner, Reservation, Reserved, is_start_of
from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.machine_cost import cost_so_far, machine_cost, rate_of
from orchestrator.runs.job.saved_plan import SavedPlan, read_saved
from orchestrator.runs.lifecycle import Action, decide, fold
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


def reservation(
    services: Services, owner: Owner, owner_id: str, target: Target, usd: float, *, suffix: str = ""
) -> Reservation:
    """``usd`` dollars for a start of ``target``, made now."""
    machine, scope = target.cloud, services.spending.scope
    return Reservation(
        reservation_id=f"{owner_id}{suffix}", owner=owner, owner_id=owner_id, project=scope.project,
        results=scope.results, target=target.name, cloud_project=machine.project if machine is not None else "",
        instance=machine.instance if machine is not None else "", at=services.clock.now(), usd=usd,
        emulated=target.kind == "sandbox", firing=services.spending.firing,
    )  # fmt: skip


def still_reserved(services: Services, open_: Iterable[Reservation]) -> list[Reservation]:
    """Those whose owner may still cost something; with what it did cost, where its machine is off by now."""
    found = []
    for one in open_:
        if one.owner == "session":
            if _session_is_open(services, one):
                entries = session_book_of(services, one).journal_of(one.owner_id)
                found.append(_since_its_start(one, entries, services.clock.now()))
        elif one.owner in ("run", "wake"):
            found += _of_run(services, one)
        elif not (one.unasked and services.clock.now() - one.at > NEAR_S):  # its command makes another if it asks late
            found.append(one)
    return found


def _of_run(services: Services, one: Reservation) -> Iterator[Reservation]:
    store = store_of(services, one)
    if store.is_complete(one.owner_id):
        costing = _costing(one, store)
        # A run of this workspace counts by its record if that can be read; another's is reserved until it is booked.
        if store is not services.store or costing is one:
            yield costing
        return
    entries = store.journal_of(one.owner_id)
    off = _off(store, one, entries)
    # Turned on for the run's results: its journal says "stopped" even if it could not be turned off again.
    may_be_on = one.owner == "wake" and one.owner_id in store.pending_releases()
    if off is None or may_be_on:
        yield _since_its_start(one, entries, services.clock.now())
    elif one.owner == "run":
        yield one.model_copy(update={"usd": min(one.usd, off)})


def _costing(one: Reservation, store: FileStore) -> Reservation:
    """With what the complete run did cost; the same, if its record cannot be read."""
    try:
        usd = store.get(one.owner_id).cost.usd
    except FcctlError:
        return one
    return one.model_copy(update={"usd": usd if one.owner == "run" else 0.0})


def _since_its_start(one: Reservation, entries: Sequence[JournalEntry], now: float) -> Reservation:
    """With when its owner, who has the journal ``entries``, had the machine or requested its start: what the machine
    cost before is not of what was reserved. Until then nothing of it is spent."""
    if not entries:  # its record was deleted
        return one
    since, acquires = now, 0
    for entry in entries:
        acquires += entry.kind == "acquire" and entry.time >= one.at - 1.0
        if acquires == 1 and entry.kind == "acquired":
            started = entry.data.get("started") if entry.data.get("turned_on") else None
            since = min(since, entry.time) if started is None else started
        elif acquires == 1 and is_start(entry):
            since = min(since, entry.time)
    return one.model_copy(update={"started": since})


def _off(store: FileStore, one: Reservation, entries: Sequence[JournalEntry]) -> float | None:
    """What a run has cost that waits for its machine, which went off after the reservation; None if it may be on."""
    last = next((e for e in reversed(entries) if e.kind in ("acquire", "acquired", "stopped", "released")), None)
    if last is None or last.kind != "stopped" or last.time <= one.at:
        return None
    saved = read_saved(store, one.owner_id)
    return None if saved is None else machine_cost(entries, saved, []).usd


def _session_is_open(services: Services, one: Reservation) -> bool:
    book = session_book_of(services, one)
    # A deleted folder says nothing about the machine: the reservation stays.
    return one.owner_id in book.open() or book.plan_of(one.owner_id) is None


def session_book_of(services: Services, one: Reservation) -> SessionFiles:
    """The book that has, or had, the session."""
    if one.results == services.spending.scope.results:
        return services.sessions
    return SessionFiles(Path(one.results), services.clock)


def store_of(services: Services, one: Reservation) -> FileStore:
    """The store that has, or had, the run's record."""
    # A checkout that was moved has its runs here.
    return services.store if services.store.has(one.owner_id) else store_in(services, one.results)


def has_record(services: Services, one: Reservation) -> bool:
    """Whether the run or the session that a reservation was made for is in a store on this computer."""
    if one.owner == "session":
        return session_book_of(services, one).plan_of(one.owner_id) is not None
    return store_of(services, one).has(one.owner_id)


def store_in(services: Services, results: str) -> FileStore:
    """The store of a folder of results."""
    if results == services.spending.scope.results:
        return services.store
    from orchestrator.results.store.store import FileStore

    return FileStore(Path(results), services.clock)


def command_in(services: Services, results: str, words: str) -> str:
    """A command of the workspace that has this folder of results."""
    place = "" if results == services.spending.scope.results else f" -C {shlex.quote(str(Path(results).parent))}"
    return f"fcctl{place} {words}"


def settle_run(services: Services, record: RunRecord, saved: SavedPlan, entries: Sequence[JournalEntry]) -> None:
    """Books a run's cost and releases its reservation; reserves the rest for a machine that is left on. Called before
    the run is complete; may be repeated."""
    with services.spending.changing() as change:
        own = [one for one in change.state.open().values()
               if one.owner_id == record.run_id and one.owner in ("run", "wake")]  # fmt: skip
        if not own and record.cost.usd == 0:
            return
        firing = next((one.firing for one in own if one.firing), None)
        change.add("run", usage_of(record, firing))
        first = next((one for one in own if one.owner == "run"), own[0] if own else None)
        kept = kept_on(first, record, saved, entries) if first is not None else None
        if kept is not None and kept.reservation_id not in change.state.open():
            change.reserve(kept)
        for one in own:
            change.release(one)


def settle_reservations(services: Services) -> None:
    """The same for runs that are complete, and whose controller was killed before it could do that."""
    book_runs(services)
    scope, open_ = services.spending.scope, services.spending.state().open().values()
    over = []
    for one in open_:
        if not scope.has(one.project, one.results, one.machine):
            continue
        if one.owner == "session" and not _session_is_open(services, one):
            over.append(one)
        elif one.owner in ("run", "wake"):
            _settle_complete(services, one)
    if over:
        with services.spending.changing() as change:
            for one in over:
                change.release(one)


def book_runs(services: Services) -> int:
    """Books complete runs of this workspace that the book does not have; returns how many."""
    unbooked = list(unbooked_runs(services))
    if unbooked:
        with services.spending.changing() as change:
            for usage in unbooked:
                change.add("run", usage)
    return len(unbooked)


def unbooked_runs(services: Services) -> Iterator[RunUsage]:
    """What complete runs cost that the book does not know: of an earlier version, or from an archive."""
    known = services.spending.state().runs()
    # The index has what each run with a cost used: a hundred thousand files are not opened for a sum.
    listed = "SELECT run_id, usage FROM usages JOIN runs USING (run_id) ORDER BY created DESC, run_id DESC"
    yield from (
        RunUsage.model_validate_json(usage) for run_id, usage in services.store.query(listed) if run_id not in known
    )


def _settle_complete(services: Services, one: Reservation) -> None:
    store = store_of(services, one)
    if not store.is_complete(one.owner_id):
        return
    saved = read_saved(store, one.owner_id)
    with suppress(FcctlError):  # damaged: the reservation stays, and `fcctl cost budget` lists it
        if saved is not None:
            settle_run(services, store.get(one.owner_id), saved, store.journal_of(one.owner_id))


def kept_on(
    first: Reservation, record: RunRecord, saved: SavedPlan, entries: Sequence[JournalEntry]
) -> Reservation | None:
    """The reservation for a machine that the run left on: what it may cost until the cloud's deadline."""
    last = next((e for e in reversed(entries) if e.kind in ("released", "unreleased", "acquire")), None)
    got = newest(entries, "acquired")
    turned_on = bool(got.get("turned_on")) if got else any(is_start(entry) for entry in entries)
    is_session_s = saved.session is not None and not (saved.session_abroad and turned_on)
    if last is None or saved.target.cloud is None or is_session_s:
        return None
    # Who uses it may be refused or end before it has the machine, and has reserved what its own time may cost, not
    # what is left until this start's deadline.
    is_used = last.data.get("how") == "used" and turned_on and last.data.get("stopped") is None
    if last.kind == "acquire" or (last.kind == "released" and last.data.get("how") != "kept" and not is_used):
        return None
    started, deadline = got.get("started"), got.get("deadline")
    usd = saved.worst_case_usd
    if started and deadline:  # of the whole start, whoever started the machine
        usd = fenced_worst_case_usd(deadline - started, rate_of(entries, saved))
    name = f"{got['instance_id']}:{round(started)}" if got.get("instance_id") and started else record.run_id
    return first.model_copy(update={
        "reservation_id": f"kept:{name}", "owner": "kept", "usd": usd, "started": started,
        "instance_id": str(got.get("instance_id") or ""), "firing": None if is_used else first.firing,
    })  # fmt: skip


def release_kept(
    services: Services, *, owner_id: str | None = None, machine: tuple[str, str] | None = None,
    looked: float = math.inf, stopped: bool = True,
) -> None:  # fmt: skip
    """Releases the reservation of a machine that was left on, or turned on by hand, and is off now. What may be for a
    later start stays: what was reserved since ``looked``, epoch seconds, when the machine was found off or on and then
    ``stopped``; and what a ``hosts up`` has reserved lately and not started, if nothing was stopped."""
    now = services.clock.now()

    def is_later(one: Reservation) -> bool:
        if one.started is not None:
            return one.at >= looked
        return one.owner == "up" and now - one.at <= NEAR_S and (one.at >= looked or not stopped)

    with suppress(FcctlError), services.spending.changing() as change:  # it is off, as the ledger will say
        for one in change.state.open().values():
            is_for = one.owner_id == owner_id or (one.machine == machine and not is_later(one))
            if one.owner in ("up", "kept") and is_for:
                if one.firing:
                    count_left_on(change, one)
                change.release(one)


def usage_of(record: RunRecord, firing: str | None = None) -> RunUsage:
    return RunUsage(
        run_id=record.run_id, job=record.job, target=record.target, created=record.created, started=record.started,
        cost=record.cost, machine=record.machine, firing=firing,
    )  # fmt: skip


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
    run_id, now, store, wakes = one.owner_id, services.clock.now(), store_of(services, one), one.owner == "wake"
    found = cost_so_far(store, run_id, now, since=one.at if wakes else 0.0)
    if store.is_complete(run_id):  # asked now: it may have been completed while its journal was read
        told = f"run {run_id} has ended; the next command in its workspace records its cost"
        return one.usd, 0.0, told, command_in(services, one.results, "ps"), None
    if found is None:
        return _without_record(store.plan_of(run_id))
    if not wakes and decide(fold(store.journal_of(run_id)), "resume") is Action.WAIT:
        fetch = command_in(services, one.results, f"pull-results --wake {run_id}")
        return found.usd, 0.0, f"run {run_id}: its machine is off", fetch, None
    what = f"fetching the results of {run_id}" if wakes else f"run {run_id}"
    command = command_in(services, one.results, f"attach {run_id}")
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
    rate, stop = stands.usd_per_hour if is_on else 0.0, command_in(services, one.results, "session stop")
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
    down = command_in(services, one.results, f"hosts down {one.target}")
    return so_far, rate or 0.0, ends, down, min(limits, default=None)
