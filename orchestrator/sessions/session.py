"""``fcctl session``: a machine kept warm for several runs within one budget. No process belongs to a session: the
cloud's deadline bounds its cost, the machine's timer ends it when idle, and commands read its journal."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fcctl_remote import wire
from orchestrator.base.clock import iso
from orchestrator.base.errors import ConflictError, DiskError, FcctlError, HostFault, HostUnusable, NotFoundError
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.find import OpenSession, cloud_target, everywhere, is_past, is_session_machine, known
from orchestrator.leases.session_api import LockedSession
from orchestrator.leases.session_rules import How, SavedSession, SessionRecord
from orchestrator.leases.stop_reason import our_stop, why_stopped
from orchestrator.machines.cloud import Power
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.acquire import acquire
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice
from orchestrator.machines.provision.decide import deadline_of
from orchestrator.machines.provision.find import Log, find_machines
from orchestrator.machines.provision.ready import make_ready
from orchestrator.machines.provision.release import Policy, Released, ReleaseRequest, others_on_host, release
from orchestrator.machines.provision.spec import Purpose
from orchestrator.machines.shutdown_timer import token_of
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from orchestrator.runs.cost.owners import reservation
from orchestrator.runs.cost.spending import reserve
from orchestrator.runs.machine.left_on import kept_by_session
from orchestrator.runs.services import Services
from orchestrator.sessions.damaged import settle_unreadable


# ----------------------------------------------------------------------------------------------------------- starting
def start(services: Services, saved: SavedSession, *, restart: bool = False) -> OpenSession:
    """Starts the machine for as long as the budget lasts, with a timer that stops it when idle; stops it again on
    failure. Raises ConflictError if the machine has a session or is on, FcctlError."""
    if not isinstance(saved.target, GcpTarget | SandboxTarget):
        raise TypeError(f"target {saved.target.name} is in no cloud")
    target = services.clouds.resolve(saved.target)
    with services.sessions.starting() as alone:
        if not alone:
            raise ConflictError("another fcctl is just starting a session", hint="fcctl session status")
        recover(services)
        for other in everywhere(services.sessions):
            if is_session_machine(services.clouds, other.saved, target):
                raise _taken(other)
        held = services.sessions.begin(saved.session_id, saved.to_json())
    try:
        _set_aside(services, saved, held)
        held.journal.append("begun")
        try:
            _bring_up(services, saved, target, held.journal.append, restart=restart)
        except BaseException as error:
            services.observer.note(f"{target.instance} is of no use so, and is let go")
            _let_go(services, saved, target, held, "failed", getattr(error, "message", None) or "interrupted")
            raise
    finally:
        held.release()
    found = known(services.sessions, saved.session_id)
    if found is None:
        raise RuntimeError("a session that was just opened can be read")
    services.left_on.add(kept_by_session(saved, target, found.machine))
    return found


def _set_aside(services: Services, saved: SavedSession, held: LockedSession) -> None:
    """Raises BudgetError: the session could break a cap by now. It is over; nothing of it was started."""
    try:
        reserve(services, reservation(services, "session", saved.session_id, saved.target, saved.worst_case_usd))
    except BaseException as error:
        _end(services, saved, held, "failed", getattr(error, "message", None) or "interrupted", None)
        raise


def _taken(other: OpenSession) -> ConflictError:
    where = "" if other.abroad is None else f", of the workspace {other.abroad.place}"
    return ConflictError(
        f"{other.saved.target.name} has a session already: {other.saved.session_id}{where}",
        cause="one machine has one session at a time",
        hint=f"use it: runs on the machine share it; or end it: {other.how_to_stop}",
    )


def _bring_up(services: Services, saved: SavedSession, target: GcpTarget, log: Log, *, restart: bool) -> None:
    on = [m for m in find_machines(services.clouds.open(target), target) if m.power is Power.RUNNING]
    if on and not restart:
        raise ConflictError(
            f"{target.instance} is on already",
            cause="the limit of a machine that runs cannot be set, so that a session's budget would not hold",
            hint="add --restart to stop it and start it for the session, or wait until it is off",
        )
    planned = PlannedPrice(saved.worst_usd_per_hour, saved.rest_usd_per_hour)
    wish = MachineRequest(
        max_run_s=saved.fence_s, need_s=float(saved.fence_s), restart=restart,
        planned=None if saved.target.kind == "sandbox" else planned,
    )  # fmt: skip
    link = ReconnectingHost(services.hosts, target, services.clock, services.observer)
    try:
        log("acquire", max_run_s=wish.max_run_s)
        got = acquire(services, target, wish, Purpose(saved.session_id, saved.workspace), log)
        if not got.started:
            raise ConflictError(f"somebody else has just started {target.instance}", hint="try again in a moment")
        way = make_ready(services, target, got.machine, link, log)
        deadline = deadline_of(got.machine)
        log("acquired", project=way.project, zone=way.zone, name=way.name, instance_id=way.instance_id,
            started=got.machine.started, deadline=deadline, spot=got.machine.spot, turned_on=True,
            usd_per_hour=got.price.usd)  # fmt: skip
        until = _arm(services, saved, target, link, deadline)
        log("opened", deadline=deadline, until=until)
    finally:
        link.close()


def _arm(
    services: Services, saved: SavedSession, target: GcpTarget, link: ReconnectingHost, deadline: float | None
) -> float:
    """The idle stop: the machine's own timer, which runs of the session move, and nobody past the cloud's fence."""
    until = link.host_now() + saved.idle_minutes * 60
    until = until if deadline is None else min(until, deadline)
    request = wire.LeaseRequest(
        "arm", deadline=until, not_after=deadline, token=token_of(services.clouds.login(target), target), dry=False,
        reason=f"session {saved.session_id} idles",
    )  # fmt: skip
    try:
        link.call(lambda s: s.lease(wire.LeaseRequest("show", fresh=True)))
        return link.call(lambda s: s.lease(request)).deadline or until
    except HostFault as e:
        raise HostUnusable(
            f"{target.instance} does not let fcctl set its shutdown timer",
            cause=e.message,
            hint=e.hint or f"log in and see why: fcctl hosts ssh {target.name}",
        ) from e


# ----------------------------------------------------------------------------------------------------------- stopping
def stop(services: Services, session_id: str, *, force: bool = False) -> SessionRecord:
    """Ends a session: collects what its runs left and stops the machine. Raises ConflictError if a run uses it and not
    ``force``, or another fcctl has the session; NotFoundError if it is over; CloudError, AuthError if the machine may
    be on."""
    held = _claimed(services, session_id)
    try:
        found = known(services.sessions, session_id)
        if found is None:
            raise FcctlError(f"session {session_id} cannot be read", hint="fcctl hosts audit finds its machine")
        target = cloud_target(services.clouds, found.saved)
        if target is not None and found.machine is not None and found.stage == "open":
            _make_way(services, target, force=force)
        return _let_go(services, found.saved, target, held, "stopped", "stopped by the user")
    finally:
        held.release()


def _claimed(services: Services, session_id: str) -> LockedSession:
    if session_id not in services.sessions.open():
        raise NotFoundError(f"session {session_id} is over", hint="fcctl cost ledger --by run")
    held = services.sessions.claim(session_id)
    if held is None:
        raise ConflictError(f"another fcctl is just starting or stopping session {session_id}", hint="try again soon")
    return held


def _make_way(services: Services, target: GcpTarget, *, force: bool) -> None:
    from orchestrator.runs.machine.other_runs import neighbours

    others = neighbours(services, target, None)
    user = next((n.run_id for n in others if n.uses_it), None)
    user = user or others_on_host(services, target, "")
    if user is not None and not force:
        raise ConflictError(
            f"{target.instance} is at work on {user}",
            hint=f"wait for it, or end it: fcctl cancel {user}; or stop the session all the same: --force",
        )
    left = [n.run_id for n in others if n.left_behind]
    if left:
        services.recover_runs(services, left)


def _let_go(
    services: Services, saved: SavedSession, target: GcpTarget | None, held: LockedSession, how: How, reason: str
) -> SessionRecord:
    """Stop whatever the session turned on; it is over once that is known to be off."""
    entries = held.journal.entries()
    machine = sessions.machine_of(entries)
    holds = [ReleaseRequest(machine.zone, machine.instance_id)] if machine is not None else []
    if not holds:
        holds = [
            ReleaseRequest(zone, None, made_here=True, asked=at) for zone, at in sessions.asked_for(entries).items()
        ]
    done: list[Released] = []
    if holds and target is not None:
        log = held.journal.append_if_possible  # a full disk keeps no machine on
        log("release")
        with services.left_on.unless_stopped(kept_by_session(saved, target, machine)):
            done = release(services, target, holds, _policy(services, target), log)
        log("released", **asdict(done[0]))
    off = next((r for r in done if r.stopped is not None), None)
    return _end(services, saved, held, how, reason, off.stopped if off is not None else None,
                started=off.started if off is not None else None,
                instance_id=off.instance_id if off is not None else None)  # fmt: skip


def _policy(services: Services, target: GcpTarget) -> Policy:
    """Delete the machine if its target says so, unless a run's results may be on its disk."""
    from orchestrator.runs.machine.other_runs import neighbours

    if target.release != "delete":
        return "stop"
    waiting = next((n.run_id for n in neighbours(services, target, None) if n.uses_it or n.left_behind), None)
    if waiting is None:
        return "delete"
    services.observer.note(
        f"{target.instance} is stopped and not deleted: what {waiting} has is on its disk"
        f" (fcctl pull-results --wake {waiting})"
    )
    return "stop"


