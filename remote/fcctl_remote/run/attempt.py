"""One step: its attempts, the processes it leaves, its documents and gates."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts, tree
from fcctl_remote.base.text import last_lines, tail
from fcctl_remote.record import TYPE_CHECKING
from fcctl_remote.run import environment
from fcctl_remote.run.control import RunControl
from fcctl_remote.run.process import NAMES, ProcessExit, StepProcess

if TYPE_CHECKING:
    from fcctl_remote.run.judge import StepVerdict

#: Between SIGTERM and SIGKILL when a step exceeds its time, seconds; ``FCCTL_KILL_GRACE_S`` in the job's env overrides.
KILL_GRACE_S = 10.0
JUDGE_TIMEOUT_S = 300.0
LOG_TAIL_BYTES = 64 * 1024
#: A system that shuts down sends SIGTERM to all processes at about the same time. A step that fails on a machine with a
#: shutdown timer may have got it first: wait this long for ours before the failure counts as the step's own, seconds.
NOTICE_S = 0.5
IDLE_HINT = "see in the step's log what it waited for; if the step needs no GPU, set `uses_gpu: false` in the job"
#: Less room than this counts as a full disk.
FULL_BYTES = 128 * 1024
SIGNAL_NAMES = {129: "SIGHUP", 130: "SIGINT", 132: "SIGILL", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE",
                137: "SIGKILL", 139: "SIGSEGV", 141: "SIGPIPE", 143: "SIGTERM"}  # fmt: skip


class StepRun:
    """Carries out one step for the control."""

    def __init__(self, control: RunControl, spec: wire.StepSpec, shared: Mapping[str, str]) -> None:
        self.control = control
        self.spec = spec
        self.run = control.run
        self.place = self.run.step(spec.id)
        self.env = environment.for_step(shared, self.run, spec)
        self.result = wire.StepResult(spec.id, "failed", activity=spec.activity)

    def carry_out(self) -> wire.StepResult:
        """Run the step with its retries; the result's status is final."""
        with contextlib.ExitStack() as stack:
            return self._carry_out(stack)

    def _carry_out(self, stack: contextlib.ExitStack) -> wire.StepResult:
        state = self.control.progress.state
        result = self.result
        started = time.monotonic()
        result.started = time.time()
        if not self._lacks_something(stack):
            for attempt in range(1, self.spec.retries + 2):
                self._attempt(attempt)
                if result.status not in ("failed", "timed_out") or self.control.ending is not None:
                    break
                if attempt <= self.spec.retries:
                    self._report(attempt)
        result.finished = time.time()
        result.duration_s = round(time.monotonic() - started, 6)
        # Where the run is about to end, what has passed by its exit code alone becomes cancelled.
        is_due = self.control.ending is None or result.status in ("passed", "warned")
        if is_due and (result.attempts or result.status == "unavailable"):
            self._judge()
            self._hint_at_resume()
        if result.attempts and result.status in ("passed", "warned"):
            self._sync()
        self._report(result.attempts)
        state.session = None
        return result

    def _sync(self) -> None:
        """Flush what a passed step left before anything says that it passed: a resumed run builds on it."""
        since = 0.0
        with contextlib.suppress(OSError):  # the step has deleted it
            since = os.lstat(self.place.script).st_ctime
        for folder in (self.place.folder, self.run.artifacts, os.path.realpath(self.run.source)):
            files.sync_tree(folder, since)
        for folder in (self.run.steps, self.run.folder):  # the names of those folders
            with files.suppress_unless_lost():  # the step may have put something else in its place
                files.sync_folder(folder)

    def _lacks_something(self, stack: contextlib.ExitStack) -> bool:
        """Whether the machine lacks what the job or the step needs: then the step is ``unavailable``. The libraries of
        a search stay on the disk until ``stack`` is closed."""
        lacking = self._unmet_needs() or self._unfit_container()
        if lacking is None and self.spec.tune is not None:
            lacking = environment.furnish_search(stack, self.control.layout, self.place, self.spec.tune, self.env)
        if lacking is None:
            return False
        self.result.status = "unavailable"
        self.result.message, self.result.hint = lacking
        self._announce(1)
        return True

    def _unmet_needs(self) -> tuple[str, str] | None:
        nothing = wire.Needs()
        for needs in (self.control.plan.needs, self.spec.needs):
            if needs == nothing:
                continue
            from fcctl_remote.probe.checks import check_needs

            inside = self.control.plan.container is not None  # its tools are the image's
            asked = wire.Needs(needs.gpu, needs.compute_capability) if inside else needs
            lacking = check_needs(asked, self.env)
            if lacking is not None:
                return lacking
        return None

    def _unfit_container(self) -> tuple[str, str] | None:
        plan = self.control.plan
        if plan.container is None:
            return None
        if self.spec.tune is not None:
            return "a search does not run in a container", 'leave `container` out of this job: container: ""'
        from fcctl_remote.probe import docker

        return docker.lacking(plan.container, (plan.needs, self.spec.needs), self.env)

    def _announce(self, attempt: int) -> None:
        control, spec = self.control, self.spec
        state = control.progress.state
        state.attempts = attempt
        summary = state.summary
        summary.step, summary.step_started, summary.step_timeout_s = spec.id, time.time(), spec.timeout_s
        control.progress.save()  # before the event: status must not contradict it
        control.events.append(
            "step_started",
            {"step": spec.id, "attempt": attempt, "timeout_s": spec.timeout_s, "index": summary.step_index},
        )

    def _attempt(self, attempt: int) -> None:
        control, spec, result = self.control, self.spec, self.result
        result.attempts, result.message, result.hint = attempt, None, None
        self._prepare(attempt)
        self._announce(attempt)
        control.mirror.note("step %s%s" % (spec.id, " (attempt %d)" % attempt if attempt > 1 else ""))
        control.mirror.follow(self.place.log)
        process = self._start()
        state = control.progress.state
        state.session, state.leader_started = process.pid, process.started
        try:
            control.progress.save()
        except files.DiskFull:
            control.progress.beat()  # the step fills the disk; its ending is written from the reserve
        control.gpu_idle.begin(spec.id)
        ended = process.wait(control.stop, control.idle, control.grace)
        control.gpu_idle.end()
        self._end_container(ended)
        control.progress.state.session = None
        control.mirror.show_news()
        control.mirror.follow(None)
        result.exit_code = ended.exit_code
        result.log = self.run.relative(self.place.log)
        self._classify(ended)
        self._warn_of_leftovers(ended)
        self._warn_of_replaced()

    def _prepare(self, attempt: int) -> None:
        for folder in (self.run.steps, self.place.folder):
            files.own_folder(folder)
        if attempt == 1:
            files.write_atomic(self.place.script, self.spec.run.encode("utf-8") + b"\n", durable=False)
        else:
            tree.remove_tree(self.place.out)  # half the documents of a failed attempt would pass for this one's
            line = "--- attempt %d of %d ---" % (attempt, self.spec.retries + 1)
            files.append_line(self.place.log, line.encode())
        files.own_folder(self.place.out)

    def _start(self) -> StepProcess:
        control = self.control
        control.grace_s = _seconds(self.env.get("FCCTL_KILL_GRACE_S"), KILL_GRACE_S)
        bash = hostfacts.which("bash", self.env) or "/bin/bash"
        secrets = control.secrets
        argv, env = [bash, "-eo", "pipefail", self.place.script], {**self.env, **secrets}
        if self.spec.tune is not None and secrets:
            env[NAMES] = " ".join(secrets)
        if control.plan.container is not None:
            from fcctl_remote.probe import docker
            from fcctl_remote.run.process import as_script

            env = dict(self.env)
            script = as_script(self.run, secrets)
            argv = docker.command(control.layout, self.run, self.place, control.plan, self.spec, env, script)
        return StepProcess(
            argv, self.run.source, env, self.place.log, self.spec.timeout_s, control.signals, list(secrets.values())
        )

    def _end_container(self, ended: ProcessExit) -> None:
        """Docker's client may have ended before its container."""
        if self.control.plan.container is None:
            return
        from fcctl_remote.probe import docker
        from fcctl_remote.run.process import drop

        drop(self.run)
        if ended.how != "exited" or ended.exit_code >= docker.ITS_OWN_FAILURE:
            problem = docker.remove(self.run.run_id, self.env)
            if problem is not None:
                name = docker.name_of(self.run, self.spec)
                self.control.warn("the step's container may still run: docker rm -f %s (%s)" % (name, problem))

    def _classify(self, ended: ProcessExit) -> None:
        """The status as the exit code and the clock have it, before documents and gates."""
        result = self.result
        how = ended.how if ended.how != "exited" else self._cut_short_by(ended.exit_code) or ended.how
        if how == "timed_out":
            result.status = "timed_out"
            result.message = "ran longer than its timeout of %g s and was ended" % self.spec.timeout_s
            result.hint = "raise the step's timeout, or reduce the work of the step"
        elif how == "run_limit":
            result.status, result.message = "timed_out", self.control.message
            result.hint = "raise the job's budget.minutes, or reduce the work of the job"
        elif how != "exited":
            result.status, result.message = "cancelled", self.control.message
            result.hint = IDLE_HINT if how == "idle" else None
        elif ended.exit_code == 0:
            result.status = "passed"
            result.message = environment.NCU_MESSAGE if environment.used_sudo(self.place) else None
        else:
            result.status = self.spec.exit_codes.get(str(ended.exit_code), "failed")
            if result.status not in wire.STEP_ENDINGS:
                result.status = "failed"
            if result.status != "passed":
                self._explain()
        if result.status != "passed" and hostfacts.free_bytes(self.run.folder) < FULL_BYTES:
            # The step could not log it: its log is on that disk.
            result.message = "the host's disk is full; %s" % (result.message or "")
            result.hint = _hint("No space left on device", None)

    def _cut_short_by(self, exit_code: int) -> str | None:
        """Why the run must end, if that may be why the step ended; None if the step ended by itself.

        Exit code 0 counts as the step's own unless the machine shuts down: a later run must not build on a step
        that was stopped half way.
        """
        control = self.control
        reason = control.stop()
        if exit_code == 0:
            return reason if reason == "preempted" else None
        deadline = time.monotonic() + (NOTICE_S if reason is None and self._power_ends() else 0.0)
        while reason is None and time.monotonic() < deadline:
            control.signals.wait(deadline - time.monotonic())
            reason = control.stop()
        return reason

    def _power_ends(self) -> bool:
        """Whether a shutdown timer is armed, as on every cloud machine."""
        from fcctl_remote.run.shutdown_timer import LeaseKeeper

        return LeaseKeeper(self.control.layout).armed()

    def _explain(self) -> None:
        """Put the last lines of the log into the message, and a known fix into the hint."""
        result = self.result
        code = result.exit_code or 0
        ending = tail(self.place.log, LOG_TAIL_BYTES)
        named = " (%s)" % SIGNAL_NAMES[code] if code in SIGNAL_NAMES else ""
        lines = last_lines(ending)
        result.message = "exit code %d%s%s" % (code, named, "\n" + lines if lines else "")
        result.hint = _hint(ending.decode("utf-8", "replace"), code, self.env.get("FCCTL_CUDA_ARCH"))

    def _hint_at_resume(self) -> None:
        """Name the command that resumes a search which was ended."""
        result = self.result
        ended = result.status == "timed_out" or (result.status == "failed" and result.exit_code in wire.ENDED_BY_OTHERS)
        if self.spec.tune is not None and ended:
            again = "the finished trials are kept; continue the search: fcctl run --resume %s" % self.run.run_id
            again += " --timeout TIME" if result.status == "timed_out" else ""
            result.hint = "%s; %s" % (result.hint, again) if result.hint else again

    def _warn_of_leftovers(self, ended: ProcessExit) -> None:
        if ended.leftovers:
            self.control.warn(
                "step '%s' did not end all its processes; fcctl ended: %s"
                % (self.spec.id, ", ".join(ended.leftovers[:10]))
            )
        if ended.immortal:
            self.control.warn(
                "step '%s': %d processes survived SIGKILL; the driver may hang" % (self.spec.id, ended.immortal)
            )

    def _warn_of_replaced(self) -> None:
        run = self.run
        own = (self.place.log, run.events, run.telemetry, run.heartbeat, run.plan, run.outcome)
        replaced = [run.relative(path) for path in own if files.is_replaced(path)]
        if replaced:
            what = "step '%s' replaced these files with something that is not a regular file: %s"
            self.control.warn(what % (self.spec.id, ", ".join(replaced)))

    def _judge(self) -> None:
        """Read the documents and decide the gates, if there are any."""
        spec, result = self.spec, self.result
        leaves_gates_open = result.status == "unavailable" and spec.unavailable_ok and bool(spec.gates)
        if result.status == "cancelled" or (result.status == "unavailable" and not leaves_gates_open):
            return
        if not (spec.gates or spec.collect or _any_json(self.place.out)):
            return
        from fcctl_remote.run.judge import Case, StepVerdict, aside, judge

        control = self.control
        case = Case(spec, result, control.progress.state.steps, self.env, control.plan.adopted)
        locks = [fd for fd in (control.lock, control.queue.fd) if fd is not None]
        work = lambda: wire.encode(judge(self.run, case))  # noqa: E731
        answer = aside(work, control.signals, JUDGE_TIMEOUT_S, control.stop, control.idle, close=locks)
        if answer.stopped is not None:
            result.status, result.message = "cancelled", control.message
        elif answer.fault is not None:
            if result.status in ("passed", "warned"):
                result.status, result.message = "failed", answer.fault
        else:
            self._accept(wire.decode(StepVerdict, answer.value))

    def _accept(self, verdict: StepVerdict) -> None:
        result = self.result
        result.status, result.message, result.hint = verdict.status, verdict.message, verdict.hint
        result.gates, result.documents = verdict.gates, verdict.documents
        self.control.progress.state.host.update(verdict.host)
        for ref in verdict.documents:
            self.control.events.append("document", {"step": result.id, "kind": ref.kind, "path": ref.path})
        for gate in verdict.gates:
            fields = {"expr": gate.expr, "value": gate.value, "verdict": gate.verdict, "hint": gate.hint}
            self.control.events.append("gate", {"step": result.id, **fields})
            self.control.mirror.note("gate %s: %s" % (gate.verdict, gate.expr))

    def _report(self, attempt: int) -> None:
        result = self.result
        began = self.control.progress.state.summary.step_started or result.started or 0.0
        self.control.events.append(
            "step_finished",
            {
                "step": result.id,
                "attempt": attempt,
                "status": result.status,
                "exit_code": result.exit_code,
                "duration_s": result.duration_s or round(time.time() - began, 6),
                "message": result.message,
                "hint": result.hint,
            },
        )
        self.control.mirror.note("step %s %s" % (result.id, result.status))


def _hint(log: str, exit_code: int | None, arch: str | None = None) -> str | None:
    from fcctl_remote.run import hints

    return hints.for_log(log, exit_code, arch)


def _seconds(text: str | None, default: float) -> float:
    try:
        return max(0.0, float(text)) if text is not None else default
    except ValueError:
        return default


def _any_json(out: str) -> bool:
    try:
        with os.scandir(out) as scan:
            return any(entry.name.endswith(".json") for entry in scan)
    except OSError:
        return False
