"""``fcctl hosts audit``: lists what is billed in every zone, and its owner."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.base.errors import ConflictError, DiskError, FcctlError, NotFoundError, UsageError
from orchestrator.hosts.claims import (
    AuditedProject,
    active_on,
    as_target,
    await_requests,
    finding,
    projects_of,
    recent_records,
)
from orchestrator.hosts.recover import recover
from orchestrator.machines.cloud import MANAGED_LABEL, BillableResource, Machine, Operation
from orchestrator.machines.interfaces import Cloud
from orchestrator.machines.power_history import NEAR_START_S, PowerInterval, times_on
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.provision.release import ReleaseRequest, release
from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.money.audit import OTHERS, Account, Finding, account, learned
from orchestrator.money.billable import Orphan, older_copies, orphans, target_of
from orchestrator.money.ledger import Line, UsageRecord, spans
from orchestrator.money.prices.machine import monthly_usd, of_a_stopped_machine
from orchestrator.money.usage_recorder import ResourceRecorder, record_resources, usage_of
from orchestrator.runs.cost import spending as ledger
from orchestrator.runs.cost.rebuild import settle_lost
from orchestrator.runs.machine.pending_releases import is_for
from orchestrator.runs.notices import of_left_running
from orchestrator.runs.services import Services

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unanswered:
    """A part of a cloud that could not be queried."""

    project: str
    what: str
    why: str
    #: What to type next, if anything helps.
    hint: str | None = None


@dataclass(frozen=True)
class Audit:
    findings: tuple[Finding, ...]
    leftovers: tuple[Orphan, ...]
    unanswered: tuple[Unanswered, ...]
    #: The projects that were queried.
    projects: tuple[str, ...]
    #: Those of them in an emulator on this computer, whose machines cost nothing.
    emulated: tuple[str, ...] = ()
    #: The ledger compared with the cloud's operations, by machine.
    accounts: tuple[Account, ...] = ()

    @property
    def strays(self) -> list[Finding]:
        """Machines that are billed by the hour and have no known owner."""
        return [one for one in self.findings if not one.in_order]

    @property
    def others(self) -> list[Finding]:
        """Machines that are billed by the hour for another workspace or a person."""
        return [one for one in self.findings if one.verdict in OTHERS]


def audit(services: Services, targets: Mapping[str, Target], *, workspace: str, whole: bool = True) -> Audit:
    """Queries every project that a target, an active run or the ledger names, with one list over all zones for each.

    Args:
        workspace: this one's name as labels have it.
        whole: whether to list disks, snapshots and addresses too, and to reconcile the ledger with the cloud.
    """
    findings: list[Finding] = []
    orphaned: list[Orphan] = []
    unanswered: list[Unanswered] = []
    accounts: list[Account] = []
    before: list[Line] = []
    with services.unread.noted():
        before += ledger.lines(services) if whole else []
    places = list(projects_of(services, targets))
    if whole:
        await_requests(services, (target for place in places for target in place.targets))
    for place in places:
        project = _ProjectAudit(services, place, unanswered)
        machines = project.machines()
        findings_here = [finding(services, project.cloud, place, machine, workspace) for machine in machines or ()]
        if whole and machines is not None:
            things, is_complete = project.resources()
            findings_here = [project.with_storage_cost(one, machines, things) for one in findings_here]
            orphaned += [
                Orphan(one, monthly_usd(one, services.budget.prices, target_of(one, place.targets)))
                for one in orphans(things, place.names)
            ]
            try:
                accounts += project.reconcile(machines, before)
                record_resources(
                    services.spending, services.clock, project.cloud, place.targets, machines, things,
                    services.budget.prices, workspace=workspace, whole=is_complete,
                )  # fmt: skip
            except (ConflictError, DiskError) as error:  # machines without an owner are stopped all the same
                unanswered.append(Unanswered(place.project, "the ledger", error.one_line))
            release_lost(services, project.cloud, place.targets)
        findings += [replace(one, api_endpoint=place.api_endpoint) for one in findings_here]
    unanswered += [Unanswered("this computer", "runs and sessions", line) for line in services.unread.take()]
    return Audit(
        tuple(findings),
        tuple(orphaned),
        tuple(unanswered),
        tuple(place.project for place in places),
        tuple(place.project for place in places if on_loopback(place.api_endpoint)),
        tuple(accounts),
    )


def release_lost(services: Services, cloud: Cloud, targets: Sequence[CloudTarget]) -> None:
    """Releases reservations for machines that are off and whose run or session has no record any more."""
    with suppress(ConflictError, DiskError):  # the next audit does; what is on is stopped in any case
        for one in settle_lost(services, cloud, targets):
            what = f"${one.usd:.2f} was reserved for {one.owner_id}, which no longer has a record; fcctl released it"
            services.observer.note(f"{one.instance} is off: {what} (its actual cost: fcctl cost ledger)")


def notify_of_strays(services: Services, result: Audit) -> None:
    """Notifies the addresses of ``[notify]`` of machines without an owner; not of those of another workspace."""
    strays = result.strays
    if not strays:
        return
    machines = [
        {"name": f.machine.name, "zone": f.machine.zone, "project": f.machine.project, "why": f.why,
         "usd_so_far": f.usd_so_far}
        for f in strays
    ]  # fmt: skip
    services.notify(of_left_running(machines, sum(f.usd_per_hour or 0.0 for f in strays)))


class _ProjectAudit:
    """The audit of one project; what could not be queried is added to ``unanswered``."""

    def __init__(self, services: Services, place: AuditedProject, unanswered: list[Unanswered]) -> None:
        self._services, self._place, self._unanswered = services, place, unanswered
        self.cloud = services.clouds.open(place.targets[0])

    def machines(self) -> list[Machine] | None:
        """fcctl's machines in all zones, and those that a target names; None: there is no list. The list may be behind
        by a minute and lack zones, so targets' machines, and all of such a zone, are read by themselves."""
        try:
            listed, unasked = self.cloud.machines({})
        except FcctlError as error:
            self._lacks("all zones", error.one_line, error.hint)
            return None
        machines = {(m.zone, m.name): m for m in listed if self._is_known(m)}
        lacking = "the cloud's list of all zones lacks this zone; only the machines that targets name were checked"
        why = dict.fromkeys(unasked, lacking)
        named = {(zone, target.instance) for target in self._place.targets for zone in target.zones}
        for zone, name in sorted({*named, *((zone, name) for zone in unasked for name in self._place.names)}):
            try:
                machine = self.cloud.machine(zone, name)
            except FcctlError as error:
                why[zone] = error.one_line
                continue
            if machine is not None:
                machines[zone, name] = machine
            else:
                machines.pop((zone, name), None)
        for zone, text in why.items():
            self._lacks(zone, text)
        return [machines[key] for key in sorted(machines)]

    def _lacks(self, what: str, why: str, hint: str | None = None) -> None:
        self._unanswered.append(Unanswered(self._place.project, what, why, hint))

    def _is_known(self, machine: Machine) -> bool:
        """Identifies a machine by its labels, its name, or an earlier login: labels and names can be changed."""
        if MANAGED_LABEL in machine.labels or machine.name in self._place.names:
            return True
        known = self._services.book.known(machine.project, machine.name)
        return known is not None and known.instance_id == machine.id

    def resources(self) -> tuple[list[BillableResource], bool]:
        """The project's disks, snapshots and addresses, and whether these are all."""
        try:
            resources, missing = self.cloud.billable_resources()
        except FcctlError as error:
            self._lacks("disks, snapshots and addresses", error.one_line, error.hint)
            return [], False
        for what in missing:
            self._lacks(what, "the cloud did not list them")
        return resources, not missing

    def with_storage_cost(
        self, one: Finding, machines: Iterable[Machine], things: Iterable[BillableResource]
    ) -> Finding:
        """Adds the monthly cost of a stopped machine, and what would be lost with its disk."""
        machine, why = one.machine, one.why
        if machine.billed:
            return one
        newer = older_copies(machines).get((machine.zone, machine.name))
        if newer is not None:
            why += f"; its copy in {newer} was used later"
        waiting = next(iter(active_on(self._services, machine)), None)
        if waiting is not None and newer is None:
            why += f"; the results of {waiting} are on its disk (fcctl pull-results --wake {waiting})"
        prices, target = self._services.budget.prices, self._place.target_of(machine)
        return replace(one, why=why, usd_per_month=of_a_stopped_machine(machine, things, prices, target))

    def reconcile(self, machines: Sequence[Machine], before: Sequence[Line]) -> Iterator[Account]:
        """Records what the cloud says of every machine of the ledger, and compares it with the ledger ``before``.
        ``machines`` are those that the cloud lists."""
        book, project = self._services.spending, self._place.project
        records = [record for record in book.usage() if record.project == project]
        known = {(r.zone, r.name) for r in recent_records(self._services) if r.project == project}
        named = {(m.zone, m.name) for m in machines if m.name in self._place.names}
        found = []
        for zone, name in sorted(known | named):
            history: list[Operation] = []
            try:
                history = self.cloud.operations(zone, name)
            except FcctlError as error:
                self._lacks(f"the operations on {name} in {zone}", error.message)
            listed = [one for one in machines if (one.zone, one.name) == (zone, name)]
            ids = [r.instance_id for r in records if (r.zone, r.name) == (zone, name)] + [one.id for one in listed]
            for instance_id in dict.fromkeys(ids):
                own = [record for record in records if record.instance_id == instance_id]
                found.append(self._learn(own, listed, (zone, name, instance_id), history))
            ResourceRecorder(book, self._services.clock).record_operations(history)
        after, records = ledger.lines(self._services), book.usage()
        for record, there, earlier in filter(None, found):
            own_spans = spans(r for r in records if r.instance_id == record.instance_id)
            yield account(record, there, own_spans, before, after, earlier)

    def _learn(
        self, known: list[UsageRecord], listed: Sequence[Machine], which: tuple[str, str, str],
        history: Sequence[Operation],
    ) -> tuple[UsageRecord, bool | None, list[PowerInterval]] | None:  # fmt: skip
        """Records what the cloud says of one machine (zone, name, id). Returns its newest record, whether it exists
        and when it was on before the ledger knew it; None if it was never on."""
        (zone, name, instance_id), now, book = which, self._services.clock.now(), self._services.spending
        machine = next((one for one in listed if one.id == instance_id), None)
        there: bool | None = machine is not None
        if machine is None:  # one that no target names any more is in no list
            try:
                seen = self.cloud.machine(zone, name)
                machine, there = (seen, True) if seen is not None and seen.id == instance_id else (None, False)
            except FcctlError:
                there = None
        target = self._place.target_of(machine) if machine is not None else None
        if machine is not None and target is not None and machine.started is not None:
            known.append(usage_of(target, machine, self._services.budget, now))
            book.add_usage(known[-1])
        if not known:
            return None
        times = times_on(history, instance_id, machine)
        for record in learned(known, history, times, there, now):
            book.add_usage(record)
        began = min(record.started for record in known) - NEAR_START_S
        return known[-1], there, [time for time in times if time.started < began]


