"""The cloud projects in which fcctl has, or had, machines; and who uses a machine that is on: according to this user's
runs and sessions, the machine itself, and the cloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.machine_lease import SAME_S, started_between
from orchestrator.machines.cloud import IN_FLIGHT_S, RUN_LABEL, Machine, Operation, Power
from orchestrator.machines.interfaces import Cloud
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.provision.ready import find_machines
from orchestrator.machines.provision.release import ARRIVAL_POLL_S, runs_on_host
from orchestrator.machines.targets import KINDS, CloudTarget, SandboxTarget, Target
from orchestrator.money import audit as verdicts
from orchestrator.money.audit import Claim, Evidence, Finding
from orchestrator.money.caps import is_start, last_change
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.reservations import Reservation
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.cost.owners import store_of
from orchestrator.runs.machine.pending_releases import is_for, target_of_plan
from orchestrator.runs.services import Services
from orchestrator.tune.fleet_rules import further


def finding(services: Services, cloud: Cloud, place: AuditedProject, machine: Machine, workspace: str) -> Finding:
    """The audit's verdict on a machine. If no journal explains why it is on, the machine and the cloud are queried."""
    claims = claims_on(services, machine)
    rate, now = verdicts.rate_of(machine, place.target_of(machine), services.budget), services.clock.now()
    first = verdicts.judge(machine, claims, rate, now, workspace)
    if first.verdict not in verdicts.DOUBTFUL:
        return first
    there = active_runs(services, place, machine)
    claims = _with_those_at_work(claims, there or ())
    evidence = replace(_start(cloud, machine, claims), answered=there is not None)
    return verdicts.judge(machine, claims, rate, now, workspace, evidence)


def claims_on(services: Services, machine: Machine) -> list[Claim]:
    """The runs and sessions of this user that concern the machine, active ones first."""
    if not machine.billed:
        return []
    store = services.store
    claims: list[Claim] = []
    for claims_of in (_active_claims, _sessions_on, _in_the_book):
        with services.unread.noted():
            claims += claims_of(services, machine)
    known = {claim.run_id for claim in claims}
    with services.unread.noted():
        pending = [
            run_id for run_id, plan in store.pending_releases().items() if is_for(plan, machine.project, machine.name)
        ]
        for run_id in dict.fromkeys([machine.labels.get(RUN_LABEL, ""), *pending]):
            if run_id not in known and store.is_complete(run_id):
                claims.append(_over(run_id, store.journal_of(run_id)))
    return _sorted(claims)


def active_on(services: Services, machine: Machine) -> list[str]:
    """The active runs of this workspace on this machine; none if they cannot be read, which is noted."""
    store, active = services.store, list[str]()
    with services.unread.noted():
        active = store.active()
    return [run_id for run_id in active if is_for(store.plan_of(run_id), machine.project, machine.name)]


def await_requests(services: Services, targets: Iterable[CloudTarget]) -> None:
    """Waits while a start of one of these machines may be on its way to the cloud: whoever requested it was killed just
    then."""
    clock = services.clock
    until = clock.monotonic() + IN_FLIGHT_S
    for target in targets:
        while clock.monotonic() < until and _may_come(services, target):
            text = f"waiting to see whether the cloud received a killed fcctl's request to start {target.instance}"
            services.observer.phase("wake", text)
            clock.sleep(ARRIVAL_POLL_S)


def _may_come(services: Services, target: CloudTarget) -> bool:
    now = services.clock.now()
    if all(abs(now - at) >= IN_FLIGHT_S for at in _requests_without_end(services, (target.project, target.instance))):
        return False
    with suppress(FcctlError):
        return not any(one.billed for one in find_machines(services.clouds.open(target), target))
    return True


def _requests_without_end(services: Services, machine: tuple[str, str]) -> Iterator[float]:
    """When ``hosts up`` and unfollowed runs and sessions requested starts of which they do not say what became, epoch
    seconds."""
    open_: list[Reservation] = []
    with services.unread.noted():
        open_ += services.spending.state().open().values()
    for one in open_:
        if one.owner == "up" and one.machine == machine and one.started is None and not one.unasked:
            yield one.at
    runs, books, left = services.store, services.sessions, list[tuple[dict[str, Any] | None, list[JournalEntry]]]()
    with services.unread.noted():
        left += [(runs.plan_of(name), runs.journal_of(name)) for name in runs.active() if not runs.is_followed(name)]
    with services.unread.noted():
        left += [(books.plan_of(name), books.journal_of(name)) for name in books.open() if not books.is_followed(name)]
    for plan, entries in left:
        last = last_change(entries)
        if last is not None and is_start(last) and is_for(plan, *machine):
            yield last.time


