"""The second fence: a machine that fcctl owns powers itself off, even if nobody comes back to stop it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError, HostFault, HostUnusable
from orchestrator.base.observer import Observer
from orchestrator.machines.cloud_api import Login
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.targets import GcpTarget

#: Past the worst case of the run, for sending the source and fetching the results.
MARGIN_S = 15 * 60.0


@dataclass(frozen=True)
class Armed:
    token: str
    deadline: float  # epoch seconds on the host's clock


def arm(link: ReconnectingHost, run_id: str, worst_s: float, observer: Observer) -> Armed | None:
    """Set the machine's own shutdown timer past the worst case of a run, whose steps take ``worst_s`` seconds then.

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
        lease = link.call(
            lambda s: s.lease(
                wire.LeaseRequest("arm", deadline=s.hello.time + worst_s + MARGIN_S, dry=False, reason=f"run {run_id}")
            )
        )
    except HostFault as e:
        raise HostUnusable(
            f"{link.target.name} does not let fcctl set its shutdown timer",
            cause=e.message,
            hint=e.hint or "or say `owned = false` for this target: fcctl then never powers it off",
        ) from e
    return Armed(lease.token or "", lease.deadline or 0.0)


def disarm(link: ReconnectingHost, token: str, observer: Observer) -> None:
    """Take the timer away again: the run is home. If that fails the machine stops too early, never too late."""
    try:
        link.call(lambda s: s.lease(wire.LeaseRequest("disarm", token=token, reason="the run is home")))
    except HostFault as e:
        observer.note(f"the shutdown timer of {link.target.name} stays set: {e.message}")


@dataclass(frozen=True)
class Fence:
    """What a timer on a machine that fcctl woke has to keep to."""

    #: Fence 1, epoch seconds of the cloud's clock, which the machine's own follows. None: it has none.
    not_after: float | None
    #: Whoever holds the machine's login key knows it, so that all runs from one computer move one timer.
    token: str
    #: The machine was turned on for this run: a timer from before that start is void.
    fresh: bool = False


def token_of(login: Login, target: GcpTarget) -> str:
    """The same for every run from this computer on this machine, and nobody else's: it comes from the login key."""
    secret = login.identity_file.read_bytes()
    machine = f"{target.project}/{target.instance}"
    return hashlib.sha256(b"fcctl lease\0" + machine.encode() + b"\0" + secret).hexdigest()[:32]


def arm_within(link: ReconnectingHost, fence: Fence, run_id: str, worst_s: float, observer: Observer) -> Armed:
    """Set the shutdown timer of a machine that fcctl woke: past the worst case of a run, never past fence 1.

    A timer that another run of ours set is moved later, if need be.

    Args:
        worst_s: what the steps take in the worst case, seconds.

    Raises:
        BudgetError: the machine is to go off, by the cloud or by a timer that is not ours, before the steps are done.
        HostUnusable: the machine does not let us set a timer.
    """
    now = link.host_now()
    deadline = now + worst_s + MARGIN_S
    if fence.not_after is not None:
        _check_fits(link.target.name, fence.not_after - now, worst_s, "the cloud")
        deadline = min(deadline, fence.not_after)
    present = link.call(lambda s: s.lease(wire.LeaseRequest("show", fresh=fence.fresh)))
    if not (present.armed and not present.dry and (present.deadline or 0.0) > now):
        armed = _arm_first(link, fence, deadline, run_id)
        if armed is not None:
            return armed
        present = link.call(lambda s: s.lease(wire.LeaseRequest("show")))
    if (present.deadline or 0.0) >= deadline:
        return Armed("", present.deadline or 0.0)
    return _renew(link, fence, present, deadline, worst_s, observer)


def _arm_first(link: ReconnectingHost, fence: Fence, deadline: float, run_id: str) -> Armed | None:
    """Set the timer where none is. None if another run was quicker, and its timer ends before ``deadline``.

    Raises:
        HostUnusable: the machine does not let us set a timer.
    """
    request = wire.LeaseRequest(
        "arm", deadline=deadline, not_after=fence.not_after, token=fence.token, dry=False, reason=f"run {run_id}"
    )
    try:
        lease = link.call(lambda s: s.lease(request))
    except HostFault as e:
        if e.fault == "conflict":
            return None
        raise HostUnusable(
            f"{link.target.name} does not let fcctl set its shutdown timer",
            cause=e.message,
            hint=e.hint or "log in and see why: fcctl hosts ssh " + link.target.name,
        ) from e
    return Armed(fence.token, lease.deadline or deadline)


def _renew(
    link: ReconnectingHost, fence: Fence, present: wire.Lease, deadline: float, worst_s: float, observer: Observer
) -> Armed:
    request = wire.LeaseRequest("renew", deadline=deadline, not_after=fence.not_after, token=fence.token)
    try:
        lease = link.call(lambda s: s.lease(request))
    except HostFault as e:
        if e.fault != "denied":
            raise
        left = (present.deadline or 0.0) - link.host_now()
        _check_fits(link.target.name, left, worst_s, "a shutdown timer that another computer set")
        observer.note(f"{link.target.name} powers itself off in {left / 60:.0f} minutes: another computer's timer")
        return Armed("", present.deadline or 0.0)
    return Armed(fence.token, lease.deadline or deadline)


def _check_fits(name: str, left_s: float, worst_s: float, who: str) -> None:
    if left_s < worst_s:
        raise BudgetError(
            f"{name} is turned off in {max(0.0, left_s) / 60:.0f} minutes by {who}, and the steps may take"
            f" {worst_s / 60:.0f}",
            hint="wait until it is off, or add --restart to start it with a limit of its own",
        )


#: A timer that ends within so many seconds of what is wanted is left as it is: setting one takes a while.
CLOSE_ENOUGH_S = 30.0


def keep_on(link: ReconnectingHost, seconds: float, token: str, reason: str) -> float | None:
    """Have the machine power itself off after ``seconds``, whether it was to do so earlier or later than that.

    Never past fence 1. When that is, by its own clock; None if it does not let us.
    """
    deadline = link.host_now() + seconds
    present = link.call(lambda s: s.lease(wire.LeaseRequest("show")))
    if not present.armed or present.dry or present.deadline is None or present.deadline > deadline:
        return shorten(link, seconds, token, reason)
    if deadline - present.deadline <= CLOSE_ENOUGH_S:
        return present.deadline
    try:
        return link.call(
            lambda s: s.lease(wire.LeaseRequest("renew", deadline=deadline, token=token, reason=reason))
        ).deadline
    except HostFault:  # another computer's timer: it ends sooner
        return present.deadline


def shorten(link: ReconnectingHost, seconds: float, token: str, reason: str) -> float | None:
    """Have the machine power itself off after ``seconds``, or earlier if it was to; when that is, by its own clock.

    None if it does not let us.
    """
    deadline = link.host_now() + seconds
    try:
        present = link.call(lambda s: s.lease(wire.LeaseRequest("show")))
        if present.armed and not present.dry and present.deadline is not None and present.deadline <= deadline:
            return present.deadline
        request = wire.LeaseRequest("arm", deadline=deadline, token=token, dry=False, reason=reason)
        return link.call(lambda s: s.lease(request)).deadline
    except HostFault:
        return None