# --------------------------------------------------------------------------------------------------------------- --stop
@dataclass(frozen=True)
class StopResult:
    """The result for one machine that was to be stopped."""

    finding: Finding
    stopped: bool
    why: str
    #: It has an owner by now, and was kept on.
    kept: bool = False


def named(audit: Audit, names: Sequence[str]) -> list[Finding]:
    """The machines of others with these names; an ambiguous name is typed with its zone, ``ZONE/NAME``. Raises
    NotFoundError: there is none of that name; UsageError: there are several."""
    chosen = []
    for name in names:
        candidates = [*audit.others, *audit.strays]
        same = [f for f in candidates if name in (f.machine.name, f"{f.machine.zone}/{f.machine.name}")]
        if not same:
            raise NotFoundError(
                f"fcctl hosts audit lists no machine {name} that another workspace or a person uses",
                hint="to see which machines are on, and who uses them: fcctl hosts audit",
            )
        if len(same) > 1:
            places = " or ".join(f"{f.machine.zone}/{f.machine.name}" for f in same)
            raise UsageError(f"{len(same)} machines have the name {name}", hint=f"name one with its zone: {places}")
        chosen += [
            f for f in same if f.verdict in OTHERS and f not in chosen
        ]  # machines without an owner are stopped in any case
    return chosen


