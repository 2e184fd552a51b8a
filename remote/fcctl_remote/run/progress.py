"""``heartbeat.json``: the state of a live run, from which another process writes the outcome if we die."""

from __future__ import annotations

import contextlib
import os
import time

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.record import Any, Record, field

HEARTBEAT_S = 2.0


class State(Record):
    """What the file holds."""

    summary: wire.RunSummary
    boot_id: str
    pid: int
    started: float = 0.0
    session: int | None = None  # the running step's process group and session
    leader_started: str | None = None  # when its first process was: a number alone may be another's by now
    attempts: int = 0
    steps: list[wire.StepResult] = field(default_factory=list)
    host: dict[str, Any] = field(default_factory=dict)


class Progress:
    """Keeps the file current. Its modification time is the heartbeat, which needs no room on a full disk."""

    def __init__(self, run: RunLayout, state: State, reserve: files.DiskReserve) -> None:
        self.run = run
        self.state = state
        self._reserve = reserve
        self._beaten = 0.0

    def save(self) -> None:
        """Raises: DiskFull, when not even the reserve makes room."""
        data = files.to_json(wire.encode(self.state))
        # A step that still runs would eat the reserve.
        spare = self.state.session is not None
        self._reserve.write(lambda: files.write_atomic(self.run.heartbeat, data, durable=False), spare)
        self._beaten = time.monotonic()

    def beat(self) -> None:
        """Renew the heartbeat, at most every HEARTBEAT_S seconds."""
        now = time.monotonic()
        if now - self._beaten >= HEARTBEAT_S:
            self._beaten = now
            with contextlib.suppress(OSError):
                os.utime(self.run.heartbeat, follow_symlinks=False)


def load(run: RunLayout) -> State | None:
    """The run's last known state; None if it has not begun."""
    stored = files.read_object(run.heartbeat)
    if stored is None:
        return None
    try:
        state = wire.decode(State, stored)
        state.summary.heartbeat = os.lstat(run.heartbeat).st_mtime
    except (wire.WireError, OSError):
        return None
    return state


def summary(run: RunLayout) -> wire.RunSummary | None:
    """The run's last known summary, without its steps; None if it has not begun."""
    stored = files.read_object(run.heartbeat)
    if stored is None:
        return None
    try:
        known = wire.decode(wire.RunSummary, stored.get("summary"))
        known.heartbeat = os.lstat(run.heartbeat).st_mtime
    except (wire.WireError, OSError):
        return None
    return known if known.run_id == run.run_id else None
