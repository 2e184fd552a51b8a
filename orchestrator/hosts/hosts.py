"""``fcctl hosts ls``, ``up`` and ``down``: the machines of the targets, without a run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from orchestrator.base.errors import BudgetError, CloudError, ConfigError, ConflictError, FcctlError
from orchestrator.base.journal import JournalEntry
from orchestrator.hosts.audit import audit, log_change
from orchestrator.hosts.claims import (
    AuditedProject,
    active_runs,
    await_requests,
    claims_on,
    finding,
    member_of,
    projects_of,
    with_members,
)
from orchestrator.leases.machine_lease import MachineLease
from orchestrator.leases.session_rules import open_on
from orchestrator.machines.cloud import RUN_LABEL, WORKSPACE_LABEL, Endpoint, Machine, Power
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.connect.ssh.terminal import remove_entry
from orchestrator.machines.power_history import our_stop, why_stopped
from orchestrator.machines.provision.actions import UP_PREFIX, MachineRequest, PlannedPrice, Purpose
from orchestrator.machines.provision.ready import CHANGE_LIMIT_S, Changes, Log, find_machines
from orchestrator.machines.provision.release import Released, ReleaseRequest, find_settled, release
from orchestrator.machines.shutdown_timer import move_later
from orchestrator.machines.targets import CloudTarget, LocalTarget, SandboxTarget, SshTarget, Target
from orchestrator.money.audit import Finding, rate_of
from orchestrator.money.caps import Budget, fenced_worst_case_usd, is_start
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.prices.rates import hourly_plan, usd_per_hour
from orchestrator.money.usage_recorder import is_emulated
from orchestrator.runs.cost.estimate import as_last_seen
from orchestrator.runs.cost.owners import release_kept, reservation
from orchestrator.runs.cost.rebuild import settle_lost
from orchestrator.runs.cost.spending import reserve
from orchestrator.runs.machine.left_on import LeftOn
from orchestrator.runs.services import Services
from orchestrator.sessions.session import recover

#: The default of ``hosts up --minutes``.
DEFAULT_MINUTES = 60.0
#: The state of a target without a machine in the cloud.
ABSENT = "absent"


# ----------------------------------------------------------------------------------------------------------------- ls
@dataclass(frozen=True)
class Row:
    """A target, or a machine that no target names; with a ``finding`` if the cloud listed it."""

    target: str | None
    kind: str
    state: str
    finding: Finding | None = None
    #: Address or name to log in to, as far as known.
    address: str | None = None
    usd_per_hour: float | None = None
    note: str | None = None
    #: The target like which a search created this machine.
    member_of: str | None = None


def rows(services: Services, targets: Mapping[str, Target], *, workspace: str) -> list[Row]:
    """Every target with its machines and the machines that searches created like them; queries the clouds."""
    listed: list[Row] = []
    for name, target in with_members(services, targets).items():
        if (like := member_of(targets, name)) is not None and isinstance(target, CloudTarget):
            there = _cloud_rows(services, name, target, workspace)
            # A deleted member is not listed; a target is, because its machine can be created.
            listed += [replace(row, member_of=like) for row in there if row.state != ABSENT]
        elif isinstance(target, CloudTarget | SandboxTarget):
            listed += _cloud_rows(services, name, target, workspace)
        else:
            listed.append(_plain_row(services, name, target))
    return listed


def rows_known(services: Services, targets: Mapping[str, Target]) -> list[Row]:
    """The same from this computer's cache; sends no request."""
    listed: list[Row] = []
    for name, target in with_members(services, targets).items():
        if isinstance(target, LocalTarget | SshTarget):
            listed.append(_plain_row(services, name, target))
            continue
        known = services.book.known(target.project, target.instance) if isinstance(target, CloudTarget) else None
        state = "not checked" if known is None else f"last seen in {known.zone}"
        address = None if known is None else known.address
        price, like = usd_per_hour(target, as_last_seen(services, target, services.budget)), member_of(targets, name)
        listed.append(Row(name, target.kind, state, address=address, usd_per_hour=price, member_of=like))
    return listed


