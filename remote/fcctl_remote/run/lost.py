"""Ends a run whose supervisor died; the agent or the telemetry process does so, whichever notices first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import boot_id
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.run import process
from fcctl_remote.run import state as runs
from fcctl_remote.run.state import EventLog

#: A submitted run whose supervisor has not started after this time is lost, seconds.
START_PATIENCE_S = 30.0
#: How long to wait for another process that writes the outcome and first kills the orphans, seconds.
ENDED_BY_ANOTHER_S = 5.0


def end_abandoned(run: RunLayout) -> bool:
    """End a run that nobody will carry out, or carries out any more; returns whether the run is finished."""
    return settle_unstarted(run) or write_lost_outcome(run)


def write_lost_outcome(run: RunLayout) -> bool:
    """Write the outcome of a run that began and whose supervisor died; returns whether the run is finished."""
    if runs.is_finished(run):
        return True
    if not runs.has_begun(run):
        return False
    deadline = time.monotonic() + ENDED_BY_ANOTHER_S
    while True:
        with files.locked_now(run.supervisor_lock) as ours:
            if ours and not runs.is_finished(run):
                finalise(run)
        if ours or runs.is_finished(run):
            return True
        if _has_supervisor(run) or time.monotonic() > deadline:
            return False
        time.sleep(0.02)  # another process ends the run, or only looks at it; should it die, it is our turn


def _has_supervisor(run: RunLayout) -> bool:
    """Whether the process that has the run's lock supervises it, as far as can be told."""
    pid = runs.supervisor_pid(run)
    return pid is not None and (not pid or runs.is_supervisor(run, pid))


def settle_unstarted(run: RunLayout, cancelled: str | None = None) -> bool:
    """End a submitted run that never began: as cancelled, or as lost once it is too late to begin."""
    plan = None if runs.has_begun(run) or runs.is_finished(run) else runs.load_plan(run)
    if plan is None:
        return False
    with unbegun(run) as ours:
        if not ours:
            return False
        cancelled = cancelled or _cancel_status(run)
        if cancelled is not None:
            status, message = cancelled, "cancelled before its start"
        elif _too_late(run):
            status = "lost"
            message = "the host program did not start the run: the machine restarted, or tmux ended"
        else:
            return False
        _conclude(run, runs.outcome(plan, status, message))
    return True


@contextmanager
def unbegun(run: RunLayout) -> Iterator[bool]:
    """Hold the supervisor's lock; yields whether the run has not begun. It cannot begin meanwhile."""
    if runs.has_begun(run) or runs.is_finished(run):
        yield False
        return
    with files.locked_now(run.supervisor_lock) as ours:
        # Asked again under the lock: its supervisor may have run meanwhile.
        yield ours and not (runs.has_begun(run) or runs.is_finished(run))


def _cancel_status(run: RunLayout) -> str | None:
    """The status of a ``cancel`` that took another holder of the lock for the supervisor."""
    request = files.read_object(run.cancel)
    return None if request is None else str(request.get("status", "cancelled"))


def _too_late(run: RunLayout) -> bool:
    """Whether, since the run was submitted, the machine has restarted or START_PATIENCE_S have passed. The time is that
    of the monotonic clock, which does not change when the system's clock is set."""
    submission = files.read_object(run.submission) or {}
    if submission.get("boot_id") != boot_id():
        return True
    submitted = submission.get("up_s")
    return not isinstance(submitted, (int, float)) or time.monotonic() - submitted > START_PATIENCE_S


def finalise(run: RunLayout) -> None:
    """Kill the orphans and write the outcome ``lost``. The caller holds the supervisor's lock."""
    state = runs.load_state(run)
    plan = runs.load_plan(run) or wire.RunPlan(run.run_id, state.summary.job if state else "-", "", "", "", [])
    restarted = state is not None and state.boot_id != boot_id()
    if restarted:
        message = "the machine restarted during the run"
    else:
        message = "the host program died during the run"
        session, leader_started = (state.session, state.leader_started) if state is not None else (None, None)
        killed = process.end_orphans(run.run_id, session, leader_started)
        if killed:
            message += "; %d remaining process%s %s killed" % (
                killed, "" if killed == 1 else "es", "was" if killed == 1 else "were",
            )  # fmt: skip
    if plan.container is not None:
        from fcctl_remote.probe import docker

        docker.remove(run.run_id, os.environ)
    if state is not None:
        due = plan.steps[len(state.steps) :]
        if due and due[0].id == state.summary.step:
            state.steps.append(_interrupted(run, due[0], state, restarted))
    _conclude(run, runs.outcome(plan, "lost", message, state))


def _interrupted(run: RunLayout, spec: wire.StepSpec, state: runs.State, restarted: bool) -> wire.StepResult:
    """The step that ran: at least until the last heartbeat, or until it last printed."""
    started = state.summary.step_started
    seen = state.summary.heartbeat or started
    with suppress(OSError):
        seen = max(seen or 0.0, os.lstat(run.step(spec.id).log).st_mtime)
    return wire.StepResult(
        id=spec.id,
        status="failed",
        started=started,
        finished=seen,
        duration_s=max(0.0, seen - started) if seen is not None and started is not None else 0.0,
        attempts=state.attempts,
        activity=spec.activity,
        message="the machine restarted" if restarted else "the host program died",
        hint="see its log: fcctl logs %s; continue the run: fcctl run --resume %s" % (run.run_id, run.run_id),
        log="steps/%s/log.txt" % spec.id,
    )


def conclude(run: RunLayout, outcome: wire.Outcome, log: EventLog) -> None:
    """Write how the run ended: its last event, then its outcome. Raises: DiskFull: not even the reserve made room."""
    with suppress(files.DiskFull):  # the outcome says the same
        log.append(
            "run_finished", {"status": outcome.status, "exit_code": outcome.exit_code, "message": outcome.message}
        )
    process.drop(run)
    runs.write_outcome(run, outcome, log.reserve)
    with suppress(OSError):
        log.reserve.give_back()


def _conclude(run: RunLayout, outcome: wire.Outcome) -> None:
    conclude(run, outcome, EventLog(run.events, files.DiskReserve(run.reserve)))
