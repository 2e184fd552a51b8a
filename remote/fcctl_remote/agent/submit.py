"""Submits a run: it starts once, however often and from however many connections it is submitted."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from fcctl_remote import wire
from fcctl_remote.base import files, hostfacts, programs, tree
from fcctl_remote.base.layout import STEP_ID, Layout, RunLayout
from fcctl_remote.base.text import one_line
from fcctl_remote.run import environment, lost, process
from fcctl_remote.run import state as runs
from fcctl_remote.wire import Refusal

#: How long tmux may take to start a session, seconds.
PATIENCE_S = 20.0
#: A server whose last session has just ended is about to leave, and answers so. The next call starts a new one. If the
#: session was made all the same, asking again is harmless: a run that has begun is not begun a second time.
LEAVING = ("server exited unexpectedly", "lost server", "no server running", "error connecting")
LEAVING_ATTEMPTS, LEAVING_WAIT_S = 14, 0.03
#: Who looks whether a run was abandoned has its lock for an instant, longer on a busy machine, seconds.
LOOK_PATIENCE_S = 5.0


def submit(layout: Layout, plan: wire.RunPlan, runner: list[str], secret_values: Mapping[str, str]) -> wire.Submitted:
    """Start the run, in tmux or attached to this connection, unless it was started before. Raises Refusal: bad_request,
    no_tmux, no_bash, no_memory_files, disk_full, or conflict when the id stands for another plan. The host then does
    not have the run, unless it had it before."""
    run = layout.run(plan.run_id)
    _check(plan)
    _check_bundles(layout, plan)
    if hostfacts.which("bash") is None:
        raise Refusal(
            "no_bash", "bash is not installed on the host", "install it on the machine: sudo apt-get install -y bash"
        )
    files.make_folders(run.folder)
    with files.locked(run.submit_lock):
        new = _claim(layout, run, plan)
        started = False
        if not new:
            lost.settle_unstarted(run)  # of an earlier boot: what its snapshot holds is not known
        if new or not (runs.has_begun(run) or runs.is_finished(run) or _has_supervisor(run)):
            # Not new: an earlier call died between the plan and tmux. One that is just starting has its session.
            if plan.secrets:
                process.hand_over(run, secret_values)
            started = _start(run, plan, runner)
        else:
            lost.write_lost_outcome(run)
    summary = runs.summary(run)
    if summary is None:
        raise Refusal("internal", "the files of run %s were deleted while it was submitted" % plan.run_id)
    return wire.Submitted("started" if started else "exists", summary)


def _has_supervisor(run: RunLayout) -> bool:
    """Whether a process keeps the supervisor's lock; one that only looks at the run does not keep it."""
    fd = files.wait_for_lock(run.supervisor_lock, LOOK_PATIENCE_S)
    if fd is not None:
        os.close(fd)
    return fd is None


def _check(plan: wire.RunPlan) -> None:
    ids = [step.id for step in plan.steps]
    for name in ids:
        if not STEP_ID.fullmatch(name):
            raise Refusal("bad_request", "%r is not a step id" % name[:80])
    if not ids or len(set(ids)) != len(ids):
        raise Refusal("bad_request", "a plan needs steps, and each step needs its own id")
    if plan.wire_version != wire.WIRE_VERSION:
        raise Refusal("bad_request", "the plan has wire version %d, not %d" % (plan.wire_version, wire.WIRE_VERSION))
    for env in [plan.env, *(step.env for step in plan.steps)]:
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise Refusal("bad_request", "%r is not a valid name for an environment variable" % name[:80])
    check_adopted(plan)


def _check_bundles(layout: Layout, plan: wire.RunPlan) -> None:
    """Raises: Refusal: not_found, if a step's libraries are not here."""
    for step in plan.steps:
        if step.tune is not None:
            from fcctl_remote.base.bundles import Bundles

            if not Bundles(layout).here(step.tune.bundle):
                raise Refusal(
                    "not_found", "the libraries of step '%s' are not on this machine" % step.id, "start the job again"
                )


