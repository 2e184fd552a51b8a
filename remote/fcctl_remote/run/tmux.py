"""The tmux session of a run: window ``run`` holds the supervisor, window ``gpu`` the telemetry."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence

from fcctl_remote.base.hostfacts import which
from fcctl_remote.base.programs import run
from fcctl_remote.base.text import one_line
from fcctl_remote.wire import Refusal

#: How long tmux may take to start a session, seconds.
PATIENCE_S = 20.0
#: A server whose last session has just ended is about to leave, and answers so. The next call starts a new one. If the
#: session was made all the same, asking again is harmless: a run that has begun is not begun a second time.
LEAVING = ("server exited unexpectedly", "lost server", "no server running", "error connecting")
LEAVING_ATTEMPTS, LEAVING_WAIT_S = 8, 0.03


def session_name(run_id: str) -> str:
    return "fcctl-" + run_id


def start(run_id: str, supervise: Sequence[str], telemetry: Sequence[str], cwd: str) -> bool:
    """Start both windows with one call; False if there is a session of that name, which is left as it is. Raises
    Refusal: no_tmux, with tmux's own words."""
    program = which("tmux")
    if program is None:
        raise Refusal(
            "no_tmux", "tmux is not installed on the host", "install it on the machine: sudo apt-get install -y tmux"
        )
    name = session_name(run_id)
    command = [program, "-u", "new-session", "-d", "-s", name, "-n", "run", "-x", "160", "-y", "48", "-c", cwd]
    command += [_shell(supervise), ";", "new-window", "-d", "-t", "=%s:" % name, "-n", "gpu", "-c", cwd]
    # A user's own configuration may ask tmux to end sessions nobody looks at, or itself where nobody looks at any.
    command += [_shell(telemetry), ";", "set-option", "-t", "=%s:" % name, "destroy-unattached", "off"]
    command += [";", "set-option", "-s", "exit-unattached", "off"]
    for attempt in range(LEAVING_ATTEMPTS):
        output, code = _call(command)
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


def _call(command: Sequence[str]) -> tuple[str, int]:
    """What tmux said on standard error, and its exit code."""
    # Without TMUX: started from within tmux, the session must still go to the user's default server.
    env = {name: value for name, value in os.environ.items() if name not in ("TMUX", "TMUX_PANE")}
    done = run(command, PATIENCE_S, env)
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