def _end(
    services: Services,
    saved: SavedSession,
    held: LockedSession,
    how: How,
    reason: str,
    stopped: float | None,
    *,
    started: float | None = None,
    instance_id: str | None = None,
) -> SessionRecord:
    machine, now = sessions.machine_of(held.journal.entries()), services.clock.now()
    if machine is not None:
        started = machine.started if machine.started is not None else started
        instance_id = machine.instance_id
    price = sessions.rate(saved, machine)
    seconds = max(60.0, (stopped if stopped is not None else now) - started) if started is not None else 0.0
    record = SessionRecord(
        session_id=saved.session_id, target=saved.target.name, how=how, reason=reason, created=saved.created, ended=now,
        instance_id=instance_id, started=started, stopped=stopped, usd_per_hour=price,
        usd=round(seconds / 3600 * price, 6), budget_usd=saved.budget_usd, runs=runs_of(services, saved),
    )  # fmt: skip
    try:
        held.end(record)
    except DiskError:
        _say_over(services, record)
        raise
    return record


def _say_over(services: Services, record: SessionRecord) -> None:
    """To whoever comes by and did not end it."""
    services.observer.note(
        f"session {record.session_id} is over: {record.reason}; it cost ${record.usd:.2f} of ${record.budget_usd:.2f}"
    )