def unnamed_rows(services: Services, targets: Mapping[str, Target], *, workspace: str) -> list[Row]:
    """Machines of fcctl in the targets' projects that no target names and :func:`rows` does not list."""
    listed = with_members(services, targets).values()
    named = {target.instance for target in listed if isinstance(target, CloudTarget)}
    kinds = {place.project: place.targets[0].kind for place in projects_of(services, targets)}
    seen = audit(services, targets, workspace=workspace, whole=False)
    return [
        _row(None, kinds.get(f.machine.project, "unknown"), f) for f in seen.findings if f.machine.name not in named
    ]


def _plain_row(services: Services, name: str, target: Target) -> Row:
    price = usd_per_hour(target, services.budget) or None
    if isinstance(target, SshTarget):
        note = "fcctl does not start or stop this machine"
        return Row(name, "ssh", "-", address=target.host, usd_per_hour=price, note=note)
    return Row(name, target.kind, "here", usd_per_hour=price, note="this computer")


def _cloud_rows(services: Services, name: str, target: CloudTarget | SandboxTarget, workspace: str) -> list[Row]:
    price = usd_per_hour(target, services.budget)
    try:
        machine_target = services.clouds.if_there(target)
        if machine_target is None:
            return [Row(name, target.kind, "off", usd_per_hour=price, note="the next run starts it")]
        cloud = services.clouds.open(machine_target)
        machines = find_machines(cloud, machine_target)
    except FcctlError as error:
        note = f"{error.message}: {error.hint}" if error.hint else error.one_line
        return [Row(name, target.kind, "unknown", usd_per_hour=price, note=note)]
    if not machines:
        note = "does not exist yet; the first run creates it"
        if not machine_target.create:
            note = "does not exist, and `create` is false"
        return [Row(name, target.kind, ABSENT, usd_per_hour=price, note=note)]
    place = AuditedProject(machine_target.project, machine_target.api_endpoint, [machine_target])
    return [
        _row(
            name,
            target.kind,
            finding(services, cloud, place, machine, workspace),
            _why_off(services, machine_target, machine),
        )
        for machine in machines
    ]


def _row(target: str | None, kind: str, finding: Finding, note: str | None = None) -> Row:
    machine = finding.machine
    address = machine.external_ip or machine.internal_ip
    return Row(target, kind, machine.status, finding, address, finding.usd_per_hour, note or finding.why)


def _why_off(services: Services, target: CloudTarget, machine: Machine) -> str | None:
    """Why the machine stopped, if the cloud still lists the operation."""
    if machine.power is not Power.STOPPED:
        return None
    try:
        history = services.clouds.open(target).operations(machine.zone, machine.name)
    except FcctlError:
        return None
    ours = our_stop(services.book, machine.project, machine.name)
    stopped = why_stopped(machine.name, machine.id, machine, history, None, our_stop=ours) if history else None
    return None if stopped is None or stopped.how == "unknown" else stopped.message


# ----------------------------------------------------------------------------------------------------------------- up
@dataclass(frozen=True)
class UpPlan:
    """What ``hosts up`` can cost at most."""

    target: str
    minutes: float
    #: In the most expensive zone, with disks and address.
    usd_per_hour: float
    worst_usd: float
    #: The part for disks and address.
    rest_usd_per_hour: float


@dataclass(frozen=True)
class StartResult:
    machine: Machine
    way: Endpoint
    started: bool  # by this command


def up_plan(target: CloudTarget, budget: Budget, minutes: float | None) -> UpPlan:
    """Raises: ConfigError, BudgetError: longer, or dearer, than is allowed."""
    wanted = min(DEFAULT_MINUTES, target.max_run_minutes) if minutes is None else minutes
    if wanted > target.max_run_minutes:
        raise ConfigError(
            f"{target.name} may run at most {target.max_run_minutes:g} minutes; you asked for {wanted:g}",
            hint=f"lower --minutes, or raise max_run_minutes in [targets.{target.name}]",
        )
    hourly = hourly_plan(target, budget)
    rate = hourly.worst_rate
    plan = UpPlan(target.name, wanted, rate, fenced_worst_case_usd(wanted * 60, rate), hourly.rest_rate)
    if budget.per_run_usd is not None and plan.worst_usd > budget.per_run_usd:
        raise BudgetError(
            f"{wanted:g} minutes of {target.name} may cost up to ${plan.worst_usd:.2f}; the cap for one start is "
            f"${budget.per_run_usd:.2f}",
            cause=f"${rate:.2f} an hour in the worst case; the sum includes the late-stop allowance and the cloud's "
            f"minimum charge",
            hint="lower --minutes, or raise per_run_usd in [budget]",
        )
    return plan


