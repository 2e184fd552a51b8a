"""``fcctl session``: a machine kept warm for several runs within one budget. No process belongs to a session: the
cloud's deadline bounds its cost, the machine's timer ends it when idle, and commands read its journal."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fcctl_remote import wire
from orchestrator.base.clock import iso, wait_for
from orchestrator.base.errors import ConflictError, DiskError, FcctlError, NotFoundError
from orchestrator.base.journal import LOOK_S
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.machine_lease import MachineLease
from orchestrator.leases.session_files import LockedSession
from orchestrator.leases.session_rules import (
    How,
    Machine,
    OpenSession,
    SavedSession,
    SessionRecord,
    cloud_target,
    everywhere,
    is_past,
    is_session_machine,
    known,
)
from orchestrator.machines.cloud import Power
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.connect.ssh.terminal import remove_entry
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice, Purpose
from orchestrator.machines.provision.ready import find_machines
from orchestrator.machines.provision.release import Policy, Released, others_on_host
from orchestrator.machines.shutdown_timer import TimerLimits, arm_idle, token_of
from orchestrator.machines.targets import CloudTarget, SandboxTarget
from orchestrator.runs.cost.owners import reservation
from orchestrator.runs.cost.spending import reserve
from orchestrator.runs.machine.left_on import kept_by_session
from orchestrator.runs.machine.pending_releases import OtherRun, neighbours
from orchestrator.runs.services import Services


def _lease(services: Services, saved: SavedSession, target: CloudTarget, session: LockedSession) -> MachineLease:
    host = ReconnectingHost(services.hosts, target, services.clock, services.observer)
    purpose, journal = Purpose(saved.session_id, saved.workspace), session.journal
    return MachineLease(services, target, purpose, host, journal.entries, journal.append)


# -------------------------------------------------------------------------------------------------------------- start
def start(services: Services, saved: SavedSession, *, restart: bool = False) -> OpenSession:
    """Starts the machine for as long as the budget lasts, with a timer that stops it when idle; stops it again on
    failure. Raises ConflictError if the machine has a session or is on, FcctlError."""
    if not isinstance(saved.target, CloudTarget | SandboxTarget):
        raise TypeError(f"target {saved.target.name} is not a cloud machine")
    target = services.clouds.resolve(saved.target)
    with services.sessions.starting() as alone:
        if not alone:
            raise ConflictError("another fcctl process is starting a session", hint="fcctl session status")
        recover(services)
        for other in everywhere(services.sessions):
            if is_session_machine(services.clouds, other.saved, target):
                raise _taken(other)
        session = services.sessions.begin(saved.session_id, saved.to_json())
    try:
        _reserve(services, saved, session)
        session.journal.append("begun")
        try:
            _open(services, saved, target, session, restart=restart)
            opened = known(services.sessions, saved.session_id)
            if opened is None:  # no command would know of its machine
                raise FcctlError(
                    f"the files of session {saved.session_id} were deleted while its machine started",
                    hint="start another session",
                )
        except BaseException as error:
            services.observer.note(f"{target.instance} could not be used; fcctl makes sure that it is off")
            _release(services, saved, target, session, "failed", getattr(error, "message", None) or "interrupted")
            raise
    finally:
        session.release()
    services.left_on.add(kept_by_session(saved, target, opened.machine))
    return opened


def _reserve(services: Services, saved: SavedSession, session: LockedSession) -> None:
    """Raises BudgetError if the session could break a cap by now; it is over then, and nothing was started."""
    try:
        reserve(services, reservation(services, "session", saved.session_id, saved.target, saved.worst_case_usd))
    except BaseException as error:
        _end(services, saved, session, "failed", getattr(error, "message", None) or "interrupted")
        raise


def _taken(other: OpenSession) -> ConflictError:
    where = "" if other.abroad is None else f", of the workspace {other.abroad.place}"
    return ConflictError(
        f"{other.saved.target.name} already has a session: {other.saved.session_id}{where}",
        cause="a machine can have only one session at a time",
        hint=f"use this session: runs on the machine share it; or stop it: {other.how_to_stop}",
    )


def _open(
    services: Services, saved: SavedSession, target: CloudTarget, session: LockedSession, *, restart: bool
) -> None:
    on = [m for m in find_machines(services.clouds.open(target), target) if m.power is Power.RUNNING]
    if on and not restart:
        raise ConflictError(
            f"{target.instance} is already on",
            cause="the cloud cannot change the time limit of a running machine, so fcctl could not enforce the budget",
            hint="add --restart to stop the machine and start it for the session, or wait until it is off",
        )
    planned = PlannedPrice(saved.worst_machine_rate, saved.rest_usd_per_hour)
    request = MachineRequest(
        max_run_s=saved.fence_s, need_s=float(saved.fence_s), restart=restart,
        planned=None if saved.target.kind == "sandbox" else planned,
    )  # fmt: skip
    lease = _lease(services, saved, target, session)
    try:
        lease.log("acquire", max_run_s=request.max_run_s)
        lease.start(request, only_own=True)
        deadline = lease.acquired().get("deadline")
        # Runs of the session move it.
        until = arm_idle(
            lease.host,
            TimerLimits(deadline, lease.token),
            saved.idle_minutes * 60,
            f"session {saved.session_id} is idle",
        )
        lease.log("opened", deadline=deadline, until=until)
    finally:
        lease.host.close()


# --------------------------------------------------------------------------------------------------------------- stop
def stop(services: Services, session_id: str, *, force: bool = False) -> SessionRecord:
    """Ends a session: collects what its runs left and stops the machine. Raises ConflictError if a run uses it and not
    ``force``, or another fcctl has the session; NotFoundError if it is over; CloudError, AuthError if the machine may
    be on."""
    if session_id not in services.sessions.open():
        raise NotFoundError(f"session {session_id} has ended", hint="to see its cost: fcctl cost ledger --by run")
    session = wait_for(lambda: services.sessions.claim(session_id), LOOK_S, services.clock)
    if session is None:
        raise ConflictError(
            f"another fcctl process is starting or stopping session {session_id}", hint="try again in a minute"
        )
    try:
        opened = known(services.sessions, session_id)
        if opened is None:
            raise FcctlError(
                f"the files of session {session_id} are unreadable", hint="to find its machine: fcctl hosts audit"
            )
        target = cloud_target(services.clouds, opened.saved)
        if target is not None and opened.machine is not None and opened.stage == "open":
            _collect_runs(services, target, force=force)
        return _release(services, opened.saved, target, session, "stopped", "stopped by the user")
    finally:
        session.release()


def _collect_runs(services: Services, target: CloudTarget, *, force: bool, again: bool = False) -> None:
    """Collects the runs on the machine that nobody follows. Raises ConflictError if a run uses it and not ``force``."""
    others: list[OtherRun] = []
    with services.unread.noted():
        others = neighbours(services, target, None)
    user = next((n.run_id for n in others if n.uses_it), None) or others_on_host(services, target, "")
    if user is not None and not force:
        raise ConflictError(
            f"run {user} uses {target.instance}",
            hint=f"wait until the run has ended, or stop it: fcctl cancel {user}; or stop the session anyway: --force",
        )
    left = [n.run_id for n in others if n.left_behind]
    if left and not again:
        services.recover_runs(services, left)
        _collect_runs(services, target, force=force, again=True)  # a run may have begun in these minutes


def _release(
    services: Services, saved: SavedSession, target: CloudTarget | None, session: LockedSession, how: How, reason: str
) -> SessionRecord:
    """Stops what the session started; it is over once that is known to be off."""
    done: list[Released] = []
    lease = _lease(services, saved, target, session) if target is not None else None
    if lease is not None and lease.release_requests():
        lease.log = session.journal.append_if_possible  # a full disk keeps no machine on
        lease.log("release")
        machine = sessions.machine_of(session.journal.entries())
        left_on = services.left_on.unless_stopped(kept_by_session(saved, lease.target, machine))
        with left_on, lease.host, lease.stopped_by_itself():
            done = lease.release(_policy(services, lease.target))
        lease.log("released", **asdict(done[0]))
    off = next((r for r in done if r.stopped is not None), Released("gone", ""))
    return _end(services, saved, session, how, reason, off.stopped, started=off.started, instance_id=off.instance_id)


def _policy(services: Services, target: CloudTarget) -> Policy:
    """Deletes the machine if its target says so, unless a run's results may be on its disk."""
    if target.release != "delete":
        return "stop"
    waiting = "a run that cannot be read"
    with services.unread.noted():
        others = neighbours(services, target, None)
        waiting = next((n.run_id for n in others if n.uses_it or n.left_behind), "")
    if not waiting:
        return "delete"
    services.observer.note(
        f"fcctl stops {target.instance} instead of deleting it: the results of {waiting} are on its disk"
        f" (fcctl pull-results --wake {waiting})"
    )
    return "stop"


