"""A session whose plan cannot be read: it is not over before its machine is known to be off."""

from __future__ import annotations

from orchestrator.leases import session_rules as sessions
from orchestrator.leases.session_api import LockedSession
from orchestrator.leases.session_rules import How, SessionRecord
from orchestrator.runs.services import Services


def settle_unreadable(services: Services, held: LockedSession) -> None:
    """A session whose plan cannot be read: over if nothing can have happened, or once its machine is off."""
    entries, now, name = held.journal.entries(), services.clock.now(), held.session_id
    machine = sessions.machine_of(entries)
    if not entries and services.sessions.plan_of(name) is None:  # killed while it was being written down
        how: How = "failed"
        reason = "never begun"
    elif machine is not None and _is_known_off(services, machine):
        how, reason = "off", "its plan is damaged, and its machine is off"
    else:
        what = f"its machine {machine.name} in {machine.zone}" if machine is not None else "its machine"
        services.observer.note(f"the plan of session {name} is damaged, and {what} may be on: fcctl hosts audit")
        return
    held.end(SessionRecord(session_id=name, target="-", how=how, reason=reason, created=now, ended=now))


def _is_known_off(services: Services, machine: sessions.Machine) -> bool:
    """Whether the cloud said when the machine went off after the start that was for the session."""
    return any(
        one.instance_id == machine.instance_id and one.stopped is not None and not one.bound
        and (machine.started is None or abs(one.started - machine.started) <= 1.0)
        for one in services.spending.all()
    )  # fmt: skip
