"""The state of a run while it is carried out, and why it must end before its last step."""

from __future__ import annotations

import contextlib
import os
import select
import time

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.base.text import one_line
from fcctl_remote.run import state as runs
from fcctl_remote.run.events import EventLog
from fcctl_remote.run.gpu_idle import GpuIdleWatch
from fcctl_remote.run.mirror import TerminalMirror
from fcctl_remote.run.process import Signals
from fcctl_remote.run.queue import HostLock

#: Between SIGTERM and SIGKILL for a step whose controller is gone, seconds: nobody waits for what it would still write.
ATTACHED_GRACE_S = 2.0


class RunControl:
    """The parts of one run that the supervisor and its steps share. ``lock`` is the supervisor's lock."""

    def __init__(self, layout: Layout, run: RunLayout, lock: int, signals: Signals) -> None:
        self.layout = layout
        self.run = run
        self.lock = lock
        self.signals = signals
        plan = runs.load_plan(run)
        if plan is None:
            raise FileNotFoundError(run.plan)
        self.plan = plan
        self.connection = ConnectionLifetime() if plan.attached else None
        self.mirror = TerminalMirror(1)
        self.reserve = files.DiskReserve(run.reserve)
        self.events = EventLog(run.events, self.reserve)
        self.queue = HostLock(layout, run.run_id, plan.lock)
        summary = wire.RunSummary(run.run_id, plan.job, "queued", plan.created, step_count=len(plan.steps))
        state = runs.State(summary, hostfacts.boot_id(), os.getpid(), host=hostfacts.brief())
        self.progress = runs.Progress(run, state, self.reserve)
        self.deadline: float | None = None  # of the whole run, monotonic
        self.money_ends: float | None = None  # monotonic: a clock that is set meanwhile buys no time
        if plan.stop_by is not None:
            self.money_ends = time.monotonic() + plan.stop_by - time.time()
        self.gpu_idle = GpuIdleWatch(run.telemetry, plan.idle, self.warn_during_step)
        self.ending: str | None = None  # why the run must stop before its last step
        self.message: str | None = None
        self.failure: str | None = None  # of the first step that failed and did not end the run
        self.secrets: dict[str, str] = {}  # for the steps' environment only
        self.grace_s = 10.0

    def stop(self) -> str | None:
        """Why everything must end now; None while there is no reason."""
        if self.ending is None and self.signals.stop_asked:
            self._obey_cancel()
        if self.ending is None and self.connection is not None and self.connection.broken():
            self.ending, self.message = "cancelled", "the fcctl that started this run has ended"
            self.grace_s = ATTACHED_GRACE_S
        if self.ending is None and self.money_ends is not None and time.monotonic() >= self.money_ends:
            self.ending, self.message = "over_budget", "the run has spent its budget"
        if self.ending is None and (idle := self.gpu_idle.verdict()) is not None:
            self.ending, self.message = "idle", idle
        if self.ending is None and self.deadline is not None and time.monotonic() >= self.deadline:
            self.ending = "failed"
            self.message = "the run reached its limit of %g minutes" % (self.plan.max_minutes or 0)
            return "run_limit"
        return self.ending

    def _obey_cancel(self) -> None:
        request: dict[str, object] = files.read_object(self.run.cancel) or {}
        status, reason = str(request.get("status", "preempted")), one_line(str(request.get("reason") or ""))
        self.ending = status if status in ("cancelled", "over_budget") else "preempted"
        if request:
            grace = request.get("grace_s")
            self.grace_s = float(grace) if isinstance(grace, (int, float)) else 10.0
            self.message = reason or None
        else:
            self.message = "the host program received SIGTERM: the machine is shutting down"
        # The step still runs, so the reserve stays where it is.
        with contextlib.suppress(files.DiskFull):
            self.events.append("cancel_requested", {"reason": self.message or ""}, spare_reserve=True)

    def idle(self) -> None:
        self.progress.beat()
        self.mirror.show_news()

    def warn(self, message: str) -> None:
        self.events.append("warning", {"message": one_line(message)})
        self.mirror.note("warning: " + message)

    def warn_during_step(self, message: str) -> None:
        """The step still runs, so the reserve stays where it is."""
        with contextlib.suppress(files.DiskFull):
            self.events.append("warning", {"message": one_line(message)}, spare_reserve=True)
        self.mirror.note("warning: " + message)


class ConnectionLifetime:
    """The supervisor's end of the pipe from the agent that started an attached run: it breaks with the connection."""

    def __init__(self) -> None:
        self._fd = os.dup(0)
        self._broken = False
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # no step inherits it

    def broken(self) -> bool:
        """Whether the process that held the other end is gone."""
        self._broken = self._broken or bool(select.select([self._fd], [], [], 0)[0])
        return self._broken
