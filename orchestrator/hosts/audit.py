"""``fcctl hosts audit``: find what is billed in every zone, say for whom, and stop what is there for nobody."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import wire
from orchestrator.base.errors import DiskError, FcctlError, HostError
from orchestrator.base.journal import JournalEntry
from orchestrator.hosts.reconcile import Listed, reconcile
from orchestrator.hosts.recover import settle
from orchestrator.leases import session_rules as sessions
from orchestrator.machines import sandbox_target as sandbox
from orchestrator.machines.cloud import MANAGED_LABEL, RUN_LABEL, Leftover, Machine
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.provision.release import Hold, release
from orchestrator.machines.targets import GcpTarget, SandboxTarget, Target
from orchestrator.money import audit as judgement
from orchestrator.money.audit import Claim, Finding, Orphan
from orchestrator.money.caps import Budget
from orchestrator.money.reconcile import Account
from orchestrator.money.record_billable import remember
from orchestrator.money.storage_prices import monthly_usd, target_of
from orchestrator.runs.cost import spending as ledger
from orchestrator.runs.cost.lost_owners import settle_lost
from orchestrator.runs.notices import of_left_running
from orchestrator.runs.notifier import tell
from orchestrator.runs.services import Services

_LOG = logging.getLogger(__name__)
_TARGET: TypeAdapter[Target] = TypeAdapter(Target)


@dataclass
class Place:
    """One project of one cloud, and the names that fcctl knows there."""

    project: str
    api_endpoint: str | None
    #: Configured targets, and those of runs whose target is configured no more.
    targets: list[GcpTarget] = field(default_factory=list)

    def target_of(self, machine: Machine) -> GcpTarget | None:
        return next((t for t in self.targets if t.instance == machine.name), None)

    @property
    def names(self) -> set[str]:
        return {target.instance for target in self.targets}


@dataclass(frozen=True)
class Unanswered:
    """A part of a cloud about which nothing is known."""

    project: str
    what: str
    why: str


@dataclass(frozen=True)
class Audit:
    findings: tuple[Finding, ...]
    leftovers: tuple[Orphan, ...]
    unanswered: tuple[Unanswered, ...]
    #: The projects that were asked.
    projects: tuple[str, ...]
    #: Those of them whose cloud is an emulator on this computer: nobody pays for what is on there.
    emulated: tuple[str, ...] = ()
    #: The ledger against the cloud's own books, by machine.
    accounts: tuple[Account, ...] = ()

    @property
    def strays(self) -> list[Finding]:
        """What is billed by the hour, for nobody that is known."""
        return [finding for finding in self.findings if not finding.in_order]


def audit(
    services: Services, targets: Mapping[str, Target], budget: Budget, *, workspace: str, whole: bool = True
) -> Audit:
    """Ask every project that a target, or a run that is not complete, names: one list over all zones for each.

    Args:
        workspace: this one's name as labels have it.
        whole: whether to look for disks, snapshots and addresses too, and to reconcile the ledger with the cloud.
    """
    findings: list[Finding] = []
    orphans: list[Orphan] = []
    unanswered: list[Unanswered] = []
    accounts: list[Account] = []
    before = ledger.lines(services) if whole else []
    places = list(places_of(services, targets))
    for place in places:
        cloud = services.clouds.open(place.targets[0])
        machines, unasked = _machines(cloud, place)
        unanswered += unasked
        for machine in machines:
            rate = judgement.rate_of(machine, place.target_of(machine), budget)
            claims = claims_on(services, place, machine)
            findings.append(judgement.judge(machine, claims, rate, services.clock.now(), workspace))
        if whole and not any(u.what == "all zones" for u in unasked):
            found, missing = _leftovers(cloud, place)
            orphans += [
                Orphan(one, monthly_usd(one, budget.prices, target_of(one, place.targets)))
                for one in judgement.orphans(found, place.names)
            ]
            unanswered += missing
            try:
                listed = Listed(place.project, place.targets, machines)
                told, untold = reconcile(services, cloud, listed, budget, before)
                accounts += told
                unanswered += [Unanswered(place.project, what, why) for what, why in untold]
                remember(
                    services.sightings, services.clock, cloud, place.targets, machines, found, budget.prices,
                    workspace=workspace, whole=not missing,
                )  # fmt: skip
            except DiskError as full:  # what is on for nobody is stopped all the same
                unanswered.append(Unanswered(place.project, "the ledger", _said(full)))
            _settle_lost(services, cloud, place.project)
    return Audit(
        tuple(findings),
        tuple(orphans),
        tuple(unanswered),
        tuple(place.project for place in places),
        tuple(place.project for place in places if on_loopback(place.api_endpoint)),
        tuple(accounts),
    )


def _settle_lost(services: Services, cloud: Cloud, project: str) -> None:
    for one in settle_lost(services, cloud, project):
        what = f"${one.usd:.2f} that were reserved for {one.owner_id}, whose record is gone, are released"
        services.observer.note(f"{one.instance} is off: {what} (what it did cost: fcctl cost ledger)")


def tell_of_strays(services: Services, found: Audit) -> None:
    """Tell whoever ``[notify]`` names what is on for nobody. A machine of another workspace is its own affair."""
    strays = [f for f in found.strays if f.verdict == "stray"]
    if not strays:
        return
    machines = [
        {"name": f.machine.name, "zone": f.machine.zone, "project": f.machine.project, "why": f.why,
         "usd_so_far": f.usd_so_far}
        for f in strays
    ]  # fmt: skip
    tell(services, of_left_running(machines, sum(f.usd_per_hour or 0.0 for f in strays)))


# --------------------------------------------------------------------------------------------------- where to look
def places_of(services: Services, targets: Mapping[str, Target]) -> Iterator[Place]:
    """The projects to ask. The sandbox is asked if it is awake; one that sleeps runs nothing."""
    places: dict[tuple[str, str | None], Place] = {}
    for target in [*targets.values(), *_recorded(services)]:
        machine = services.clouds.if_there(target) if isinstance(target, SandboxTarget) else target
        if not isinstance(machine, GcpTarget):
            continue
        known = any(t.api_endpoint == machine.api_endpoint for place in places.values() for t in place.targets)
        if target not in targets.values() and on_loopback(machine.api_endpoint) and not known:
            continue  # an emulator of yesterday
        key = (machine.project, machine.api_endpoint)
        place = places.setdefault(key, Place(*key))
        if machine.instance not in place.names:
            place.targets.append(machine)
    yield from places.values()


def _recorded(services: Services) -> Iterator[Target]:
    """The targets of runs that are not complete, or whose machine could not be stopped, whatever the configuration
    says by now."""
    plans = [services.store.plan_of(run_id) for run_id in services.store.active()]
    for plan in [*plans, *services.store.owed().values()]:
        target = _target_of(plan)
        if isinstance(target, GcpTarget):
            yield target


def _target_of(plan: Mapping[str, Any] | None) -> Target | None:
    try:
        return _TARGET.validate_python((plan or {}).get("target"))
    except ValidationError:
        return None


def _machines(cloud: Cloud, place: Place) -> tuple[list[Machine], list[Unanswered]]:
    """fcctl's machines in all zones, and those that a target names; zones left out of the list are asked singly."""
    try:
        listed, unasked = cloud.machines({})
    except FcctlError as error:
        return [], [Unanswered(place.project, "all zones", _said(error))]
    found = {(m.zone, m.name): m for m in listed if MANAGED_LABEL in m.labels or m.name in place.names}
    unanswered = []
    for zone in unasked:
        try:
            for name in place.names:
                if (machine := cloud.machine(zone, name)) is not None:
                    found[zone, name] = machine
            why = "the list over all zones came without it; only the names of targets were asked for"
        except FcctlError as error:
            why = _said(error)
        unanswered.append(Unanswered(place.project, zone, why))
    return [found[key] for key in sorted(found)], unanswered


