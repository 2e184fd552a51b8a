"""The second fence: a machine that fcctl owns powers itself off, even if nobody comes back to stop it."""

from __future__ import annotations

from dataclasses import dataclass

from fcctl_remote import wire
from orchestrator.domain.budget import worst_case_minutes
from orchestrator.errors import HostFault, HostUnusable
from orchestrator.ports import HostSession, Observer
from orchestrator.workflows.link import Link

#: Past the worst case of the run, for sending the source and fetching the results.
MARGIN_S = 15 * 60.0


@dataclass(frozen=True)
class Armed:
    token: str
    deadline: float  # epoch seconds on the host's clock


def arm(link: Link, plan: wire.RunPlan, observer: Observer) -> Armed | None:
    """Set the machine's own shutdown timer past the worst case of ``plan``.

    None if another run's timer is set: it is not ours to move, and that run will take it away.

    Raises:
        HostUnusable: the machine is said to be ours (``owned = true``) and refuses to be powered off by us, so that
            nothing there would end what this run costs.
    """
    present = link.call(lambda s: s.lease(wire.LeaseRequest("show")))
    if present.armed:
        observer.note(f"{link.target.name} powers itself off at the end of another run's lease")
        return None
    try:
        lease = link.call(lambda s: s.lease(_request(s, plan)))
    except HostFault as e:
        raise HostUnusable(
            f"{link.target.name} does not let fcctl set its shutdown timer",
            cause=e.message,
            hint=e.hint or "or say `owned = false` for this target: fcctl then never powers it off",
        ) from e
    return Armed(lease.token or "", lease.deadline or 0.0)


def _request(session: HostSession, plan: wire.RunPlan) -> wire.LeaseRequest:
    deadline = session.hello.time + worst_case_minutes(plan.steps, plan.max_minutes) * 60 + MARGIN_S
    return wire.LeaseRequest("arm", deadline=deadline, dry=False, reason=f"run {plan.run_id}")


def disarm(link: Link, token: str, observer: Observer) -> None:
    """Take the timer away again: the run is home. If that fails the machine stops too early, never too late."""
    try:
        link.call(lambda s: s.lease(wire.LeaseRequest("disarm", token=token, reason="the run is home")))
    except HostFault as e:
        observer.note(f"the shutdown timer of {link.target.name} stays set: {e.message}")
