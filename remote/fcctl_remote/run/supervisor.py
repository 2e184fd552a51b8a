"""``supervise RUN``: carries out one run, step by step, and writes its outcome."""

from __future__ import annotations

import os
import sys
import time

from fcctl_remote import gates, wire
from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.base.processes import kill_family
from fcctl_remote.base.text import one_line
from fcctl_remote.run import environment, lost, process
from fcctl_remote.run import state as runs
from fcctl_remote.run.attempt import StepRun
from fcctl_remote.run.control import HostLock, RunControl
from fcctl_remote.run.process import Signals, become_subreaper

#: A process that asks whether the lock is free holds it for an instant, longer on a busy machine. Less than
#: :data:`fcctl_remote.run.lost.START_PATIENCE_S`, after which others take the run for lost.
LOCK_PATIENCE_S = 20.0
QUEUE_POLL_S = 0.05


def supervise(layout: Layout, run_id: str, runner: list[str]) -> int:
    """Carry out the run unless it began before. Returns the run's exit code."""
    run = layout.run(run_id)
    lock = files.wait_for_lock(run.supervisor_lock, LOCK_PATIENCE_S)
    if lock is None or runs.is_finished(run):
        return 0
    if runs.has_begun(run):
        lost.finalise(run)  # an earlier supervisor died: no step may run twice
        return runs.EXIT_CODES["lost"]
    signals = Signals()
    signals.install()  # before our number can be read: cancel sends SIGTERM to it
    os.ftruncate(lock, 0)
    os.write(lock, b"%d" % os.getpid())
    if files.is_plain(run.cancel):
        signals.stop_asked = True  # the cancel came before the number
    _divert_stderr(run)
    become_subreaper()
    return Supervisor(layout, run, lock, signals).carry_out(runner)


def _divert_stderr(run: RunLayout) -> None:
    fd = files.open_own(run.supervisor_log, os.O_WRONLY | os.O_APPEND)
    sys.stderr.flush()
    os.dup2(fd, 2)
    os.close(fd)


class Supervisor(RunControl):
    """Carries out one run. Holds the supervisor's lock: when it is free, the supervisor is dead."""

    def carry_out(self, runner: list[str]) -> int:
        """Run the steps and write the outcome; returns the run's exit code. ``runner`` starts this program again."""
        state = self.progress.state
        try:
            self.reserve.take()
            files.own_folder(self.run.artifacts)
            self._queue()
            state.started = time.time()
            if self.ending is None:
                self._run_steps(runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, the run needs an ending
            kill_family(ancestor=os.getpid())  # a step may have been running
            if files.is_disk_full(error):
                self._give_up("the host's disk is full: %s" % error)
            else:
                import traceback  # slow, and rarely needed

                traceback.print_exc()
                self._give_up("the host program failed: %s: %s" % (type(error).__name__, one_line(str(error))))
        return self._finish()

    def _give_up(self, message: str) -> None:
        self.ending = "error"
        self.message = "%s (%.1f MiB free on the host)" % (message, hostfacts.free_bytes(self.layout.root) / 1024**2)

    def _queue(self) -> None:
        """Wait until this run has the machine, or must end."""
        self.queue.join()
        summary = self.progress.state.summary
        reported = None
        while True:
            behind = self.queue.behind()
            if behind is None or self.stop() is not None:
                break
            if behind != reported:
                reported = summary.behind = behind
                self.progress.save()  # before the event: status must not contradict it
                self.events.append("queued", {"behind": behind})
                self.mirror.note("waiting for %s to end" % behind)
            self.signals.wait(QUEUE_POLL_S)
            self.progress.beat()
        summary.behind = None

    def _run_steps(self, runner: list[str]) -> None:
        if self.plan.max_minutes is not None:
            self.deadline = time.monotonic() + self.plan.max_minutes * 60
        state = self.progress.state
        state.summary.status = "running"
        self.progress.save()
        # On disk before a step runs: after a power cut the run must not begin again.
        self.events.append("run_started", {"job": self.plan.job, "host": state.host}, durable=True)
        self.mirror.note("%s (%s)   Ctrl-b d closes this view; the run continues" % (self.run.run_id, self.plan.job))
        values = process.take(self.run, self.plan.secrets)
        if values is None:
            self.ending, self.message = "error", "the secrets of the run were deleted: start the job again"
            return
        self.secrets = values
        shared = environment.for_run(self.layout, self.run, self.plan, runner, self.warn)
        for index, spec in enumerate(self.plan.steps):
            if self.stop() is not None:
                return
            state.summary.step_index = index
            result = StepRun(self, spec, shared).carry_out()
            state.steps.append(result)
            self.progress.save()
            if self.ending is not None or not self._goes_on(spec, result):
                return

    def _goes_on(self, spec: wire.StepSpec, result: wire.StepResult) -> bool:
        if self.reserve.spent:
            self._give_up("the host's disk is full: results of step '%s' may be incomplete" % spec.id)
            return False
        if gates.goes_on(spec, result):
            return True
        if result.status == "unavailable" and gates.incomplete([result]) is not None:
            return False  # nothing failed; _finish names the gate
        first = (result.message or result.status).split("\n", 1)[0]
        self.failure = self.failure or "step '%s': %s" % (spec.id, first)
        return spec.keep_going and result.status != "unavailable"

    def _finish(self) -> int:
        state = self.progress.state
        self._note_gpu()
        if self.ending is None and self.failure is not None:
            self.ending, self.message = "failed", self.failure
        elif self.ending is None:
            self.message = gates.incomplete([*(step.result for step in self.plan.adopted), *state.steps])
            self.ending = "passed" if self.message is None else "incomplete"
        outcome = runs.outcome(self.plan, self.ending, self.message, state)
        lost.conclude(self.run, outcome, self.events)
        self.mirror.note("%s%s" % (outcome.status, ": " + self.message if self.message else ""))
        self.queue.leave()
        if self.plan.idle_stop_s is not None:
            from fcctl_remote.run.shutdown_timer import stop_soon

            stop_soon(self.layout, self.run.run_id, self.plan.idle_stop_s - self._idle_before_the_end())
        if HostLock.is_free(self.layout):  # deleting disturbs no run
            from fcctl_remote.base.bundles import tidy

            tidy(self.layout)
        return outcome.exit_code

    def _idle_before_the_end(self) -> float:
        """How long the machine was idle when its idle GPU ended the run; one minute of ``idle_stop_s`` is left."""
        if self.ending != "idle" or self.plan.idle is None or self.plan.idle_stop_s is None:
            return 0.0
        return min(self.plan.idle.seconds, max(0.0, self.plan.idle_stop_s - wire.LEAST_IDLE_STOP_S))

    def _note_gpu(self) -> None:
        """Take the GPU's name from the telemetry if no step probed the machine, else from the driver: two runs of
        one machine must not differ because one ended before the first sample."""
        if "gpu" in self.progress.state.host:
            return
        sampled = (runs.last_sample(self.run) or {}).get("gpus") or []
        names = [gpu.get("name") for gpu in sampled] or hostfacts.driver_models()
        if names:
            self.progress.state.host["gpu"] = {"present": True, "name": names[0], "count": len(names)}