def stop(
    services: Services, targets: Mapping[str, Target], doomed: Iterable[Finding], *, workspace: str,
) -> list[StopResult]:  # fmt: skip
    """Stops machines and waits until each is off. Runs that an fcctl left on them are collected first if possible.

    Each machine is checked again just before: one that has an owner by then is kept on. A machine that cannot be
    stopped does not block the others.
    """
    places = list(projects_of(services, targets))
    ended = []
    for one in doomed:
        machine = one.machine
        place = next(p for p in places if (p.project, p.api_endpoint) == (machine.project, one.api_endpoint))
        try:
            cloud = services.clouds.open(place.targets[0])
            now = cloud.machine(machine.zone, machine.name)
            if now is not None and now.id == machine.id and now.billed:
                again = finding(services, cloud, place, now, workspace)
                if again.verdict not in (one.verdict, "off", "stray"):
                    ended.append(StopResult(one, False, again.why, kept=True))
                    continue
            if left := active_on(services, machine):
                recover(services, left)
            target = place.target_of(machine) or as_target(machine, place)
            done = release(services, target, [ReleaseRequest(machine.zone, machine.id)], "stop", log_change)
        except FcctlError as error:
            ended.append(StopResult(one, False, error.one_line))
        else:
            ended.append(StopResult(one, True, done[0].reason or done[0].how))
            with services.unread.noted():
                for run_id, plan in services.store.pending_releases().items():
                    if is_for(plan, machine.project, machine.name):
                        services.store.remove_pending_release(run_id)
            release_lost(services, cloud, place.targets)
    return ended


def log_change(kind: str, **data: object) -> None:
    """Needs no journal: after a crash the next audit finds the machine."""
    _LOG.info("%s %s", kind, data)