def _leftovers(cloud: Cloud, place: Place) -> tuple[list[Leftover], list[Unanswered]]:
    try:
        found, missing = cloud.leftovers()
    except FcctlError as error:
        return [], [Unanswered(place.project, "disks, snapshots and addresses", _said(error))]
    return found, [Unanswered(place.project, what, "not to be read") for what in missing]


def _said(error: FcctlError) -> str:
    return f"{error.message}: {error.cause}" if error.cause else error.message


# ------------------------------------------------------------------------------------------------------ for whom
def claims_on(services: Services, place: Place, machine: Machine) -> list[Claim]:
    """What the runs of this workspace have to do with the machine, the live ones first."""
    if not machine.billed:
        return []
    claims = [_active_claim(services, run_id, machine) for run_id in _active_on(services, machine)]
    if any(claim.state == "left" for claim in claims):
        alive = _alive_on(services, place, machine)
        claims = [
            Claim(c.run_id, "alive", c.line, c.kept_until) if c.state == "left" and c.run_id in alive else c
            for c in claims
        ]
    claims += _sessions_on(services, machine)
    labelled = machine.labels.get(RUN_LABEL, "")
    if services.store.is_complete(labelled):
        claims.append(_over(labelled, services.store.journal_of(labelled)))
    order = ("followed", "alive", "session", "left", "over")
    return sorted(claims, key=lambda claim: order.index(claim.state))