def _claim(layout: Layout, run: RunLayout, plan: wire.RunPlan) -> bool:
    """Write plan.json if there is none; the caller holds the submit lock."""
    if runs.is_known(run):
        present = runs.load_plan(run)
        if present is not None and present != plan:
            message = "run %s was already submitted with a different plan" % plan.run_id
            raise Refusal("conflict", message, "use a new run id")
        return False
    inherit(layout, run, plan)
    if not os.path.isdir(run.source):
        raise Refusal("conflict", "run %s has no snapshot of the source yet" % plan.run_id)
    env = environment.of_submission(plan.secrets)
    submission = {"boot_id": hostfacts.boot_id(), "up_s": time.monotonic(), "env": env}
    place_adopted(run, plan)
    files.write_atomic(run.submission, files.to_json(submission), durable=False, mode=0o600)
    files.write_atomic(run.plan, files.to_json(wire.encode(plan)) + b"\n")
    return True


def _start(run: RunLayout, plan: wire.RunPlan, runner: list[str]) -> bool:
    supervise = [*runner, "supervise", plan.run_id]
    if plan.attached:
        return _start_attached(supervise, run.folder)
    try:
        return start_session(plan.run_id, supervise, [*runner, "telemetry", plan.run_id], run.folder)
    except Refusal:
        if _withdraw(run):
            raise
        return True  # whatever tmux complains of, the supervisor is there


def _start_attached(command: list[str], cwd: str) -> bool:
    """Start the supervisor on a pipe that this process holds for as long as it lives."""
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    started = subprocess.Popen(command, stdin=pipe, stdout=nothing, stderr=nothing, cwd=cwd, start_new_session=True)
    _ATTACHED.append(started)
    return True


#: Kept so that neither the pipe is closed nor the child reaped before this process ends.
_ATTACHED: list[subprocess.Popen[bytes]] = []


def _withdraw(run: RunLayout) -> bool:
    """Take the plan back, so that nobody waits for a run that tmux did not start; False if it did."""
    with lost.unbegun(run) as ours:
        if ours:
            os.unlink(run.plan)
            process.drop(run)
    return ours


def check_adopted(plan: wire.RunPlan) -> None:
    """Raises: Refusal: bad_request, if an adopted step has no acceptable name, or a document no place of its own."""
    taken = {step.id for step in plan.steps}
    for finished in plan.adopted:
        step_id = finished.result.id
        if not STEP_ID.fullmatch(step_id) or step_id in taken:
            raise Refusal("bad_request", "the adopted step %r needs its own id" % step_id[:80])
        taken.add(step_id)
        if len(finished.documents) != len(finished.result.documents):
            raise Refusal("bad_request", "documents of the adopted step %r are missing" % step_id)
        for ref in finished.result.documents:
            if tree.path_fault(ref.path) or not ref.path.startswith("steps/%s/" % step_id):
                raise Refusal("bad_request", "%r is not a valid path for a document of %r" % (ref.path[:200], step_id))


