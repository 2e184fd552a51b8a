"""The machine's own shutdown timer: a machine that fcctl owns powers itself off, even without a controller."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError, HostFault, HostUnusable
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.interfaces import Login
from orchestrator.machines.targets import CloudTarget

#: Added to the worst case of the run, for sending the source and fetching the results.
MARGIN_S = 15 * 60.0
#: A timer within so many seconds of the wanted time is not changed.
CLOSE_ENOUGH_S = 30.0


@dataclass(frozen=True)
class Armed:
    token: str
    deadline: float  # epoch seconds on the host's clock
    #: The deadline of the present timer, if it was moved later; None: it was not.
    before: float | None = None


@dataclass(frozen=True)
class TimerLimits:
    """The limits of a timer on a machine that fcctl started."""

    #: The cloud's deadline, epoch seconds; the machine's clock follows the cloud's. None: never.
    not_after: float | None
    #: Derived from the login key, so that all runs from one computer share one timer.
    token: str
    #: The machine was started for this run: an earlier timer is void.
    fresh: bool = False


def token_of(login: Login, target: CloudTarget) -> str:
    """The same for every run from this computer on this machine, and for nobody else: derived from the login key."""
    secret = login.identity_file.read_bytes()
    machine = f"{target.project}/{target.instance}"
    return hashlib.sha256(b"fcctl lease\0" + machine.encode() + b"\0" + secret).hexdigest()[:32]


def _lease(link: ReconnectingHost, action: str, **fields: Any) -> wire.Lease:
    request = wire.LeaseRequest(action, **fields)
    return link.call(lambda session: session.lease(request))


def _arm(link: ReconnectingHost, hint: str, **fields: Any) -> wire.Lease:
    """Raises HostUnusable: the machine does not let us set a timer; HostFault: another run set it first."""
    try:
        return _lease(link, "arm", dry=False, **fields)
    except HostFault as e:
        if e.fault == "conflict":
            raise
        what = f"{link.target.name} refused fcctl's shutdown timer"
        raise HostUnusable(what, cause=e.message, hint=e.hint or hint) from e


def _runs(lease: wire.Lease) -> bool:
    return lease.armed and not lease.dry


# ------------------------------------------------------------------------------------------------- of an owned SSH host
def arm(link: ReconnectingHost, run_id: str, worst_s: float, observer: Observer) -> Armed | None:
    """Sets the timer of an SSH host that is declared as owned, later than the worst case of a run (``worst_s``
    seconds). None if another run's timer is set: that run will remove it. Raises HostUnusable: the target has ``owned =
    true``, and the machine does not let us power it off."""
    if _lease(link, "show").armed:
        observer.note(f"{link.target.name} already has a shutdown timer, set by another run")
        return None
    deadline = link.call(lambda session: session.hello.time) + worst_s + MARGIN_S
    hint = "or set `owned = false` in this target: fcctl then never powers it off"
    lease = _arm(link, hint, deadline=deadline, reason=f"run {run_id}")
    return Armed(lease.token or "", lease.deadline or 0.0)


def disarm(link: ReconnectingHost, token: str, observer: Observer) -> None:
    """Removes the timer after the run was collected. If that fails the machine stops too early, never too late."""
    try:
        _lease(link, "disarm", token=token, reason="the run is collected")
    except HostFault as e:
        observer.note(f"the shutdown timer of {link.target.name} could not be removed: {e.message}")


# -------------------------------------------------------------------------------------- of a machine that fcctl started
def arm_idle(link: ReconnectingHost, limits: TimerLimits, seconds: float, reason: str) -> float:
    """Sets the timer of a machine that was just started to ``seconds`` from now, not later than the cloud's own limit;
    returns the time by its own clock. Raises HostUnusable: the machine does not let us."""
    deadline = min(link.host_now() + seconds, limits.not_after or float("inf"))
    _lease(link, "show", fresh=True)
    fields = {"deadline": deadline, "not_after": limits.not_after, "token": limits.token}
    lease = _arm(link, f"log in and find out why: fcctl hosts ssh {link.target.name}", reason=reason, **fields)
    return lease.deadline or deadline


def arm_within(link: ReconnectingHost, limits: TimerLimits, run_id: str, worst_s: float, observer: Observer) -> Armed:
    """Sets the timer of a machine that fcctl started: later than the worst case of a run (``worst_s`` seconds), not
    later than the cloud's own limit. A timer of another run of ours is moved later if needed.

    Raises BudgetError: the machine stops, by the cloud or by another's timer, before the steps are done; HostUnusable:
    the machine does not let us set a timer.
    """
    now, name = link.host_now(), link.target.name
    deadline = now + worst_s + MARGIN_S
    if limits.not_after is not None:
        _check_fits(name, limits.not_after - now, worst_s, "the cloud")
        deadline = min(deadline, limits.not_after)
    fields: dict[str, Any] = {"deadline": deadline, "not_after": limits.not_after, "token": limits.token}
    present = _lease(link, "show", fresh=limits.fresh)
    if not (_runs(present) and (present.deadline or 0.0) > now):
        try:
            lease = _arm(link, f"log in and find out why: fcctl hosts ssh {name}", reason=f"run {run_id}", **fields)
            return Armed(limits.token, lease.deadline or deadline)
        except HostFault:  # another run set it first
            present = _lease(link, "show")
    if (present.deadline or 0.0) >= deadline:
        return Armed("", present.deadline or 0.0)
    try:
        lease = _lease(link, "renew", **fields)
    except HostFault as e:
        if e.fault != "denied":
            raise
        left_s = (present.deadline or 0.0) - link.host_now()
        _check_fits(name, left_s, worst_s, "a shutdown timer that another computer set")
        observer.note(f"{name} powers itself off in {left_s / 60:.0f} minutes, by a timer that another computer set")
        return Armed("", present.deadline or 0.0)
    return Armed(limits.token, lease.deadline or deadline, present.deadline)


def move_later(link: ReconnectingHost, deadline: float, token: str, reason: str) -> None:
    """Moves a timer that is set to ``deadline`` if it is earlier, but not past the cloud's own limit."""
    present = _lease(link, "show")
    if _runs(present) and (present.deadline or 0.0) < deadline - CLOSE_ENOUGH_S:
        _lease(link, "renew", deadline=deadline, token=token, reason=reason)


def _check_fits(name: str, left_s: float, worst_s: float, who: str) -> None:
    if left_s < worst_s:
        raise BudgetError(
            f"{name} is stopped in {max(0.0, left_s) / 60:.0f} minutes by {who}, but the steps may take "
            f"{worst_s / 60:.0f}",
            hint="wait until it is off, or stop it and start it with a new time limit: --restart",
        )


def keep_on(link: ReconnectingHost, seconds: float, token: str, reason: str, *, longer: bool = True) -> float | None:
    """Sets the machine to power off after ``seconds``: earlier than before or, if ``longer``, later, but not later than
    the cloud's own limit. Returns the time by its own clock; None if it does not let us."""
    deadline = link.host_now() + seconds
    try:
        present = _lease(link, "show")
        if not _runs(present) or present.deadline is None or present.deadline > deadline:
            return _lease(link, "arm", deadline=deadline, token=token, dry=False, reason=reason).deadline
    except HostFault:
        return None
    if not longer or deadline - present.deadline <= CLOSE_ENOUGH_S:
        return present.deadline
    try:
        return _lease(link, "renew", deadline=deadline, token=token, reason=reason).deadline
    except HostFault:  # another computer's timer, which ends earlier
        return present.deadline
