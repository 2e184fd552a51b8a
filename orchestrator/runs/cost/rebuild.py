"""Rebuilds the book of spending from runs, sessions and files of earlier versions. It only adds, and may be repeated;
damaged lines are kept beside the book."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.base.clock import epoch, iso
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import newest
from orchestrator.leases.find import known, underway
from orchestrator.leases.session_rules import machine_of
from orchestrator.money import ledger as books
from orchestrator.money.billable import ResourceRecord
from orchestrator.money.book import LEGACY, State, read_legacy
from orchestrator.money.caps import FENCE_LATENESS_S
from orchestrator.money.ledger import RunUsage, UsageRecord
from orchestrator.money.reservations import Reservation
from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.lost_owners import has_record
from orchestrator.runs.cost.owners import kept_on, reservation, unbooked_runs
from orchestrator.runs.cost.spending import is_off, is_past_fence
from orchestrator.runs.job.saved_plan import read_saved
from orchestrator.runs.services import Services

#: No machine that a run left on is on for longer, seconds.
LONGEST_ON_S = 30 * 86400.0

UnknownKind = Literal[
    "damaged_runs", "damaged_sessions", "reservations_without_record", "machines_never_seen_off", "runs_without_price"
]


@dataclass(frozen=True)
class Unknown:
    """A fact that nothing on this computer has."""

    kind: UnknownKind
    name: str
    why: str


@dataclass(frozen=True)
class Rebuilt:
    """What the book has now that it did not have; or would have."""

    runs: tuple[RunUsage, ...]
    power: tuple[UsageRecord, ...]
    resources: tuple[ResourceRecord, ...]
    reservations: tuple[Reservation, ...]
    #: Lines that could not be read, and the file that has them now.
    damaged: int
    aside: str | None
    unknown: tuple[Unknown, ...]

    @property
    def usd(self) -> float:
        """What its new runs cost."""
        return sum(usage.cost.usd for usage in self.runs if not usage.cost.emulated)


def rebuild(services: Services, *, dry_run: bool) -> Rebuilt:
    """Adds what the book lacks, or only returns it with ``dry_run``. Raises FcctlError if it cannot."""
    book = services.spending
    with book.changing() as change:  # nobody else imports the old file meanwhile
        damaged = len(change.state.damaged)
        if dry_run:
            return _found(services, change.state, damaged, None)
    aside = book.set_damage_aside()
    with book.changing() as change:
        found = _found(services, change.state, damaged, aside)
        for usage in found.runs:
            change.add("run", usage)
        for word in found.power:
            change.add("power", word)
        for resource in found.resources:
            change.add("resource", resource)
        for one in found.reservations:
            change.reserve(one)
        change.add("imported", {"results": services.spending.scope.results})
    return found


def _found(services: Services, state: State, damaged: int, aside: str | None) -> Rebuilt:
    scope, told_by = services.spending.scope, state.of("power", UsageRecord)
    said = [word for _, word in told_by]
    abroad = {id(word) for line, word in told_by
              if not scope.has(line.project, line.results, (word.project, word.name))}  # fmt: skip
    old_power, resources = _old_file(services, state)
    starts = {(word.instance_id, round(word.started)) for word in (*said, *old_power)}
    own = (*_of_sessions(services), *_of_runs(services))
    told = [*old_power, *(word for word in own if (word.instance_id, round(word.started)) not in starts)]
    last = {id(word) for word in books.latest([*said, *told])}
    power = tuple(word for word in told if id(word) in last)
    known = books.latest([*said, *power])
    return Rebuilt(
        tuple(unbooked_runs(services)), power, tuple(resources), tuple(_reservations(services, state, known)),
        damaged, aside, tuple(_unknown(services, state, [word for word in known if id(word) not in abroad])),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- what machines cost
def _old_file(services: Services, state: State) -> tuple[list[UsageRecord], list[ResourceRecord]]:
    """Of what an earlier version wrote down, that which the book does not have."""
    path = Path(services.spending.scope.results) / LEGACY
    if not path.is_file():
        return [], []
    power, resources = read_legacy(path)
    have_power = {word.model_dump_json() for _, word in state.of("power", UsageRecord)}
    have = {word.model_dump_json() for _, word in state.of("resource", ResourceRecord)}
    return (
        [word for word in books.latest(power) if word.model_dump_json() not in have_power],
        [word for word in resources if word.model_dump_json() not in have],
    )


def _of_sessions(services: Services) -> Iterator[UsageRecord]:
    """When the machines of sessions that are over were on."""
    for record in services.sessions.ended():
        machine = machine_of(services.sessions.journal_of(record.session_id))
        if machine is None or record.started is None:
            continue
        target = (services.sessions.plan_of(record.session_id) or {}).get("target") or {}
        limit = record.ended if machine.deadline is None else min(record.ended, machine.deadline + FENCE_LATENESS_S)
        yield UsageRecord(
            project=machine.project, zone=machine.zone, name=machine.name, instance_id=machine.instance_id,
            target=record.target, usd_per_hour=record.usd_per_hour or None, started=record.started,
            stopped=record.stopped if record.stopped is not None else max(limit, record.started), seen=record.ended,
            fence=machine.deadline, bound=record.stopped is None, emulated=target.get("kind") == "sandbox",
        )  # fmt: skip


def _of_runs(services: Services) -> Iterator[UsageRecord]:
    """When the machines were on that runs turned off."""
    for row in services.store.rows():
        record = _record(services, row.run_id)
        machine = record.machine if record is not None else None
        if record is None or machine is None or machine.ended is None or not machine.sittings:
            continue
        started, stopped = machine.sittings[-1].started, epoch(machine.ended) or 0.0
        if started is not None:
            yield UsageRecord(
                project=machine.project, zone=machine.zone, name=machine.name, instance_id=machine.instance_id,
                target=record.target, usd_per_hour=record.cost.usd_per_hour or None, started=epoch(started) or 0.0,
                stopped=stopped, seen=stopped, emulated=record.cost.emulated,
            )  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is reserved
def _reservations(services: Services, state: State, power: Sequence[UsageRecord]) -> Iterator[Reservation]:
    """For runs and sessions that are not over, and for machines that runs left on, where none is open."""
    open_ = state.open()
    for one in (*_of_active_runs(services), *_of_open_sessions(services), *_kept(services, power)):
        if one.reservation_id not in open_:
            yield one


def _of_active_runs(services: Services) -> Iterator[Reservation]:
    for run_id in services.store.active():
        saved = read_saved(services.store, run_id)
        if saved is not None and saved.worst_case_usd > 0 and saved.session is None:
            one = reservation(services, "run", run_id, saved.target, saved.worst_case_usd)
            yield one.model_copy(update={"at": saved.plan.created, "firing": None})


def _of_open_sessions(services: Services) -> Iterator[Reservation]:
    for session in underway(services.sessions):
        saved = session.saved
        one = reservation(services, "session", saved.session_id, saved.target, saved.worst_case_usd)
        yield one.model_copy(update={"at": saved.created, "firing": None})


def _kept(services: Services, power: Sequence[UsageRecord]) -> Iterator[Reservation]:
    """Machines that a run left on, and that are not known to be off."""
    now, store = services.clock.now(), services.store
    for row in store.rows():
        if now - (epoch(row.finished) or 0.0) > LONGEST_ON_S:
            continue
        record = _record(services, row.run_id)
        if record is None or record.machine is None or record.machine.ended is not None:
            continue
        one = _kept_by(services, record)
        if one is not None and not is_off(one, power, now):
            yield one


def _kept_by(services: Services, record: RunRecord) -> Reservation | None:
    saved, entries = read_saved(services.store, record.run_id), services.store.journal_of(record.run_id)
    if saved is None or is_past_fence(newest(entries, "acquired").get("deadline"), services.clock.now()):
        return None
    first = reservation(services, "run", record.run_id, saved.target, saved.worst_case_usd)
    return kept_on(first.model_copy(update={"firing": None}), record, saved, entries)


def _record(services: Services, run_id: str) -> RunRecord | None:
    try:
        return services.store.get(run_id)
    except FcctlError:
        return None


# ---------------------------------------------------------------------------------------------- what nobody knows
def _unknown(services: Services, state: State, power: Sequence[UsageRecord]) -> Iterator[Unknown]:
    """``power`` is the latest record of each start of this workspace's machines."""
    booked, open_ = state.runs(), state.open()
    for run_id, reason in services.store.reindex()[1]:
        if run_id not in booked:
            yield Unknown("damaged_runs", run_id, f"what it cost: {reason}")
    for session_id in services.sessions.open():
        if known(services.sessions, session_id) is None:
            why = "its session.json cannot be read, and its machine may be on: fcctl hosts audit"
            yield Unknown("damaged_sessions", session_id, why)
    for one in open_.values():
        if one.owner in ("run", "wake", "session") and not has_record(services, one):
            yield Unknown("reservations_without_record", one.reservation_id, f"${one.usd:.2f}: fcctl hosts audit")
    yield from _never_off(power, open_.values())
    for row in services.store.rows():
        record = _record(services, row.run_id) if row.usd == 0 else None
        if record is not None and record.machine is not None and record.cost.usd_per_hour == 0:
            yield Unknown("runs_without_price", row.run_id, f"{record.cost.billed_s:.0f} s of {record.machine.name}")


def _never_off(power: Sequence[UsageRecord], open_: Iterable[Reservation]) -> Iterator[Unknown]:
    """Machines that were seen on, without a reservation and without a known end."""
    reserved = {one.machine for one in open_}
    for word in power:
        if word.stopped is None and not word.emulated and (word.project, word.name) not in reserved:
            why = f"started {iso(word.started)}, last seen on {iso(word.seen)}: fcctl hosts audit"
            yield Unknown("machines_never_seen_off", f"{word.name} ({word.instance_id})", why)
