"""Starts the host program: found by its hash or uploaded, with the first Python there that is new enough.

A warm start takes one round trip: the shell that finds Python becomes the agent, and the first call is already in its
standard input.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NoReturn, Protocol

from orchestrator.base.errors import HostUnusable, LinkLost
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.framing import EndOfOutput
from orchestrator.machines.connect.host_command import NO_PYTHON, HostProgram, shell_path
from orchestrator.machines.connect.transport import Transport, run_to_end

NO_ROOM = 95
#: A command that checks whether the shell there executes commands and leaves their input alone.
_PROBE = 's="fcctl-${line:+is}-here"; cat; echo "$s"'
_PROBE_TIMEOUT_S = 5.0
_PROBE_BYTES = 64 * 1024


class Runner(Protocol):
    """The host program as an archive: what ``runner_archive.build_runner`` returns."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...


def start(transport: Transport, runner: Runner, *, root: str, python: str | None, timeout_s: float) -> AgentSession:
    """A session with the agent. Raises HostUnusable: no Python >= 3.8 there, no room for the host program, or it does
    not start; HostFault: something else answers; LinkLost: the link broke meanwhile."""
    try:
        return _started(transport, runner, root=root, python=python, timeout_s=timeout_s)
    except (HostUnusable, LinkLost):
        _check_shell(transport, min(timeout_s, _PROBE_TIMEOUT_S))
        raise


def _check_shell(transport: Transport, timeout_s: float) -> None:
    """Raises HostUnusable if no command can work there; a dead connection is not judged."""
    if not transport.remote or not transport.alive():
        return
    try:
        answer = run_to_end(transport, _PROBE, b"fcctl-input\n", _PROBE_BYTES, timeout_s)
    except (LinkLost, OSError):
        return
    if answer.status is None or b"fcctl-input\nfcctl-is-here" in answer.output:
        return
    raise HostUnusable(
        "the machine does not run the commands it is sent",
        cause=(f"it says: {answer.stderr.splitlines()[-1]}; " if answer.stderr else "")
        + "a startup file of the shell there (.bashrc, .zshenv, config.fish, ...) ends it, puts another program in its "
        "place, or reads what is meant for the command; or sshd has a ForceCommand for this login",
        hint="have that file do so only where there is a terminal: in .bashrc, [[ $- == *i* ]] || return",
    )


def _started(transport: Transport, runner: Runner, *, root: str, python: str | None, timeout_s: float) -> AgentSession:
    program = HostProgram(runner.sha256, root, python)
    for attempt in ("first", "after upload"):
        process = transport.run(program.script("agent", unpacked=attempt == "first"))
        session = AgentSession(transport, process, program, timeout_s)
        try:
            session.greet()
        except EndOfOutput:
            status = process.wait(timeout_s)  # else a missing program looks like a broken connection
            stderr = process.stderr()
            process.close()
        except BaseException:
            process.close()
            raise
        else:
            return session
        if status == NO_PYTHON:
            _no_python(python)
        if attempt == "after upload" or (status is None and not transport.alive()):
            break
        # Absent, or too damaged to repair itself.
        upload_runner(transport, runner, root=root, timeout_s=timeout_s)
    if status is None:
        raise LinkLost("the connection broke while the host program started", cause=stderr or None, hint="try again")
    raise HostUnusable(
        "the host program does not start, though it was installed again",
        cause=stderr or f"it ended with {status}",
        hint="see what its Python says, on the machine itself: "
        f"{shlex.quote(python or 'python3')} -I -S {shell_path(root)}/runner/{runner.sha256}.pyz version",
    )


def upload_runner(transport: Transport, runner: Runner, *, root: str, timeout_s: float) -> None:
    """Put the archive in place; it appears there only when it is whole. Raises HostUnusable: there is no room, or no
    right to write."""
    data = runner.path.read_bytes()
    script = (
        f'umask 077; d={shell_path(root)}/runner; t="$d/.{runner.sha256}.$$"; mkdir -p "$d" && cat >"$t" && '
        f'[ "$(wc -c <"$t")" -eq {len(data)} ] && mv -f "$t" "$d/{runner.sha256}.pyz" && exit 0; '
        f'rm -f "$t"; exit {NO_ROOM}'
    )
    try:
        done = run_to_end(transport, script, data, 0, timeout_s)
    except TimeoutError:
        raise LinkLost("the connection fell silent", cause=f"nothing moved for {timeout_s:g} s") from None
    if done.status is None:
        raise LinkLost("the connection broke while the host program was sent", hint="try again")
    if done.status != 0:
        raise HostUnusable(
            "the host program cannot be stored there", cause=done.stderr or f"writing below {root} failed",
            hint=f"{_cure(done.stderr, root)}, or set another `root` for the target",
        )  # fmt: skip


def _cure(stderr: str, root: str) -> str:
    """The hint for a message of the shell there: an error about rights, else a full disk."""
    if any(words in stderr.lower() for words in ("not a directory", "permission denied", "read-only", "not permitted")):
        return f"make {root} a folder you may write (ls -ld {root})"
    return f"free some space (df -h {root})"


def _no_python(python: str | None) -> NoReturn:
    if python:
        raise HostUnusable(
            f"'{python}' there is no Python 3.8 or later", hint="set `python` of the target, or remove it to search"
        )
    raise HostUnusable(
        "no Python 3.8 or later was found there",
        hint="install one (apt install python3), or set `python` of the target to its full path",
    )
