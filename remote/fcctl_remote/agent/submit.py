"""Submits a run: it starts once, however often and from however many connections it is submitted."""

from __future__ import annotations

import os
import subprocess
import time

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts
from fcctl_remote.base.layout import STEP_ID, Layout, RunLayout
from fcctl_remote.base.refusal import Refusal
from fcctl_remote.run import earlier, environment, lost, tmux
from fcctl_remote.run import state as runs


def submit(layout: Layout, plan: wire.RunPlan, runner: list[str]) -> wire.Submitted:
    """Start the run, in tmux or attached to this connection, unless it was started before.

    Raises:
        Refusal: bad_request, no_tmux, no_bash, disk_full, or conflict when the id stands for another plan. The host
            then does not have the run, unless it had it before.
    """
    run = layout.run(plan.run_id)
    _check(plan)
    _check_bundles(layout, plan)
    if hostfacts.which("bash") is None:
        raise Refusal("no_bash", "bash is not installed on the host", "install it there: sudo apt-get install -y bash")
    files.make_folders(run.folder)
    with files.locked(run.submit_lock):
        new = _claim(layout, run, plan)
        started = False
        if not new:
            lost.settle_unstarted(run)  # of an earlier boot: what its snapshot holds is not known
        if new or not (runs.has_begun(run) or runs.is_finished(run) or runs.supervisor_pid(run) is not None):
            # Not new: an earlier call died between the plan and tmux. One that is just starting has its session.
            started = _start(layout, run, plan, runner)
        else:
            lost.write_lost_outcome(run)
    summary = runs.summary(run)
    if summary is None:
        raise Refusal("internal", "run %s vanished while it was submitted" % plan.run_id)
    return wire.Submitted("started" if started else "exists", summary)


def _check(plan: wire.RunPlan) -> None:
    ids = [step.id for step in plan.steps]
    for name in ids:
        if not STEP_ID.fullmatch(name):
            raise Refusal("bad_request", "%r is not a step id" % name[:80])
    if not ids or len(set(ids)) != len(ids):
        raise Refusal("bad_request", "a plan needs steps, each with an id of its own")
    if plan.wire_version != wire.WIRE_VERSION:
        raise Refusal("bad_request", "the plan is of wire version %d, not %d" % (plan.wire_version, wire.WIRE_VERSION))
    for env in [plan.env, *(step.env for step in plan.steps)]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise Refusal("bad_request", "%r cannot be an environment variable" % name[:80])
    earlier.check_adopted(plan)


def _check_bundles(layout: Layout, plan: wire.RunPlan) -> None:
    """Raises: Refusal: not_found, if a step's libraries are not here."""
    for step in plan.steps:
        if step.tune is not None:
            from fcctl_remote.base.bundles import Bundles

            if not Bundles(layout).here(step.tune.bundle):
                raise Refusal(
                    "not_found", "the libraries of step '%s' are not on this machine" % step.id, "run it again"
                )


def _claim(layout: Layout, run: RunLayout, plan: wire.RunPlan) -> bool:
    """Write plan.json if there is none; the caller holds the submit lock."""
    if runs.is_known(run):
        _same_plan(run, plan)
        return False
    earlier.inherit(layout, run, plan)
    if not os.path.isdir(run.source):
        raise Refusal("conflict", "run %s has no snapshot of the source yet" % plan.run_id)
    submission = {"boot_id": hostfacts.boot_id(), "time": time.time(), "env": environment.of_submission()}
    earlier.place_adopted(run, plan)
    files.write_atomic(run.submission, files.to_json(submission), durable=False, mode=0o600)
    files.write_atomic(run.plan, files.to_json(wire.encode(plan)) + b"\n")
    return True


def _same_plan(run: RunLayout, plan: wire.RunPlan) -> None:
    present = runs.load_plan(run)
    if present is not None and present != plan:
        raise Refusal("conflict", "run %s was submitted with another plan" % plan.run_id, "use a new run id")


def _start(layout: Layout, run: RunLayout, plan: wire.RunPlan, runner: list[str]) -> bool:
    supervise = tmux.command_line(runner, layout.root, "supervise", plan.run_id)
    if plan.attached:
        return _start_attached(supervise, run.folder)
    try:
        return tmux.start(
            plan.run_id,
            supervise,
            tmux.command_line(runner, layout.root, "telemetry", plan.run_id),
            run.folder,
        )
    except Refusal:
        if _withdraw(run):
            raise
        return True  # whatever tmux complains of, the supervisor is there


def _start_attached(command: list[str], cwd: str) -> bool:
    """Start the supervisor on a pipe that this process holds for as long as it lives."""
    nothing = subprocess.DEVNULL
    _ATTACHED.append(
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, cwd=cwd, start_new_session=True
        )
    )
    return True


#: Kept so that neither the pipe is closed nor the child reaped before this process ends.
_ATTACHED: list[subprocess.Popen[bytes]] = []


def _withdraw(run: RunLayout) -> bool:
    """Take the plan back, so that nobody waits for a run that tmux did not start; False if it did."""
    with lost.unbegun(run) as ours:
        if ours:
            os.unlink(run.plan)
    return ours