def up(services: Services, target: CloudTarget, plan: UpPlan, *, workspace: str) -> StartResult:
    """Starts the machine with a max run duration of ``plan.minutes`` and waits until a command runs on it. After a
    failure the machine is stopped again.

    Raises BudgetError: a cap of the day, the month or the project could be exceeded, and nothing was started;
    FcctlError: what the cloud or the machine reports.
    """
    purpose = Purpose(f"{UP_PREFIX}{int(services.clock.now())}", workspace)
    # Two of one second, maybe in two workspaces, are two reservations.
    name = f"{purpose.label}-{target.name}-{secrets.token_hex(3)}"
    start = reservation(services, "up", name, target, plan.worst_usd)
    start = start.model_copy(update={"unasked": True})
    lines: list[JournalEntry] = []

    def log(kind: str, **data: object) -> None:
        """Needs no file: after a crash the book has who started the machine, and its max run duration ends it."""
        nonlocal start
        entry = JournalEntry(seq=len(lines) + 1, time=services.clock.now(), kind=kind, data=data)
        if is_start(entry):  # a reservation that was not asked for long is not kept: each request makes it anew
            start = start.model_copy(update={"unasked": False, "at": entry.time})
            reserve(services, start)
        log_change(kind, **data)
        lines.append(entry)

    planned = PlannedPrice(plan.usd_per_hour - plan.rest_usd_per_hour, plan.rest_usd_per_hour)
    request = MachineRequest(
        max_run_s=int(plan.minutes * 60), need_s=0.0, planned=None if is_emulated(target) else planned
    )
    reserve(services, start)
    with ReconnectingHost(services.hosts, target, services.clock, services.observer) as host:
        lease = MachineLease(services, target, purpose, host, lambda: lines, log)
        try:
            _label_owner(services, target, purpose, log)
            got, way = lease.start(request)
            if not got.started:  # its timer is that of what was on it before
                with suppress(FcctlError):
                    move_later(host, host.host_now() + plan.minutes * 60, lease.token, "fcctl hosts up")
        except BaseException:
            if lease.release_requests():
                services.observer.note(f"{target.instance} could not be used; fcctl stops it")
                with services.left_on.unless_stopped(_left_on(services, target)):
                    lease.release("stop")
            release_kept(services, owner_id=start.owner_id)
            raise
    # Without these facts the reservation counts until the machine is seen off.
    with suppress(FcctlError), services.spending.changing() as change:
        if got.started:
            change.reserve(start.model_copy(update={"instance_id": got.machine.id, "started": got.machine.started}))
        else:  # it was on already: its owner has reserved the cost
            change.release(start)
    services.left_on.add(_left_on(services, target, got.machine))
    return StartResult(got.machine, way, got.started)


def _label_owner(services: Services, target: CloudTarget, purpose: Purpose, log: Log) -> None:
    """Labels a stopped machine before its start, so that a concurrent audit knows its owner."""
    cloud = services.clouds.open(target)
    changes = Changes(cloud, services.clock, log, target.instance)
    for machine in find_machines(cloud, target):
        if machine.power is Power.STOPPED:
            relabel = partial(cloud.set_labels, machine, purpose.labels())
            changes.make("label", machine.zone, relabel, CHANGE_LIMIT_S)


# --------------------------------------------------------------------------------------------------------------- down
Outcome = Literal["off", "stopped"]


