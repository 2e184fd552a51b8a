"""``fcctl hosts audit``: find what is billed in every zone, and say for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from orchestrator.base.errors import DiskError, FcctlError
from orchestrator.hosts.claims import active_on, finding
from orchestrator.hosts.places import AuditedProject, places_of
from orchestrator.hosts.reconcile import Listed, reconcile
from orchestrator.machines.cloud import MANAGED_LABEL, BillableResource, Machine
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import Target
from orchestrator.money import audit as judgement
from orchestrator.money.audit import Finding, Orphan
from orchestrator.money.caps import Budget
from orchestrator.money.prices.storage import monthly_usd, of_a_stopped_machine, target_of
from orchestrator.money.reconcile import Account
from orchestrator.money.usage_recorder import record_resources
from orchestrator.runs.cost import spending as ledger
from orchestrator.runs.cost.lost_owners import settle_lost
from orchestrator.runs.notify.notices import of_left_running
from orchestrator.runs.notify.notifier import tell
from orchestrator.runs.services import Services


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
        return [one for one in self.findings if not one.in_order]

    @property
    def others(self) -> list[Finding]:
        """What is billed by the hour for another workspace, or for a person."""
        return [one for one in self.findings if one.verdict in judgement.OTHERS]


def audit(
    services: Services, targets: Mapping[str, Target], budget: Budget, *, workspace: str, whole: bool = True
) -> Audit:
    """Ask every project that a target, an active run or the ledger names: one list over all zones for each.

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
        machines, unasked = _machines(services, cloud, place)
        unanswered += unasked
        found = [finding(services, cloud, place, machine, budget, workspace) for machine in machines]
        if whole and not any(u.what == "all zones" for u in unasked):
            things, missing = _leftovers(cloud, place)
            found = [_standing(services, place, one, machines, things, budget) for one in found]
            orphans += [
                Orphan(one, monthly_usd(one, budget.prices, target_of(one, place.targets)))
                for one in judgement.orphans(things, place.names)
            ]
            unanswered += missing
            try:
                listed = Listed(place.project, place.targets, machines)
                told, untold = reconcile(services, cloud, listed, budget, before)
                accounts += told
                unanswered += [Unanswered(place.project, what, why) for what, why in untold]
                record_resources(
                    services.spending, services.clock, cloud, place.targets, machines, things, budget.prices,
                    workspace=workspace, whole=not missing,
                )  # fmt: skip
            except DiskError as full:  # what is on for nobody is stopped all the same
                unanswered.append(Unanswered(place.project, "the ledger", said(full)))
            release_lost(services, cloud, place.project)
        findings += found
    return Audit(
        tuple(findings),
        tuple(orphans),
        tuple(unanswered),
        tuple(place.project for place in places),
        tuple(place.project for place in places if on_loopback(place.api_endpoint)),
        tuple(accounts),
    )


def release_lost(services: Services, cloud: Cloud, project: str) -> None:
    """Release what is reserved for machines that are off, and whose run or session has no record any more."""
    for one in settle_lost(services, cloud, project):
        what = f"${one.usd:.2f} that were reserved for {one.owner_id}, whose record is gone, are released"
        services.observer.note(f"{one.instance} is off: {what} (what it did cost: fcctl cost ledger)")


def tell_of_strays(services: Services, found: Audit) -> None:
    """Tell whoever ``[notify]`` names what is on for nobody. A machine of another workspace is its own affair."""
    strays = found.strays
    if not strays:
        return
    machines = [
        {"name": f.machine.name, "zone": f.machine.zone, "project": f.machine.project, "why": f.why,
         "usd_so_far": f.usd_so_far}
        for f in strays
    ]  # fmt: skip
    tell(services, of_left_running(machines, sum(f.usd_per_hour or 0.0 for f in strays)))


def _standing(
    services: Services,
    place: AuditedProject,
    one: Finding,
    machines: Iterable[Machine],
    things: Iterable[BillableResource],
    budget: Budget,
) -> Finding:
    """Of a machine that is off: what it costs all the same, and what must not be lost with it."""
    machine, why = one.machine, one.why
    if machine.billed:
        return one
    newer = judgement.older_copies(machines).get((machine.zone, machine.name))
    if newer is not None:
        why += f"; a copy of it in {newer} was on later"
    waiting = next(active_on(services, machine), None)
    if waiting is not None and newer is None:
        why += f"; what {waiting} has is on its disk (fcctl pull-results --wake {waiting})"
    usd = of_a_stopped_machine(machine, things, budget.prices, place.target_of(machine))
    return replace(one, why=why, usd_per_month=usd)


def _machines(services: Services, cloud: Cloud, place: AuditedProject) -> tuple[list[Machine], list[Unanswered]]:
    """fcctl's machines in all zones, and those that a target names; zones left out of the list are asked singly."""
    try:
        listed, unasked = cloud.machines({})
    except FcctlError as error:
        return [], [Unanswered(place.project, "all zones", said(error))]
    found = {(m.zone, m.name): m for m in listed if _is_known(services, place, m)}
    unanswered = []
    for zone in unasked:
        try:
            for name in place.names:
                if (machine := cloud.machine(zone, name)) is not None:
                    found[zone, name] = machine
            why = "the list over all zones came without it; only the names of targets were asked for"
        except FcctlError as error:
            why = said(error)
        unanswered.append(Unanswered(place.project, zone, why))
    return [found[key] for key in sorted(found)], unanswered


def _is_known(services: Services, place: AuditedProject, machine: Machine) -> bool:
    """By its labels, by its name, or because a workspace of this user logged in to it: labels and names can be lost."""
    if MANAGED_LABEL in machine.labels or machine.name in place.names:
        return True
    known = services.book.known(machine.project, machine.name)
    return known is not None and known.instance_id == machine.id


def _leftovers(cloud: Cloud, place: AuditedProject) -> tuple[list[BillableResource], list[Unanswered]]:
    try:
        found, missing = cloud.leftovers()
    except FcctlError as error:
        return [], [Unanswered(place.project, "disks, snapshots and addresses", said(error))]
    return found, [Unanswered(place.project, what, "not to be read") for what in missing]


def said(error: FcctlError) -> str:
    """An error in one line."""
    return f"{error.message}: {error.cause}" if error.cause else error.message