def runs_of(services: Services, saved: SavedSession) -> list[str]:
    """The runs of a session, complete and active, other workspaces' among them."""
    store, begun = services.store, iso(saved.created) or ""
    active = [r for r in store.active() if (store.plan_of(r) or {}).get("session") == saved.session_id]
    rows = [row.run_id for row in store.rows(limit=500, target=saved.target.name) if row.created >= begun]
    complete = [r for r in rows if any(e.data.get("session") == saved.session_id for e in store.journal_of(r)[:1])]
    return sorted({*active, *complete, *services.sessions.visitors(saved.session_id)})


# ----------------------------------------------------------------------------------------------------------- settling
def recover(services: Services, *, look_at_all: bool = False) -> None:
    """Ends sessions whose machine is off or whose fcctl was killed. ``look_at_all``: ask the cloud about every open
    session, not only about those that should be off."""
    for session_id in services.sessions.open():
        try:
            _settle_one(services, session_id, look_at_all=look_at_all)
        except FcctlError as error:
            services.observer.note(f"session {session_id}: {error.message}{f' ({error.cause})' if error.cause else ''}")


def _settle_one(services: Services, session_id: str, *, look_at_all: bool) -> None:
    held = services.sessions.claim(session_id)
    if held is None:
        return
    try:
        found = known(services.sessions, session_id)
        if found is None:
            settle_unreadable(services, held)
            return
        target = cloud_target(services.clouds, found.saved)
        if found.stage != "open":
            services.observer.note(f"session {session_id} was left half way: its machine is let go")
            _let_go(services, found.saved, target, held, "failed" if found.stage == "starting" else "stopped",
                    "the fcctl that was at it is gone")  # fmt: skip
        elif look_at_all or is_past(services.clock, services.store, found):
            _end_if_off(services, found, target, held)
    finally:
        held.release()


