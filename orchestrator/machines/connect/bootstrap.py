"""Builds the host program as one file and starts it, by its hash, with the first Python there that is new enough: a
warm start takes one round trip. The shell that finds Python becomes the agent, whose first call is in its input."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from orchestrator.base.errors import FcctlError, HostUnusable, LinkLost
from orchestrator.base.files import user_folder, write_atomic
from orchestrator.machines.connect.agent import AgentSession
from orchestrator.machines.connect.framing import EndOfOutput
from orchestrator.machines.connect.transport import Transport, run_to_end

#: Exit statuses of the shell, where it does not become the program.
NO_RUNNER, NO_PYTHON, NO_ROOM = 93, 94, 95
#: Places of a Python beside PATH: an SSH command's PATH is not a login shell's.
PYTHONS = (
    "python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/homebrew/bin/python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)), '"$HOME"/.venv/bin/python3', "/opt/*/.venv/bin/python3",
    "/opt/*/venv/bin/python3", "/opt/conda/bin/python3", '"$HOME"/miniconda3/bin/python3',
    '"$HOME"/miniforge3/bin/python3', '"$HOME"/.local/share/uv/python/*/bin/python3',
    '"$HOME"/.pyenv/versions/*/bin/python3',
)  # fmt: skip
#: A command that checks whether the shell there executes commands and leaves their input alone.
_PROBE = 's="fcctl-${line:+is}-here"; cat; echo "$s"'
_PROBE_TIMEOUT_S = 5.0
_PROBE_BYTES = 64 * 1024


def agent_command(sha256: str, root: str, python: str | None = None, *, unpacked: bool = True) -> str:
    """POSIX shell, on one line: ``<root>/runner/<sha256>.pyz agent``, or an exit status that says why not.

    Args:
        python: what runs it; None: the first one found that is new enough.
        unpacked: run the copy that the archive unpacked, if there is one; else the archive, which repairs it.

    Raises HostUnusable: ``root`` or ``python`` cannot be written on one line.
    """
    pythons = shell_path(python, "python") if python else " ".join(PYTHONS)
    # The archive unpacks itself beside its name at its first start; from there it starts faster.
    copy = 'd="${p%.pyz}.d/__main__.py"; [ ! -f "$d" ] || p="$d"; ' if unpacked else ""
    # `-V` prints before the interpreter initialises, so trying costs a millisecond or two.
    return (
        f'r={shell_path(root)}; p="$r/runner/{sha256}.pyz"; [ -f "$p" ] || exit {NO_RUNNER}; '
        f"{copy}for y in {pythons}; do "
        'case "$("$y" -V 2>/dev/null </dev/null)" in "Python 3."[89]*|"Python 3."[1-9][0-9]*) '
        f'exec "$y" -I -S "$p" --root "$r" agent;; esac; done; exit {NO_PYTHON}'
    )


def shell_path(path: str, key: str = "root") -> str:
    """``path``, the target's ``key``, as a shell word; a leading ``~`` is the home directory of the login."""
    path = path.rstrip("/")
    in_home = path == "~" or path.startswith("~/")
    text = path[1:] if in_home else path
    if any(c in text for c in "\n\r\0"):
        hint = f"correct `{key}` in the target"
        raise HostUnusable(f"`{key}` cannot be {text!r}", cause="it contains a control character", hint=hint)
    return ('"$HOME"' if in_home else "") + shlex.quote(text)


def start(
    transport: Transport, runner: RunnerArchive, *, root: str, python: str | None, timeout_s: float
) -> AgentSession:
    """A session with the agent. Raises HostUnusable: no Python >= 3.8 there, no room for the host program, or it does
    not start; HostFault: something else answers; LinkLost: the link broke meanwhile."""
    try:
        session, status, stderr = _try(transport, runner, root, python, timeout_s, unpacked=True)
        if session is None and (status is not None or transport.alive()):
            # Absent, or too damaged to repair itself.
            upload_runner(transport, runner, root=root, timeout_s=timeout_s)
            session, status, stderr = _try(transport, runner, root, python, timeout_s, unpacked=False)
        if session is not None:
            return session
        if status is None:
            broke = "the connection broke while the host program started"
            raise LinkLost(broke, cause=stderr or None, hint="run the command again")
        raise HostUnusable(
            "the host program does not start, even after fcctl installed it again",
            cause=stderr or f"its exit code is {status}",
            hint="log in to the machine and start it by hand, to see Python's message: "
            f"{shell_path(python or 'python3', 'python')} -I -S {shell_path(root)}/runner/{runner.sha256}.pyz version",
        )
    except (HostUnusable, LinkLost):
        _check_shell(transport, min(timeout_s, _PROBE_TIMEOUT_S))
        raise


