"""Starting the host program: found by its hash or uploaded, with the first Python there that is new enough.

In the warm case all of it is one round trip: the shell that finds the Python becomes the agent, and the first call
is already waiting in its standard input.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NoReturn, Protocol

from orchestrator.adapters.hosts.agent import AgentSession
from orchestrator.adapters.hosts.frames import EndOfOutput
from orchestrator.adapters.hosts.transport import Transport
from orchestrator.errors import HostUnusable, LinkLost

#: Exit statuses of the shell, before it becomes the agent.
NO_RUNNER, NO_PYTHON, NO_ROOM = 93, 94, 95
#: Where else than on PATH a Python is: an SSH command's PATH is not a login shell's.
PYTHONS = (
    "python3",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/homebrew/bin/python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    '"$HOME"/.venv/bin/python3',
    "/opt/*/.venv/bin/python3",
    "/opt/*/venv/bin/python3",
    "/opt/conda/bin/python3",
    '"$HOME"/miniconda3/bin/python3',
    '"$HOME"/miniforge3/bin/python3',
    '"$HOME"/.local/share/uv/python/*/bin/python3',
    '"$HOME"/.pyenv/versions/*/bin/python3',
)


class Runner(Protocol):
    """The host program as an archive: what ``runner_archive.build_runner`` returns."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...


def start(transport: Transport, runner: Runner, *, root: str, python: str | None, timeout_s: float) -> AgentSession:
    """A session with the agent.

    Raises:
        HostUnusable: no Python >= 3.8 there, no room for the host program, or it does not start.
        HostFault: something else answers.
        LinkLost: the link broke meanwhile.
    """
    script = start_script(runner.sha256, root, python)
    for attempt in ("first", "after upload"):
        process = transport.run(script)
        session = AgentSession(transport, process, runner.sha256, timeout_s)
        try:
            session.greet()
        except EndOfOutput:
            status = process.wait(2.0)
            said = process.stderr()
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
        # Absent; or damaged, which a fresh copy mends.
        upload_runner(transport, runner, root=root, timeout_s=timeout_s)
    if status is None:
        raise LinkLost("the connection broke while the host program started", cause=said or None, hint="try again")
    raise HostUnusable(
        "the host program does not start", cause=said or f"it ended with {status}", hint="try: fcctl doctor"
    )


def start_script(sha256: str, root: str, python: str | None) -> str:
    """POSIX shell, on one line: become the agent, or say by the exit status why not."""
    home = _shell_path(root)
    pythons = shlex.quote(python) if python else " ".join(PYTHONS)
    # `-V` prints before the interpreter initialises, so trying costs a millisecond or two.
    return (
        f'r={home}; p="$r/runner/{sha256}.pyz"; [ -f "$p" ] || exit {NO_RUNNER}; for y in {pythons}; do '
        'case "$("$y" -V 2>/dev/null </dev/null)" in "Python 3."[89]*|"Python 3."[1-9][0-9]*) '
        f'exec "$y" -I -S "$p" --root "$r" agent;; esac; done; exit {NO_PYTHON}'
    )


def upload_runner(transport: Transport, runner: Runner, *, root: str, timeout_s: float) -> None:
    """Put the archive in place; it appears there only when it is whole.

    Raises:
        HostUnusable: there is no room, or no right to write.
    """
    data = runner.path.read_bytes()
    script = (
        f'umask 077; d={_shell_path(root)}/runner; t="$d/.{runner.sha256}.$$"; mkdir -p "$d" && cat >"$t" && '
        f'[ "$(wc -c <"$t")" -eq {len(data)} ] && mv -f "$t" "$d/{runner.sha256}.pyz" && exit 0; '
        f'rm -f "$t"; exit {NO_ROOM}'
    )
    process = transport.run(script)
    try:
        try:
            process.write(data, timeout_s)
        except TimeoutError:
            raise LinkLost("the connection fell silent", cause=f"nothing moved for {timeout_s:g} s") from None
        except OSError:  # it ended early; its exit status says more
            pass
        process.end_input()
        status = process.wait(timeout_s)
        said = process.stderr()
    finally:
        process.close()
    if status is None:
        raise LinkLost("the connection broke while the host program was sent", hint="try again")
    if status != 0:
        raise HostUnusable(
            "the host program cannot be stored there", cause=said or f"writing below {root} failed",
            hint=f"free some space (df -h {root}), or set another `root` for the target",
        )  # fmt: skip


def _no_python(python: str | None) -> NoReturn:
    if python:
        raise HostUnusable(
            f"'{python}' there is no Python 3.8 or later", hint="set `python` of the target, or remove it to search"
        )
    raise HostUnusable(
        "no Python 3.8 or later was found there",
        hint="install one (apt install python3), or set `python` of the target to its full path",
    )


def _shell_path(root: str) -> str:
    """``root`` as a word of shell; a leading ``~`` is the home of whoever logs in."""
    if any(c in root for c in "\n\r\0"):
        raise HostUnusable(f"cannot use {root!r} as `root`", cause="it holds a control character")
    root = root.rstrip("/")
    if root == "~" or root.startswith("~/"):
        return '"$HOME"' + shlex.quote(root[1:])
    return shlex.quote(root)