def _sorted(claims: Iterable[Claim]) -> list[Claim]:
    order = ("followed", "alive", "busy", "session", "up", "left", "over")
    return sorted(claims, key=lambda claim: order.index(claim.state))


def _in_the_book(services: Services, machine: Machine) -> Iterator[Claim]:
    """Reservations for this start of the machine in the ledger that this user's workspaces share: ``hosts up`` of any
    workspace, and active runs of other workspaces."""
    for one in services.spending.state().open().values():
        if one.machine != (machine.project, machine.name):
            continue
        if one.owner == "up" and _is_same(one.started, machine):
            yield Claim(one.owner_id, "up")
        elif one.owner in ("run", "wake") and one.results != services.spending.scope.results:
            store, run_id = store_of(services, one), one.owner_id
            if run_id not in store.active():
                continue
            started = newest(store.journal_of(run_id), "acquired").get("started")
            if store.is_followed(run_id) or _is_same(started, machine):
                yield Claim(run_id, "busy")


def _is_same(started: float | None, machine: Machine) -> bool:
    return started is not None and machine.started is not None and abs(started - machine.started) <= SAME_S


# ------------------------------------------------------------------------------------------------- the journals' words
def _sessions_on(services: Services, machine: Machine) -> Iterator[Claim]:
    """The open sessions on this machine; one whose fcctl died while it started or stopped the machine is ``left``."""
    own_book = services.sessions
    for book, session_id in [*((own_book, name) for name in own_book.open()), *own_book.abroad()]:
        plan, entries = book.plan_of(session_id), book.journal_of(session_id)
        if not is_for(plan, machine.project, machine.name):
            continue
        if book.is_followed(session_id):
            yield Claim(session_id, "followed", _line(entries, machine))
            continue
        own = sessions.machine_of(entries)
        is_it = own is not None and own.instance_id == machine.id and own.started == machine.started
        is_open = sessions.stage(entries) == "open" and is_it
        if book is not own_book and not is_open:
            continue  # half-finished sessions of another workspace are recovered there
        yield Claim(
            session_id, "session" if is_open else "left", _line(entries, machine), turned_on=started_between(entries)
        )


def _active_claims(services: Services, machine: Machine) -> Iterator[Claim]:
    for run_id in active_on(services, machine):
        yield _active_claim(services, run_id, machine)


def _active_claim(services: Services, run_id: str, machine: Machine) -> Claim:
    entries = services.store.journal_of(run_id)
    if services.store.is_followed(run_id):
        return Claim(run_id, "followed", _line(entries, machine))
    if services.store.is_complete(run_id):
        return _over(run_id, entries)  # a moment ago
    return Claim(run_id, "left", _line(entries, machine), turned_on=started_between(entries))


def _over(run_id: str, entries: Sequence[JournalEntry]) -> Claim:
    last = next((e for e in reversed(entries) if e.kind in ("released", "unreleased")), None)
    until = last.data.get("until") if last is not None and last.data.get("how") == "kept" else None
    return Claim(run_id, "over", _text(last) if last is not None else None, until, started_between(entries))


def _line(entries: Sequence[JournalEntry], machine: Machine) -> str | None:
    """The newest journal line about the machine, else the newest line."""
    about = [e for e in entries if e.data.get("name") == machine.name or e.kind in ("acquired", "release", "released")]
    newest = (about or list(entries))[-1:]
    return _text(newest[0]) if newest else None


def _text(entry: JournalEntry) -> str:
    words = [str(entry.data[key]) for key in ("action", "how", "zone") if entry.data.get(key)]
    moment = datetime.fromtimestamp(entry.time, UTC).strftime("%H:%M:%S UTC")
    return f"'{' '.join([entry.kind, *words])}' at {moment} (line {entry.seq})"


# ------------------------------------------------------------------------------------------- the machine, and the cloud
def active_runs(services: Services, place: AuditedProject, machine: Machine) -> set[str] | None:
    """The active or queued runs on the machine, of any owner; None if it cannot be reached from here."""
    known = services.book.known(machine.project, machine.name)
    if machine.power is not Power.RUNNING or known is None or known.instance_id != machine.id:
        return None
    there = runs_on_host(services, place.target_of(machine) or as_target(machine, place))
    return None if there is None else {run.run_id for run in there if run.status not in wire.RUN_ENDINGS}


def _with_those_at_work(claims: Sequence[Claim], there: Iterable[str]) -> list[Claim]:
    active_runs, own = set(there), {claim.run_id for claim in claims}
    states = [replace(c, state="alive") if c.state == "left" and c.run_id in active_runs else c for c in claims]
    return _sorted([*states, *(Claim(run_id, "busy") for run_id in sorted(active_runs - own))])