def _try(
    transport: Transport, runner: RunnerArchive, root: str, python: str | None, timeout_s: float, *, unpacked: bool
) -> tuple[AgentSession | None, int | None, str]:
    """A session, or the program's exit status and standard error. Raises HostUnusable: there is no Python for it."""
    process = transport.run(agent_command(runner.sha256, root, python, unpacked=unpacked))
    session = AgentSession(transport, process, runner.sha256, timeout_s)
    try:
        session.greet()
    except EndOfOutput:
        status = process.wait(timeout_s)  # else a missing program looks like a broken connection
        stderr = process.stderr()
        process.close()
        if status == NO_PYTHON:
            _no_python(python)
        return None, status, stderr
    except BaseException:
        process.close()
        raise
    return session, 0, ""


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
        "the machine does not run the commands that fcctl sends",
        cause=(f"its message: {answer.stderr.splitlines()[-1]}; " if answer.stderr else "")
        + "a startup file of the login shell (.bashrc, .zshenv, config.fish, ...) exits, starts another program or "
        "reads standard input; or sshd has a ForceCommand for this user",
        hint="make that file return at once in a shell that is not interactive: in .bashrc, [[ $- == *i* ]] || return",
    )


def upload_runner(transport: Transport, runner: RunnerArchive, *, root: str, timeout_s: float) -> None:
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
        raise LinkLost(
            "the machine sent nothing more",
            cause=f"no byte was sent or received for {timeout_s:g} s",
            hint="run the command again",
        ) from None
    if done.status is None:
        raise LinkLost("the connection broke during the upload of the host program", hint="run the command again")
    if done.status != 0:
        raise HostUnusable(
            "the host program cannot be written to the machine", cause=done.stderr or f"the machine could not write "
            f"below {root}",
            hint=f"{_cure(done.stderr, root)}, or set another `root` for the target",
        )  # fmt: skip


def _cure(stderr: str, root: str) -> str:
    """The hint for a message of the shell there: an error about rights, else a full disk."""
    if any(words in stderr.lower() for words in ("not a directory", "permission denied", "read-only", "not permitted")):
        return f"make {root} a folder that you may write to (ls -ld {root})"
    return f"free disk space (df -h {root})"


def _no_python(python: str | None) -> NoReturn:
    if python:
        raise HostUnusable(
            f"'{python}' is not Python 3.8 or later",
            hint="correct `python` in the target, or remove it: fcctl then searches for one",
        )
    raise HostUnusable(
        "the machine has no Python 3.8 or later",
        hint="install one (apt install python3), or set `python` in the target to its full path",
    )


#: The earliest time a zip file can hold.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PACKAGE = "fcctl_remote"
_MAIN = "archive_main.py"


@dataclass(frozen=True)
class RunnerArchive:
    path: Path
    sha256: str


def build_runner(dest_dir: Path | None = None) -> RunnerArchive:
    """The archive, built unless one of the same sources is in ``dest_dir`` (default: the user's cache folder). Raises
    FcctlError: ``dest_dir`` cannot be written."""
    sources = _sources()
    identity = hashlib.sha256()
    for name, content in sources:
        identity.update(b"%s\0%d\0" % (name.encode(), len(content)))
        identity.update(content)
    folder = dest_dir if dest_dir is not None else user_folder("cache") / "runner"
    marker = folder / f"runner-{identity.hexdigest()[:32]}.pyz"
    with contextlib.suppress(OSError):
        digest = hashlib.sha256(marker.read_bytes()).hexdigest()
        # The name of the second link is the archive's own hash: a damaged file does not match it.
        if (folder / f"{digest}.pyz").is_file():
            return RunnerArchive(folder / f"{digest}.pyz", digest)
    try:
        return _write(folder, marker, _archive(sources))
    except OSError as error:
        raise FcctlError(
            "could not build the host program",
            cause=f"{error.strerror} ({folder})",
            hint="choose a folder that you may write to: export XDG_CACHE_HOME=DIR",
        ) from error


def _sources() -> list[tuple[str, bytes]]:
    """Archive name and content of each module, sorted."""
    import fcctl_remote

    root = Path(fcctl_remote.__file__).parent
    sources = [
        (f"{_PACKAGE}/{path.relative_to(root).as_posix()}", path.read_bytes())
        for path in root.rglob("*.py")
        if "__pycache__" not in path.parts
    ]
    sources.append(("__main__.py", (root / _MAIN).read_bytes()))
    return sorted(sources)


def _archive(sources: list[tuple[str, bytes]]) -> bytes:
    import zipfile  # not needed if the archive exists

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as bundle:
        for name, content in sources:
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3  # Unix, also when built elsewhere
            member.external_attr = 0o644 << 16
            bundle.writestr(member, content)
    return buffer.getvalue()


def _write(folder: Path, marker: Path, content: bytes) -> RunnerArchive:
    digest = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.pyz"
    for target in (path, marker):
        write_atomic(folder, target.name, content, mode=0o600)
    return RunnerArchive(path, digest)