def _end(
    services: Services, saved: SavedSession, session: LockedSession, how: How, reason: str,
    stopped: float | None = None, *, started: float | None = None, instance_id: str | None = None,
) -> SessionRecord:  # fmt: skip
    machine, now = sessions.machine_of(session.journal.entries()), services.clock.now()
    if machine is not None:
        started = machine.started if machine.started is not None else started
        instance_id = machine.instance_id
    price = sessions.rate(saved, machine)
    seconds = max(60.0, (stopped if stopped is not None else now) - started) if started is not None else 0.0
    record = SessionRecord(
        session_id=saved.session_id, target=saved.target.name, how=how, reason=reason, created=saved.created, ended=now,
        instance_id=instance_id, started=started, stopped=stopped, usd_per_hour=price,
        usd=round(seconds / 3600 * price, 6), budget_usd=saved.budget_usd, runs=_runs_of(services, saved),
    )  # fmt: skip
    remove_entry(saved.target.name)
    try:
        session.end(record)
    except DiskError:
        _note_end(services, record)
        raise
    if services.session_files is not None and (machine is not None or record.runs):
        try:
            session.add(services.session_files(services, record))
        except FcctlError as error:  # the session has ended all the same
            services.observer.note(f"the session has no report: {error.message} ({error.cause})")
    return record