def _sessions_on(services: Services, machine: Machine) -> Iterator[Claim]:
    """The sessions that are not over on this machine; one whose fcctl died while it woke or stopped it is ``left``."""
    own_book = services.sessions
    for book, session_id in [*((own_book, name) for name in own_book.open()), *own_book.abroad()]:
        plan, entries = book.plan_of(session_id), book.journal_of(session_id)
        if not _means(_target_of(plan), machine):
            continue
        held = book.claim(session_id)
        if held is None:
            yield Claim(session_id, "followed", _line(entries, machine))
            continue
        held.release()
        own = sessions.machine_of(entries)
        is_it = own is not None and own.instance_id == machine.id and own.started == machine.started
        is_open = sessions.stage(entries) == "open" and is_it
        if book is not own_book and not is_open:
            continue  # what another workspace left half way is its own affair
        yield Claim(session_id, "session" if is_open else "left", _line(entries, machine))


def _active_on(services: Services, machine: Machine) -> Iterator[str]:
    for run_id in services.store.active():
        if _means(_target_of(services.store.plan_of(run_id)), machine):
            yield run_id


def _means(target: Target | None, machine: Machine) -> bool:
    if isinstance(target, SandboxTarget):
        return (machine.project, machine.name) == (sandbox.PROJECT, sandbox.INSTANCE)
    found = (machine.project, machine.name)
    return isinstance(target, GcpTarget) and (target.project, target.instance) == found


def _active_claim(services: Services, run_id: str, machine: Machine) -> Claim:
    entries = services.store.journal_of(run_id)
    try:
        claimed = services.store.claim(run_id)
    except FcctlError:
        return _over(run_id, entries)  # completed a moment ago
    if claimed is None:
        return Claim(run_id, "followed", _line(entries, machine))
    claimed.release()
    return Claim(run_id, "left", _line(entries, machine))


def _over(run_id: str, entries: Sequence[JournalEntry]) -> Claim:
    last = next((e for e in reversed(entries) if e.kind in ("released", "unreleased")), None)
    until = last.data.get("until") if last is not None and last.data.get("how") == "kept" else None
    return Claim(run_id, "over", _text(last) if last is not None else None, until)


def _line(entries: Sequence[JournalEntry], machine: Machine) -> str | None:
    """The newest line that is about the machine, else the newest of all."""
    about = [e for e in entries if e.data.get("name") == machine.name or e.kind in ("acquired", "release", "released")]
    newest = (about or list(entries))[-1:]
    return _text(newest[0]) if newest else None


def _text(entry: JournalEntry) -> str:
    from datetime import UTC, datetime

    words = [str(entry.data[key]) for key in ("action", "how", "zone") if entry.data.get(key)]
    moment = datetime.fromtimestamp(entry.time, UTC).strftime("%H:%M:%S UTC")
    return f"'{' '.join([entry.kind, *words])}' at {moment} (line {entry.seq})"


def _alive_on(services: Services, place: Place, machine: Machine) -> set[str]:
    """The runs that go on there, as the host program says; none if it does not answer."""
    target = place.target_of(machine)
    known = services.book.known(machine.project, machine.name)
    if target is None or known is None or known.instance_id != machine.id:
        return set()
    try:
        session = services.hosts.connect(target)
    except HostError:
        return set()
    try:
        return {run.run_id for run in session.status(None) if run.status not in wire.RUN_ENDINGS}
    except HostError:
        return set()
    finally:
        session.close()


# ------------------------------------------------------------------------------------------------------- stopping
@dataclass(frozen=True)
class Ended:
    """What became of one machine that was to be stopped."""

    finding: Finding
    stopped: bool
    why: str


def stop(services: Services, targets: Mapping[str, Target], findings: Iterable[Finding]) -> list[Ended]:
    """Stop machines, each until it is off. Runs that an fcctl left on them are brought home first, as far as they can.

    A machine that cannot be stopped does not keep the others from it.
    """
    places = list(places_of(services, targets))
    ended: list[Ended] = []
    for finding in findings:
        machine = finding.machine
        left = list(_active_on(services, machine))
        if left:
            settle(services, left)
        target = _as_target(machine, places)
        try:
            done = release(services, target, [Hold(machine.zone, machine.id)], "stop", _log)
        except FcctlError as error:
            ended.append(Ended(finding, False, _said(error)))
        else:
            ended.append(Ended(finding, True, done[0].reason or done[0].how))
            for run_id, debt in services.store.owed().items():
                if _means(_target_of(debt), machine):
                    services.store.paid(run_id)
    for project in {one.finding.machine.project for one in ended if one.stopped}:
        place = next(p for p in places if p.project == project)
        _settle_lost(services, services.clouds.open(place.targets[0]), project)
    return ended


def _as_target(machine: Machine, places: Sequence[Place]) -> GcpTarget:
    """A target that means this very machine, with the endpoint of the cloud it is in."""
    place = next(p for p in places if p.project == machine.project)
    return GcpTarget(
        name="audit",
        project=machine.project,
        instance=machine.name,
        zones=[machine.zone],
        api_endpoint=place.api_endpoint,
    )


def _log(kind: str, **data: object) -> None:
    """Stopping needs no journal: whoever is killed at it leaves a machine that the next audit finds."""
    _LOG.info("%s %s", kind, data)