def _start(cloud: Cloud, machine: Machine, claims: Sequence[Claim]) -> Evidence:
    history: list[Operation] = []
    with suppress(FcctlError):  # without it, only labels and journals are known
        history = cloud.operations(machine.zone, machine.name)
    return verdicts.start_of(machine, history, claims)


def as_target(machine: Machine, project: AuditedProject) -> CloudTarget:
    """A target for this machine, with the endpoint of its cloud."""
    changes = {"name": "audit", "instance": machine.name, "zones": [machine.zone]}
    return project.targets[0].model_copy(update=changes)


#: The real service forgets operations after two weeks; a machine deleted earlier is not queried again.
REMEMBERED_S = 21 * 86400.0


@dataclass
class AuditedProject:
    """One project of one cloud, and the machine names that fcctl knows there."""

    project: str
    api_endpoint: str | None
    #: Configured targets; targets of runs; machines that only the ledger has.
    targets: list[CloudTarget] = field(default_factory=list)

    def target_of(self, machine: Machine) -> CloudTarget | None:
        return next((t for t in self.targets if t.instance == machine.name), None)

    @property
    def names(self) -> set[str]:
        return {target.instance for target in self.targets}


def projects_of(services: Services, targets: Mapping[str, Target]) -> Iterator[AuditedProject]:
    """The projects to query. A sandbox that is not running has no machines and is left out."""
    places: dict[tuple[str, str | None], AuditedProject] = {}
    for target in [*targets.values(), *_recorded(services, targets)]:
        machine = services.clouds.if_there(target) if isinstance(target, SandboxTarget) else target
        if not isinstance(machine, CloudTarget):
            continue
        known = any(t.api_endpoint == machine.api_endpoint for place in places.values() for t in place.targets)
        if target not in targets.values() and on_loopback(machine.api_endpoint) and not known:
            continue  # an earlier emulator
        key = (machine.project, machine.api_endpoint)
        place = places.setdefault(key, AuditedProject(*key))
        if machine.instance not in place.names:
            place.targets.append(machine)
    yield from places.values()


def _recorded(services: Services, targets: Mapping[str, Target]) -> Iterator[CloudTarget]:
    """The targets of active runs, of pending releases, and of machines in the ledger, whether configured or not."""
    plans: list[dict[str, Any] | None] = []
    with services.unread.noted():
        plans += [services.store.plan_of(run_id) for run_id in services.store.active()]
    with services.unread.noted():
        plans += services.store.pending_releases().values()
    for plan in plans:
        target = target_of_plan(plan)
        if isinstance(target, CloudTarget):
            yield target
    by_project = {target.project: target for target in targets.values() if isinstance(target, CloudTarget)}
    records: list[UsageRecord] = []
    with services.unread.noted():
        records += recent_records(services)
    for record in records:
        if record.emulated:
            continue
        facts: dict[str, Any] = {"name": record.target, "instance": record.name, "zones": [record.zone]}
        facts["api_endpoint"] = record.api_endpoint
        if (alike := by_project.get(record.project)) is not None:
            yield alike.model_copy(update=facts)
            continue
        kind = KINDS.get(record.target_kind)
        if kind is not None and issubclass(kind, CloudTarget):
            with suppress(ValueError):
                yield kind.model_validate({**facts, "project": record.project})


def recent_records(services: Services) -> list[UsageRecord]:
    """The newest usage record of each start, except of machines that were deleted long ago."""
    has_disks = {life.last.machine_id for life in ResourceRecorder(services.spending, services.clock).standing()}
    now = services.clock.now()
    return [
        record
        for record in services.spending.state().starts()
        if now - record.seen < REMEMBERED_S or record.stopped is None or record.instance_id in has_disks
    ]


# ------------------------------------------------------------------------------------ machines that a search created
def with_members(services: Services, targets: Mapping[str, Target]) -> dict[str, Target]:
    """``targets``, each followed by the machines like it that this computer has logged in to, or has a run of.

    Sends no request, so that a machine that was deleted since may be among them.
    """
    store, all_targets = services.store, dict[str, Target]()
    at_work = {((store.plan_of(run_id) or {}).get("target") or {}).get("name") for run_id in store.active()}
    for name, target in targets.items():
        all_targets[name] = target
        for machine in further(targets, name):
            if machine.name in at_work or _is_known(services, machine):
                all_targets[machine.name] = machine
    return all_targets


def _is_known(services: Services, machine: CloudTarget) -> bool:
    if services.book.known(machine.project, machine.instance) is not None:
        return True
    return bool(services.store.rows(target=machine.name, limit=1))


def member_of(targets: Mapping[str, Target], name: str) -> str | None:
    """The target that the machine ``name`` of :func:`with_members` was created like; None if it is a target."""
    return None if name in targets else name.rpartition("-")[0]