def so_far(services: Services, opened: OpenSession) -> SessionRecord:
    """An open session as a record: what it is until now."""
    record = sessions.record_so_far(opened, services.clock.now())
    return record.model_copy(update={"runs": _runs_of(services, opened.saved)})


def _note_end(services: Services, record: SessionRecord) -> None:
    services.observer.note(
        f"session {record.session_id} ended: {record.reason}; it cost ${record.usd:.2f} of ${record.budget_usd:.2f}"
    )


def _runs_of(services: Services, saved: SavedSession) -> list[str]:
    """The runs of a session, complete and active, also of other workspaces."""
    store, begun, found = services.store, iso(saved.created) or "", set[str]()
    with services.unread.noted():
        found.update(r for r in store.active() if (store.plan_of(r) or {}).get("session") == saved.session_id)
    with services.unread.noted():
        rows = [row.run_id for row in store.rows(limit=500, target=saved.target.name) if row.created >= begun]
        found.update(r for r in rows if any(e.data.get("session") == saved.session_id for e in store.journal_of(r)[:1]))
    return sorted({*found, *services.sessions.visitors(saved.session_id)})


# ------------------------------------------------------------------------------------------------------------ recover
def recover(services: Services, *, look_at_all: bool = False) -> None:
    """Ends sessions whose machine is off or whose fcctl was killed. ``look_at_all``: ask the cloud about every open
    session, not only about those that should be off."""
    for session_id in services.sessions.open():
        session = None
        try:
            session = services.sessions.claim(session_id)
            if session is not None:
                _recover_one(services, session, look_at_all=look_at_all)
        except FcctlError as error:
            services.observer.note(f"session {session_id}: {error.message}{f' ({error.cause})' if error.cause else ''}")
        finally:
            if session is not None:
                session.release()