def place_adopted(run: RunLayout, plan: wire.RunPlan) -> None:
    """Write the documents before the run can begin. Writing them twice is harmless."""
    for finished in plan.adopted:
        for index, ref in enumerate(finished.result.documents):
            path = os.path.join(run.folder, ref.path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            files.write_atomic(path, files.to_json(finished.documents[index]), durable=False)


def inherit(layout: Layout, run: RunLayout, plan: wire.RunPlan) -> None:
    """Give ``run`` the folders of ``plan.resume_from``. Doing it twice is harmless.

    The working folder stays where it is, because build files may hold its path; this run's is a link to it. Artifacts
    are shared by hard links: the other run's are collected. Raises Refusal: conflict, if the other run is not on this
    host, still runs, was of another source, or was resumed before."""
    if plan.resume_from is None or os.path.lexists(run.source):
        return
    earlier = layout.run(plan.resume_from)
    before = runs.load_plan(earlier)
    if before is None or not os.path.isdir(earlier.source):
        raise Refusal(
            "conflict",
            "this host no longer has the files of run %s" % plan.resume_from,
            "start a new run: fcctl run JOB",
        )
    if before.tree_sha256 != plan.tree_sha256:
        raise Refusal("conflict", "run %s used other source files" % plan.resume_from, "start a new run: fcctl run JOB")
    if not lost.write_lost_outcome(earlier):
        raise Refusal("conflict", "run %s has not ended" % plan.resume_from, "see its state: fcctl ps")
    for other in layout.run_ids():
        known = runs.load_plan(layout.run(other))
        if known is not None and known.resume_from == plan.resume_from:
            message, hint = "run %s has already resumed run %s", "resume that one: fcctl run --resume %s"
            raise Refusal("conflict", message % (other, plan.resume_from), hint % other)
    os.makedirs(run.folder, exist_ok=True)
    if not os.path.islink(earlier.artifacts) and os.path.isdir(earlier.artifacts):
        tree.remove_tree(run.artifacts)  # of an attempt that was cut off
        _share(earlier.artifacts, run.artifacts)
    os.symlink(os.path.realpath(earlier.source), run.source)


def _share(source: str, target: str) -> None:
    """A second name for each file and link below ``source``; a copy where the file system has no such thing."""
    for top, children in files.walk(source):
        folder = os.path.join(target, os.path.relpath(top, source))
        os.makedirs(folder, exist_ok=True)
        for child in children:
            link = child.is_symlink()
            if link or child.is_file(follow_symlinks=False):
                name = os.path.join(folder, child.name)
                try:
                    os.link(child.path, name, follow_symlinks=False)
                except OSError:
                    shutil.copy2(child.path, name, follow_symlinks=False)


def start_session(run_id: str, supervise: Sequence[str], telemetry: Sequence[str], cwd: str) -> bool:
    """Start the run's session with one call: window ``run`` with the supervisor, ``gpu`` with the telemetry. False if
    there is a session of that name, which is left as it is. Raises Refusal: no_tmux, with tmux's own words."""
    program = hostfacts.which("tmux")
    if program is None:
        raise Refusal(
            "no_tmux", "tmux is not installed on the host", "install it on the machine: sudo apt-get install -y tmux"
        )
    name = "fcctl-" + run_id
    command = [program, "-u", "new-session", "-d", "-s", name, "-n", "run", "-x", "160", "-y", "48", "-c", cwd]
    command += [_shell(supervise), ";", "new-window", "-d", "-t", "=%s:" % name, "-n", "gpu", "-c", cwd]
    # A user's own configuration may ask tmux to end sessions nobody looks at, or itself where nobody looks at any.
    command += [_shell(telemetry), ";", "set-option", "-t", "=%s:" % name, "destroy-unattached", "off"]
    command += [";", "set-option", "-s", "exit-unattached", "off"]
    for attempt in range(LEAVING_ATTEMPTS):
        output, code = _tmux(command)
        if not any(text in output for text in LEAVING):
            break
        time.sleep(LEAVING_WAIT_S * (attempt + 1))
    if "duplicate session" in output:
        return False
    # A supervisor that finishes at once ends the session under the later commands' feet: the run has been started.
    if code != 0 and not any(text in output for text in ("can't find", "no such")):
        raise Refusal(
            "no_tmux",
            "tmux could not start the run: %s" % (output or "exit code %d" % code),
            "test it on the machine: tmux new-session -d -s check && tmux kill-session -t check",
        )
    return True


def _tmux(command: Sequence[str]) -> tuple[str, int]:
    """What tmux said on standard error, and its exit code."""
    # Without TMUX: started from within tmux, the session must still go to the user's default server.
    env = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
    done = programs.run(command, PATIENCE_S, env)
    if done.timed_out:
        raise Refusal(
            "no_tmux",
            "tmux did not answer within %g s" % PATIENCE_S,
            "the tmux server hangs; end it on the machine: tmux kill-server",
        )
    if done.code is None:
        raise Refusal(
            "no_tmux",
            "tmux on the host does not start: %s" % done.err,
            "reinstall it on the machine: sudo apt-get install --reinstall tmux",
        )
    return one_line(done.err), done.code


def _shell(argv: Sequence[str]) -> str:
    """tmux hands this to a shell; ``exec`` so that the window's process is ours."""
    return "exec " + shlex.join(argv)
