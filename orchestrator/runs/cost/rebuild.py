"""Rebuilds the ledger from runs and sessions, and finds reservations whose run or session was deleted.
It only adds, and may be repeated; damaged lines are kept beside the book."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator.base.clock import epoch, iso
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import newest
from orchestrator.base.sanitize import table
from orchestrator.leases.session_rules import ended, known, machine_of, underway
from orchestrator.machines.cloud import Machine
from orchestrator.machines.interfaces import Cloud
from orchestrator.machines.power_history import is_a_start
from orchestrator.machines.targets import CloudTarget
from orchestrator.money import ledger as books
from orchestrator.money.book import Change, Line, State
from orchestrator.money.caps import FENCE_LATENESS_S
from orchestrator.money.ledger import NEAR_S, RunUsage, UsageRecord
from orchestrator.money.reservations import Reservation, is_off, is_past_deadline, is_start_of
from orchestrator.results.records import CostLine, CostRecord, MachineRecord, RunRecord
from orchestrator.runs.cost.owners import has_record, kept_on, reservation, unbooked_runs
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
    with book.changing() as change:
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
        for one in found.reservations:
            change.reserve(one)
    return found


def _found(services: Services, state: State, damaged: int, aside: str | None) -> Rebuilt:
    scope, entries = services.spending.scope, state.of("power", UsageRecord)
    booked = [record for _, record in entries]
    abroad = {id(record) for line, record in entries
              if not scope.has(line.project, line.results, (record.project, record.name))}  # fmt: skip
    starts = {(record.instance_id, round(record.started)) for record in booked}
    own = (*_of_sessions(services), *_of_runs(services))
    missing = [record for record in own if (record.instance_id, round(record.started)) not in starts]
    last = {id(record) for record in books.latest([*booked, *missing])}
    power = tuple(record for record in missing if id(record) in last)
    known = books.latest([*booked, *power])
    return Rebuilt(
        tuple(unbooked_runs(services)), power, tuple(_reservations(services, state, known)),
        damaged, aside, tuple(_unknown(services, state, [record for record in known if id(record) not in abroad])),
    )  # fmt: skip


def _of_sessions(services: Services) -> Iterator[UsageRecord]:
    """When the machines of sessions that are over were on."""
    for record in ended(services.sessions):
        machine = machine_of(services.sessions.journal_of(record.session_id))
        if machine is None or record.started is None:
            continue
        target = table((services.sessions.plan_of(record.session_id) or {}).get("target"))
        limit = record.ended if machine.deadline is None else min(record.ended, machine.deadline + FENCE_LATENESS_S)
        yield UsageRecord(
            project=machine.project, zone=machine.zone, name=machine.name, instance_id=machine.instance_id,
            target=record.target, usd_per_hour=record.usd_per_hour or None, started=record.started,
            stopped=record.stopped if record.stopped is not None else max(limit, record.started), seen=record.ended,
            fence=machine.deadline, bound=record.stopped is None, emulated=target.get("kind") == "sandbox",
        )  # fmt: skip


def _of_runs(services: Services) -> Iterator[UsageRecord]:
    """When the machines were on that runs turned off."""
    for record in _records(services):
        machine = record.machine
        if machine is None or machine.ended is None or not machine.sittings:
            continue
        started, stopped = machine.sittings[-1].started, epoch(machine.ended) or 0.0
        if started is not None:
            yield UsageRecord(
                project=machine.project, zone=machine.zone, name=machine.name, instance_id=machine.instance_id,
                target=record.target, usd_per_hour=record.cost.usd_per_hour or None, started=epoch(started) or 0.0,
                stopped=stopped, seen=stopped, emulated=record.cost.emulated,
            )  # fmt: skip


def _reservations(services: Services, state: State, power: Sequence[UsageRecord]) -> Iterator[Reservation]:
    """For runs and sessions that are not over, and for machines that runs left on, where none is open."""
    open_ = state.open()
    for one in (*_of_active_runs(services), *_of_open_sessions(services), *_kept(services, power)):
        if one.reservation_id not in open_:
            yield one


def unreserved(services: Services, state: State) -> list[Reservation]:
    """For this workspace's runs and sessions that may have a machine on without a reservation: the book was deleted, or
    is an older one by now."""
    open_, found = state.open(), []
    for one in (*_of_active_runs(services), *_of_open_sessions(services)):
        if one.reservation_id not in open_:
            journal_of = services.store.journal_of if one.owner == "run" else services.sessions.journal_of
            found += [one] if any(entry.kind == "acquire" for entry in journal_of(one.owner_id)) else []
    return found


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
    now = services.clock.now()
    for record in _records(services):
        is_recent = now - (epoch(record.finished) or 0.0) <= LONGEST_ON_S
        if is_recent and record.machine is not None and record.machine.ended is None:
            one = _kept_by(services, record)
            if one is not None and not is_off(one, power, now):
                yield one


def _kept_by(services: Services, record: RunRecord) -> Reservation | None:
    saved, entries = read_saved(services.store, record.run_id), services.store.journal_of(record.run_id)
    if saved is None or is_past_deadline(newest(entries, "acquired").get("deadline"), services.clock.now()):
        return None
    first = reservation(services, "run", record.run_id, saved.target, saved.worst_case_usd)
    return kept_on(first.model_copy(update={"firing": None}), record, saved, entries)


def _records(services: Services) -> Iterator[RunRecord]:
    """The complete runs whose record can be read."""
    for row in services.store.rows():
        with suppress(FcctlError):
            yield services.store.get(row.run_id)


def _unknown(services: Services, state: State, power: Sequence[UsageRecord]) -> Iterator[Unknown]:
    """``power`` is the latest record of each start of this workspace's machines."""
    booked, open_ = state.runs(), state.open()
    for run_id, reason in services.store.reindex()[1]:
        if run_id not in booked:
            yield Unknown("damaged_runs", run_id, f"its cost: {reason}")
    for session_id in services.sessions.open():
        if known(services.sessions, session_id) is None:
            why = "its session.json is unreadable, and its machine may be on: fcctl hosts audit"
            yield Unknown("damaged_sessions", session_id, why)
    for one in open_.values():
        if one.owner in ("run", "wake", "session") and not has_record(services, one):
            yield Unknown("reservations_without_record", one.reservation_id, f"${one.usd:.2f}: fcctl hosts audit")
    yield from _never_off(power, open_.values())
    for record in _records(services):
        if record.machine is not None and record.cost.usd == record.cost.usd_per_hour == 0:
            why = f"{record.cost.billed_s:.0f} s of {record.machine.name}"
            yield Unknown("runs_without_price", record.run_id, why)