def down(services: Services, target: CloudTarget, *, workspace: str, force: bool = False) -> list[Released]:
    """Stops the target's machines and waits until they are off; returns an empty list if none was on.

    Args:
        workspace: this one's name as labels have it.

    What cannot be read on this computer keeps no machine on: the machine itself is asked whether a run uses it.

    Raises ConflictError: a run or a session uses one of them, or may, and ``force`` is not given; CloudError,
    AuthError: a machine could not be confirmed as stopped.
    """
    await_requests(services, [target])
    unanswered: FcctlError | None = None
    zones_on = _zones_on(services, target)
    target = target.model_copy(update={"zones": list(dict.fromkeys([*target.zones, *zones_on]))})
    cloud, began = services.clouds.open(target), services.clock.now()
    try:
        found = find_settled(services, target, target.zones)
    except (CloudError, ConfigError) as error:  # another zone's, maybe
        if not zones_on:
            raise
        found, unanswered = find_settled(services, target.model_copy(update={"zones": zones_on}), zones_on), error
    for machine in (one for one in found if one.power is Power.SUSPENDED):
        by_hand = target.by_hand("stop", machine.name, machine.zone)
        services.observer.note(
            f"{machine.name} is suspended: the cloud bills its memory until it is stopped: {by_hand}"
        )
    on = [machine for machine in found if machine.billed]
    if not force:
        for machine in on:
            _refuse_if_used(services, target, machine, workspace)
    holds = [ReleaseRequest(machine.zone, machine.id) for machine in on]
    done = []
    if holds:
        left_on = services.left_on.unless_stopped(_left_on(services, target, on[0]))
        host = ReconnectingHost(services.hosts, target, services.clock, services.observer)
        lease = MachineLease(services, target, Purpose(workspace), host, list, log_change)
        with left_on, host, lease.stopped_by_itself():
            done = release(services, target, holds, "stop", log_change)
    if unanswered is not None:
        raise unanswered
    release_kept(services, machine=(target.project, target.instance), looked=began, stopped=bool(done))
    remove_entry(target.name)
    with services.unread.noted():
        settle_lost(services, cloud, [target])
    with services.unread.noted():
        if done and services.sessions.open():
            recover(services, look_at_all=True)  # a session that kept it on has ended
    return done


def _zones_on(services: Services, target: CloudTarget) -> list[str]:
    """The zones in which the ledger has the target's machine on; fcctl.toml may not name them any more."""
    starts: list[UsageRecord] = []
    with services.unread.noted():
        starts += services.spending.state().starts()
    own = [one for one in starts if (one.project, one.name) == (target.project, target.instance)]
    return [one.zone for one in own if one.stopped is None]


def _left_on(services: Services, target: CloudTarget, machine: Machine | None = None) -> LeftOn:
    """Args: machine: as the cloud shows it; None: it was not seen."""
    rate = None if machine is None else rate_of(machine, target, services.budget)
    return LeftOn(
        target.name, target.instance, rate, f"fcctl hosts down {target.name}", project=target.project,
        emulated=is_emulated(target),
    )  # fmt: skip


def _refuse_if_used(services: Services, target: CloudTarget, machine: Machine, workspace: str) -> None:
    session = None
    with services.unread.noted():
        session = open_on(services.sessions, machine.id, machine.started)
    if session is not None:
        whose = "" if session.abroad is None else f", of the workspace {session.abroad.place}"
        raise ConflictError(
            f"{machine.name} is kept on by session {session.saved.session_id}{whose}",
            hint=f"end the session, which also stops the machine: {session.how_to_stop}; or stop the machine anyway: "
            f"--force",
        )
    claims = claims_on(services, machine)
    there = active_runs(services, AuditedProject(target.project, target.api_endpoint, [target]), machine)
    label, whose = machine.labels.get(RUN_LABEL, ""), machine.labels.get(WORKSPACE_LABEL, workspace)
    if there is None and label and whose != workspace and all(claim.run_id != label for claim in claims):
        raise ConflictError(
            f"{machine.name} was started for {label} of the workspace '{whose}'",
            cause=f"this workspace cannot see whether {label} still runs",
            hint="check in that workspace: fcctl ps; or stop the machine anyway: --force",
        )
    user = next((c.run_id for c in claims if c.state == "followed"), None) or min(there or (), default=None)
    if user is not None:
        raise ConflictError(
            f"{machine.name} is running {user}",
            hint=f"cancel the run, which also stops the machine: fcctl cancel {user}; or stop the machine anyway: "
            f"--force",
        )