def _recover_one(services: Services, session: LockedSession, *, look_at_all: bool) -> None:
    opened = known(services.sessions, session.session_id)
    if opened is None:
        _end_unreadable(services, session)
        return
    target = cloud_target(services.clouds, opened.saved)
    if opened.stage != "open":
        services.observer.note(f"session {session.session_id} was interrupted: fcctl stops its machine")
        how: How = "failed" if opened.stage == "starting" else "stopped"
        _release(services, opened.saved, target, session, how, "its fcctl process was killed")
    elif opened.machine is not None and (look_at_all or is_past(services.clock, services.store, opened)):
        _end_if_off(services, opened.saved, opened.machine, target, session)


def _end_if_off(
    services: Services, saved: SavedSession, machine: Machine, target: CloudTarget | None, session: LockedSession
) -> None:
    if target is None:
        _note_end(services, _end(services, saved, session, "off", "the sandbox was stopped"))
        return
    seen = services.clouds.open(target).machine(machine.zone, machine.name)
    is_same = seen is not None and seen.id == machine.instance_id
    is_older = seen is not None and (seen.started or 0.0) < (machine.started or 0.0)  # as it was before the session
    if seen is not None and is_same and (is_older or (seen.billed and seen.started == machine.started)):
        session.journal.append_if_possible("looked")
        return
    why = _lease(services, saved, target, session).stop_reason(seen)
    stopped = why.at if why is not None else None
    if stopped is None and seen is not None and is_same:
        stopped = seen.stopped
    reason = why.message if why is not None else f"{machine.name} was stopped and started again"
    if why is not None and why.how == "guest":
        reason = f"{machine.name} stopped itself: it was idle, or its time limit was reached"
    _note_end(services, _end(services, saved, session, "off", reason, stopped))


def _end_unreadable(services: Services, session: LockedSession) -> None:
    """Ends a session whose plan cannot be read once its machine is known to be off."""
    machine, now, name = sessions.machine_of(session.journal.entries()), services.clock.now(), session.session_id
    if machine is None or not _is_known_off(services, machine):
        what = f"its machine {machine.name} in {machine.zone}" if machine is not None else "its machine"
        services.observer.note(
            f"the plan of session {name} is unreadable, and {what} may be on; check: fcctl hosts audit"
        )
        return
    reason = "its plan is unreadable, and its machine is off"
    session.end(SessionRecord(session_id=name, target="-", how="off", reason=reason, created=now, ended=now))


def _is_known_off(services: Services, machine: Machine) -> bool:
    return any(
        one.instance_id == machine.instance_id and one.stopped is not None and not one.bound
        and (machine.started is None or abs(one.started - machine.started) <= 1.0)
        for one in services.spending.usage()
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- status
@dataclass(frozen=True)
class SessionStatus:
    """An open session now. Times are epoch seconds."""

    found: OpenSession
    money: sessions.SessionBudget
    #: When the machine stops itself if nobody uses it; None: unknown.
    idle_stop: float | None = None
    runs_on_it: tuple[str, ...] = ()


def standing(services: Services, found: OpenSession, *, keep: bool = False) -> SessionStatus:
    """Returns the status of an open session; asks the machine when it will stop. ``keep``: restart its idle time."""
    status = SessionStatus(found, sessions.money(found.saved, found.machine, services.clock.now()))
    target = cloud_target(services.clouds, found.saved)
    if target is None or found.machine is None or found.stage != "open":
        return status
    try:
        host = services.hosts.connect(target)
    except FcctlError:
        return status
    try:
        lease = host.lease(wire.LeaseRequest("show"))
        wanted = host.hello.time + found.saved.idle_minutes * 60
        if keep and lease.armed and (lease.deadline or 0.0) < wanted:
            token = token_of(services.clouds.login(target), target)
            lease = host.lease(
                wire.LeaseRequest("renew", deadline=wanted, token=token, reason="kept by fcctl session status --keep")
            )
        busy = tuple(r.run_id for r in host.status(None) if r.status not in wire.RUN_ENDINGS)
        return SessionStatus(found, status.money, lease.deadline if lease.armed else None, busy)
    except FcctlError:
        return status
    finally:
        host.close()