def _never_off(power: Sequence[UsageRecord], open_: Iterable[Reservation]) -> Iterator[Unknown]:
    """Machines that were seen on, without a reservation and without a known end."""
    reserved = {one.machine for one in open_}
    for word in power:
        if word.stopped is None and not word.emulated and (word.project, word.name) not in reserved:
            why = f"started {iso(word.started)}, last seen on {iso(word.seen)}: fcctl hosts audit"
            yield Unknown("machines_never_seen_off", f"{word.name} ({word.instance_id})", why)


#: The real service lists operations for two weeks, seconds.
LISTED_S = 10 * 86400.0
#: The time for which the dollars of a machine without a price are booked, seconds.
SOME_S = 3600.0


def settle_lost(services: Services, cloud: Cloud, targets: Sequence[CloudTarget]) -> list[Reservation]:
    """Releases reservations in the ``targets``' cloud project whose owner has no record and whose machine the cloud
    says is off. Their cost is booked as an upper bound unless the ledger or the cloud has the machine's own history."""
    state, now, project = services.spending.state(), services.clock.now(), targets[0].project
    power = state.starts()
    lost = [
        one for one in state.open().values() if one.cloud_project == project and _is_lost(services, one, power, now)
    ]
    zones = {target.instance: target.zones for target in targets}
    named = {(zone, one.instance) for one in lost for zone in zones.get(one.instance, ())}
    machines = _all_machines(cloud, named) if lost else None
    if machines is None:
        return []
    on = {machine.name for machine in machines if machine.billed}
    may_be_unlisted = {one.reservation_id for one in lost if one.instance not in zones and now - one.at <= NEAR_S}
    off = [one for one in lost if one.instance not in on and one.reservation_id not in may_be_unlisted]
    free = {one.reservation_id for one in off if _was_never_on(cloud, one, zones.get(one.instance, ()), now)}
    if off:
        with services.spending.changing() as change:
            open_ = change.state.open()
            for one in off:
                if one.reservation_id in open_:
                    change.release(one)
                    if not (one.reservation_id in free or _is_covered(one, power, machines)):
                        _book(change, one, power)
    return off


