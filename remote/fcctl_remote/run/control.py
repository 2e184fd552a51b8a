"""The state of a run while it is carried out, and why it must end before its last step: a cancel, its limits, GPUs that
do nothing; and its place in the machine's queue."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import time
from collections.abc import Callable, Iterator

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import RUN_ID, Layout, RunLayout
from fcctl_remote.base.text import TerminalMirror, new_lines, one_line
from fcctl_remote.run import state as runs
from fcctl_remote.run.process import Signals

#: Between SIGTERM and SIGKILL for a step whose controller is gone, seconds: nobody waits for what it would still write.
ATTACHED_GRACE_S = 2.0
#: A place in the queue: number, exclusive or shared, run.
TICKET = re.compile(r"\d+\.[sx]\." + RUN_ID.pattern)
#: How often the telemetry is read, seconds; it has a line a second.
LOOK_S = 1.0
#: Without a sample of the GPUs for so long, nobody measures them, seconds. nvidia-smi is restarted within this time.
SILENT_S = 30.0
#: What is read in one look: some hundred samples of eight GPUs.
MOST_BYTES = 1024 * 1024


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
        self.events = runs.EventLog(run.events, self.reserve)
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
            self.ending, self.message = "cancelled", "the fcctl process that started this run has ended"
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
        if self.signals.is_cancelled and not request:
            request = {"status": "cancelled", "reason": "the host's disk is full"}
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

    def grace(self) -> float:
        """Seconds between SIGTERM and SIGKILL; a later cancel may shorten them."""
        given = (files.read_object(self.run.cancel) or {}).get("grace_s")
        return min(self.grace_s, float(given)) if isinstance(given, (int, float)) else self.grace_s

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


class HostLock:
    """A run's place in the machine's first-come queue of tickets, each alive as long as its holder's flock.

    Whoever sees a dead one drops it. Exclusive runs have the machine to themselves; shared ones go side by side."""

    def __init__(self, layout: Layout, run_id: str, mode: str) -> None:
        self._layout = layout
        self._run_id = run_id
        self._shared = mode == "shared"
        self.fd: int | None = None  # keeps the ticket alive; a forked child must close it
        self._name = ""

    @classmethod
    def is_free(cls, layout: Layout) -> bool:
        """Whether no run has the machine, or waits for it."""
        queue = cls(layout, "", "shared")
        return not any(queue._alive(name) for name in queue._tickets())

    def join(self) -> None:
        """Take a ticket behind all others."""
        with files.locked(os.path.join(self._layout.locks, "queue.lock")):
            taken = self._tickets()
            number = max([int(name.split(".")[0]) for name in taken], default=0) + 1
            self._name = "%012d.%s.%s" % (number, "s" if self._shared else "x", self._run_id)
            # Locked before it is visible, else another would take it for a dead one.
            temporary = os.path.join(self._layout.tickets, ".new-" + self._run_id)
            self.fd = files.open_own(temporary, os.O_RDWR, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            os.rename(temporary, self._path(self._name))

    def behind(self) -> str | None:
        """The run to wait for; None once this run has the machine."""
        for name in self._tickets():
            if name >= self._name:
                break
            _, mode, run_id = name.split(".", 2)
            if not (self._shared and mode == "s") and self._alive(name):
                return run_id
        return None

    def leave(self) -> None:
        """Leave the queue; safe to call twice."""
        if self.fd is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(self._name))
        os.close(self.fd)
        self.fd = None

    def _tickets(self) -> list[str]:
        names = filter(TICKET.fullmatch, os.listdir(self._layout.tickets))
        return sorted(name for name in names if files.is_plain(self._path(name)))

    def _path(self, name: str) -> str:
        return os.path.join(self._layout.tickets, name)

    def _alive(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if files.is_locked(self._path(name)):
                return True
            os.unlink(self._path(name))
        return False


class GpuIdleWatch:
    """Whether the GPUs do nothing while a step runs that is to use them, by every sample of the run's own telemetry.
    Where nothing is measured (no nvidia-smi, a GPU that reports no utilisation), no run is ended.

    Looks at one step at a time, from :meth:`begin` to :meth:`end`."""

    def __init__(
        self,
        telemetry: str,
        rule: wire.GpuIdle | None,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._telemetry = telemetry
        self._rule = rule
        self._warn = warn
        self._clock = clock
        self._step: str | None = None
        self._offset = 0
        self._looked = 0.0
        self._measured = 0.0  # when the last sample of the GPUs was read
        self._since: float | None = None  # since when no GPU was busy
        self._warned = False

    def begin(self, step: str) -> None:
        """An attempt at the step begins; only a step of the rule is watched."""
        if self._rule is None or step not in self._rule.steps:
            return
        self._step, self._since = step, None
        self._looked = self._measured = self._clock()
        self._offset = files.size_of(self._telemetry)

    def end(self) -> None:
        self._step = None

    def verdict(self) -> str | None:
        """Why the run is to end, as a sentence; None while there is no reason."""
        rule, now = self._rule, self._clock()
        if rule is None or self._step is None or now - self._looked < LOOK_S:
            return None
        self._looked = now
        for busiest in self._utilisations():
            self._measured = now
            if busiest >= rule.below_pct:
                self._since = None
            elif self._since is None:
                self._since = now
        if now - self._measured > SILENT_S:
            self._since = None
            self._say_that_nothing_is_measured()
        if self._since is None or now - self._since < rule.seconds:
            return None
        return "GPU utilisation below %g %% for %s in step '%s'" % (rule.below_pct, _minutes(rule.seconds), self._step)

    def _utilisations(self) -> Iterator[float]:
        """Of each new sample the busiest GPU's, percent; nothing of a sample in which one GPU does not report it."""
        lines, self._offset = new_lines(self._telemetry, self._offset, MOST_BYTES)
        for line in lines:
            try:
                gpus = json.loads(line).get("gpus") or []
                busy = [float(gpu["util_pct"]) for gpu in gpus]
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
            if busy:
                yield max(busy)

    def _say_that_nothing_is_measured(self) -> None:
        if not self._warned:
            self._warned = True
            self._warn(
                "this machine does not report GPU utilisation, so fcctl cannot end step '%s' for an idle GPU"
                % self._step
            )


def _minutes(seconds: float) -> str:
    return "%g minutes" % (seconds / 60) if seconds >= 60 else "%g s" % seconds