def _end_if_off(services: Services, found: OpenSession, target: GcpTarget | None, held: LockedSession) -> None:
    machine = found.machine
    if machine is None:
        return
    if target is None:
        _say_over(services, _end(services, found.saved, held, "off", "the sandbox was stopped", None))
        return
    cloud = services.clouds.open(target)
    seen = cloud.machine(machine.zone, machine.name)
    if seen is not None and seen.id == machine.instance_id and seen.billed and seen.started == machine.started:
        held.journal.append_if_possible("looked")
        return
    history = cloud.operations(machine.zone, machine.name)
    ours = our_stop(services.book, machine.project, machine.name)
    why = why_stopped(machine.name, machine.instance_id, seen, history, None, machine.started, our_stop=ours)
    stopped = why.at if why is not None else None
    if stopped is None and seen is not None and seen.id == machine.instance_id:
        stopped = seen.stopped
    reason = why.reason if why is not None else f"{machine.name} was started anew"
    if why is not None and why.how == "guest":
        reason = f"{machine.name} stopped itself: nobody used it, or its time was over"
    _say_over(services, _end(services, found.saved, held, "off", reason, stopped))


# ------------------------------------------------------------------------------------------------------------- status
@dataclass(frozen=True)
class SessionStatus:
    """An open session now. Times are epoch seconds."""

    found: OpenSession
    money: sessions.SessionBudget
    #: When the machine stops itself if nobody uses it; None: it does not say.
    idle_stop: float | None
    runs_on_it: tuple[str, ...]


def standing(services: Services, found: OpenSession, *, keep: bool = False) -> SessionStatus:
    """Returns the status of an open session; asks the machine when it will stop. ``keep``: restart its idle time."""
    stands = sessions.money(found.saved, found.machine, services.clock.now())
    target = cloud_target(services.clouds, found.saved)
    if target is None or found.machine is None or found.stage != "open":
        return SessionStatus(found, stands, None, ())
    try:
        session = services.hosts.connect(target)
    except FcctlError:
        return SessionStatus(found, stands, None, ())
    try:
        lease = session.lease(wire.LeaseRequest("show"))
        wanted = session.hello.time + found.saved.idle_minutes * 60
        if keep and lease.armed and (lease.deadline or 0.0) < wanted:
            token = token_of(services.clouds.login(target), target)
            lease = session.lease(wire.LeaseRequest("renew", deadline=wanted, token=token, reason="somebody is at it"))
        busy = tuple(r.run_id for r in session.status(None) if r.status not in wire.RUN_ENDINGS)
        return SessionStatus(found, stands, lease.deadline if lease.armed else None, busy)
    except FcctlError:
        return SessionStatus(found, stands, None, ())
    finally:
        session.close()