def _all_machines(cloud: Cloud, named: Collection[tuple[str, str]]) -> list[Machine] | None:
    """None if a part of the cloud does not answer. The list of all zones may lack one for a minute, so that those at
    ``named`` (zone, name) are read one by one."""
    try:
        listed, unasked = cloud.machines({})
        read = [machine for zone, name in sorted(named) if (machine := cloud.machine(zone, name)) is not None]
    except FcctlError:
        return None
    return None if unasked else [*(one for one in listed if (one.zone, one.name) not in named), *read]


def _was_never_on(cloud: Cloud, one: Reservation, zones: Sequence[str], now: float) -> bool:
    """Whether the reservation ``one`` can cost nothing: its machine is emulated, no start was requested, or the cloud
    lists no start since the request."""
    if one.emulated or one.unasked:
        return True
    if one.owner != "up" or not zones or now - one.at > LISTED_S:
        return False
    try:
        history = [operation for zone in zones for operation in cloud.operations(zone, one.instance)]
    except FcctlError:
        return False
    return not any(is_a_start(op) and (op.started or now) >= one.at - NEAR_S for op in history)


def _is_lost(services: Services, one: Reservation, power: Sequence[UsageRecord], now: float) -> bool:
    """Whether no record can release it. A machine that a person turned on, or a kept one, may be about to start until
    the cloud has shown it."""
    if one.owner in ("run", "wake", "session"):
        return not has_record(services, one) and _are_readable(one)
    seen = any((s.project, s.name) == one.machine and is_start_of(one, s) for s in power)
    return not seen and now - one.at > NEAR_S


def _are_readable(one: Reservation) -> bool:
    """Whether the folders that may have the record can be read, so that a record that is missing was deleted."""
    for name in ("active", "runs", "sessions"):
        try:
            next(Path(one.results, name).iterdir(), None)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _is_covered(one: Reservation, power: Sequence[UsageRecord], machines: Sequence[Machine]) -> bool:
    """Whether the ledger has all of the machine's time since the reservation."""
    there = {machine.id for machine in machines}
    return any(
        s.stopped is not None and (s.stopped >= one.at or (s.instance_id in there and s.seen >= one.at))
        for s in power
        if (s.project, s.name) == one.machine
    )


def _book(change: Change, one: Reservation, power: Sequence[UsageRecord]) -> None:
    """All that was reserved, from then on."""
    rate = next(
        (s.usd_per_hour for s in reversed(power) if (s.project, s.name) == one.machine and s.usd_per_hour), None
    )
    seconds = SOME_S if rate is None else one.usd / rate * 3600
    cost = CostRecord(
        usd=one.usd, usd_per_hour=rate or 0.0, billed_s=seconds, upper_bound=True,
        breakdown=[CostLine(activity="lost", seconds=seconds, usd=one.usd)],
    )  # fmt: skip
    began = iso(one.at) or ""
    machine = MachineRecord(project=one.cloud_project, zone="", name=one.instance, instance_id="", began=began)
    usage = RunUsage(
        run_id=one.reservation_id, job="(no record)", target=one.target, created=began, started=began, cost=cost,
        machine=machine, firing=one.firing,
    )  # fmt: skip
    # It is booked for the workspace that made it, also if another one finds it.
    change.lines.append(Line("run", one.project, one.results, usage.model_dump(mode="json")))
