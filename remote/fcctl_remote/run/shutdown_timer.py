"""The shutdown timer, a lease: the operating system powers the machine off at the deadline, whatever becomes of us.

The deadline can be moved earlier by anyone, later only by who holds the token, and never past ``not_after``, which is
the cloud's own deadline. A *dry* lease is only written down: the machine is not ours to power off.
"""

from __future__ import annotations

import os
import secrets
import time

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import boot_id, which
from fcctl_remote.base.layout import Layout
from fcctl_remote.base.programs import run
from fcctl_remote.base.text import one_line
from fcctl_remote.record import Record
from fcctl_remote.run import state as runs
from fcctl_remote.wire import Refusal

UNIT = "fcctl-lease"
SUDO_HINT = 'allow it without a password: echo "$USER ALL=(root) NOPASSWD: $(command -v shutdown)" in /etc/sudoers.d'
#: Seconds between the end of a host's last run and the look at the timer.
IDLE_PATIENCE_S = 5.0


class Stored(Record):
    """``lease.json``."""

    lease: wire.Lease
    unit: str | None = None  # the systemd timer that keeps it
    reason: str = ""
    changed: float = 0.0


class LeaseKeeper:
    """Answers ``lease`` calls."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def handle(self, request: wire.LeaseRequest) -> wire.Lease:
        """Raises: Refusal: bad_request, denied (token, privileges) or conflict (a later deadline without a token)."""
        with files.locked(self._layout.lease_lock):
            stored = self._of_this_boot(request.fresh)
            acts = {"arm": self._arm, "renew": self._renew, "disarm": self._disarm}
            if request.op in acts:
                return acts[request.op](stored, request)
            if request.op == "show":
                return _without_token(stored.lease)
        raise Refusal("bad_request", "the operation must be show, arm, renew or disarm, not %r" % request.op[:40])

    def armed(self) -> bool:
        """Whether the machine is to power itself off. Changes nothing, and waits for nobody."""
        lease = self._load().lease
        return lease.armed and not lease.dry

    def _arm(self, stored: Stored, request: wire.LeaseRequest) -> wire.Lease:
        present = stored.lease
        if not present.armed:
            token = request.token or secrets.token_hex(16)  # whoever arms first learns it
            new = wire.Lease(True, request.dry, _deadline(request), request.not_after, token)
            return self._apply(stored, new, request.reason)
        if present.deadline is not None and _deadline(request) > present.deadline:
            raise Refusal(
                "conflict",
                "a shutdown timer is already set, for %.0f s from now; only `renew` can move it later"
                % (present.deadline - time.time()),
                "renew the timer with the token that set it",
            )
        made = self._move(stored, request, present.dry and request.dry)
        return made if request.token == present.token else _without_token(made)

    def _renew(self, stored: Stored, request: wire.LeaseRequest) -> wire.Lease:
        self._authorise(stored.lease, request)
        return self._move(stored, request, stored.lease.dry)

    def _move(self, stored: Stored, request: wire.LeaseRequest, dry: bool) -> wire.Lease:
        limit = _earliest(stored.lease.not_after, request.not_after)
        lease = wire.Lease(True, dry, _deadline(request), limit, stored.lease.token)
        return self._apply(stored, lease, request.reason)

    def _disarm(self, stored: Stored, request: wire.LeaseRequest) -> wire.Lease:
        if not stored.lease.armed:
            return _without_token(stored.lease)
        self._authorise(stored.lease, request)
        if not stored.lease.dry:
            _cancel_timer(stored)
        return self._end(stored, request.reason).lease

    def _authorise(self, lease: wire.Lease, request: wire.LeaseRequest) -> None:
        if not lease.armed:
            raise Refusal("conflict", "no shutdown timer is set", "set one first: arm")
        if lease.token is None or not secrets.compare_digest(lease.token, request.token or ""):
            raise Refusal("denied", "another controller set the shutdown timer: the token is not the one that set it")

    def _apply(self, stored: Stored, lease: wire.Lease, reason: str) -> wire.Lease:
        """Set the timer first: if we die before writing it down, the machine stops too early and never too late."""
        unit, lease.deadline = None, _earliest(lease.deadline, lease.not_after)
        lease.boot_id, lease.mechanism = boot_id(), "none"
        if not lease.dry:
            lease.mechanism, unit = _set_timer(lease.deadline or time.time())
            if stored.unit is not None and stored.unit != unit:
                _stop_unit(stored.unit)
        self._save(Stored(lease, unit, reason, time.time()))
        return lease

    def _of_this_boot(self, fresh: bool) -> Stored:
        """What is stored. A restart cleared the timer: it is set again if the deadline is to come; it is history
        otherwise, and where the caller has just started the machine."""
        stored = self._load()
        lease = stored.lease
        if not lease.armed or lease.boot_id == boot_id():
            return stored
        if fresh or lease.deadline is None or lease.deadline <= time.time():
            return self._end(stored)
        self._apply(Stored(lease), lease, stored.reason)
        return self._load()

    def _end(self, stored: Stored, reason: str = "") -> Stored:
        """A lease whose timer is cancelled, or went with the boot that it was set in."""
        lease = wire.Lease(armed=False, dry=stored.lease.dry, boot_id=boot_id(), mechanism="none")
        ended = Stored(lease, None, reason, time.time())
        self._save(ended)
        return ended

    def _load(self) -> Stored:
        try:
            return wire.decode(Stored, files.read_object(self._layout.lease))
        except wire.WireError:
            return Stored(wire.Lease(armed=False))

    def _save(self, stored: Stored) -> None:
        files.write_atomic(self._layout.lease, files.to_json(wire.encode(stored)), mode=0o600)


def stop_soon(layout: Layout, run_id: str, seconds: float) -> bool:
    """Move the shutdown timer to ``seconds`` from now, unless another run is at work; whether it was moved.

    A controller that follows the run, or is about to send another one, has a moment to set the timer itself: what it
    sets stays. So does an earlier timer; where none is armed none is made: that machine is not fcctl's to power off.
    """
    keeper = LeaseKeeper(layout)
    try:
        before = keeper.handle(wire.LeaseRequest("show"))
        time.sleep(IDLE_PATIENCE_S)
        if any(_is_live(layout, other) for other in layout.run_ids() if other != run_id):
            return False
        present = keeper.handle(wire.LeaseRequest("show"))
        if present != before or not present.armed or present.dry:
            return False
        reason = "run %s has ended, and no other run uses the machine" % run_id
        keeper.handle(wire.LeaseRequest("arm", deadline=time.time() + seconds, dry=False, reason=reason))
    except (Refusal, OSError):
        return False
    return True


def _is_live(layout: Layout, run_id: str) -> bool:
    run = layout.run(run_id)
    return not runs.is_finished(run) and runs.supervisor_pid(run) is not None


def _deadline(request: wire.LeaseRequest) -> float:
    if request.deadline is None:
        raise Refusal("bad_request", "%s needs a deadline" % request.op)
    return request.deadline


def _earliest(*times: float | None) -> float | None:
    return min((moment for moment in times if moment is not None), default=None)


def _without_token(lease: wire.Lease) -> wire.Lease:
    return wire.Lease(lease.armed, lease.dry, lease.deadline, lease.not_after, None, lease.boot_id, lease.mechanism)


def _set_timer(deadline: float) -> tuple[str, str | None]:
    """Have the operating system power off at ``deadline``; the mechanism, and the unit if systemd keeps it."""
    seconds = max(0.0, deadline - time.time())
    systemd_run = which("systemd-run") if os.path.isdir("/run/systemd/system") else None
    if systemd_run is not None and which("systemctl") is not None:
        # To the second, and without the ban on logins that shutdown puts up five minutes before.
        unit = "%s-%d" % (UNIT, int(time.time() * 1000))
        argv = [systemd_run, "--unit", unit, "--on-active", "%ds" % seconds, "--timer-property=AccuracySec=1s"]
        if _run([*argv, which("systemctl") or "systemctl", "poweroff"]) is None:
            return "systemd", unit
    shutdown = which("shutdown")
    if shutdown is None:
        raise Refusal("denied", "the machine has no shutdown and no systemd-run for a shutdown timer", SUDO_HINT)
    argv = [shutdown, "-P", "+%d" % (seconds // 60), "fcctl: this machine shuts down when its timer ends"]
    fault = _run(argv)
    if fault is not None:
        _run([shutdown, "-c"])  # some shutdowns refuse a second timer
        fault = _run(argv)
    if fault is not None:
        raise Refusal("denied", "the shutdown timer could not be set: %s" % fault, SUDO_HINT)
    return "shutdown", None


def _cancel_timer(stored: Stored) -> None:
    if stored.unit is not None:
        fault = _stop_unit(stored.unit)
    else:
        shutdown = which("shutdown")
        fault = _run([shutdown, "-c"]) if shutdown is not None else "shutdown is not installed"
    if fault is not None:
        raise Refusal("denied", "the shutdown timer could not be cancelled: %s" % fault, SUDO_HINT)


def _stop_unit(unit: str) -> str | None:
    return _run([which("systemctl") or "systemctl", "stop", unit + ".timer"])


def _run(argv: list[str]) -> str | None:
    """Run as root; None if it worked, else why not."""
    if os.geteuid() != 0:
        sudo = which("sudo")
        if sudo is None:
            return "not root, and sudo is not installed"
        argv = [sudo, "-n", *argv]
    done = run(argv, 30.0)
    if done.ok:
        return None
    return "no answer within 30 s" if done.timed_out else one_line(done.out + done.err) or "exit code %s" % done.code
