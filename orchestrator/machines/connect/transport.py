"""Runs programs on a machine, local or remote, and talks to them.

Only :data:`LOADER` passes through the login shell, which may be bash, zsh, fish or csh: it starts a POSIX shell that
reads one line from its standard input and executes it. So all quoting is for one shell, in :func:`command`.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.base.errors import HostUnusable

#: One line without ``!``, backslash or inner single quote: what all shells read alike between single quotes.
LOADER = "exec /bin/sh -c 'IFS= read -r line && eval \"$line\"'"

#: Before the line that it reads: another shell, which a startup file may have put in its place, would carry out what it
#: is sent, too, and take some of what is meant for the program; it ends here.
GUARD = '[ -n "${line:+is}" ] || exit 97; '

#: How much of a program's standard error is kept, bytes.
STDERR_TAIL = 8 * 1024
#: How long a local program may take to exit after its input ended, seconds.
GRACE_S = 0.5
#: How much longer than the longest silence an answer may take.
SLOWEST = 20


class Process(Protocol):
    """A program that runs on the machine."""

    #: Bytes that can be written before the program reads any, without the two ends blocking each other.
    write_ahead: int

    def write(self, data: bytes, timeout_s: float) -> None:
        """Raises TimeoutError if nothing moved for ``timeout_s``, OSError if the program or the link is gone."""

    def read(self, limit: int, timeout_s: float) -> bytes:
        """At most ``limit`` bytes, empty at the end. Raises TimeoutError after ``timeout_s`` of silence."""

    def end_input(self) -> None: ...

    def wait(self, timeout_s: float) -> int | None:
        """The exit status, None if there is none (yet): killed, the link is gone, or ``timeout_s`` passed."""

    def stderr(self) -> str:
        """The end of what it wrote to standard error, safe to print."""

    def close(self) -> None:
        """Closes its standard input and forgets it."""


class Transport(Protocol):
    """A way to run programs on one machine."""

    #: Whether commands travel over a network.
    remote: bool

    def run(self, script: str) -> Process:
        """Run one line of POSIX shell. Raises LinkLost if the machine is out of reach."""

    def alive(self) -> bool: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Finished:
    status: int | None  # None: it was killed, or its link is gone
    output: bytes
    stderr: str


def run_to_end(transport: Transport, script: str, data: bytes, limit: int, timeout_s: float) -> Finished:
    """Run one line of shell with ``data`` as its input; at most ``limit`` bytes of its output are read.

    Raises LinkLost: the machine is out of reach; OSError, TimeoutError among them: the link broke, fell silent for
    ``timeout_s``, or had not sent all after :data:`SLOWEST` times that.
    """
    process, output = transport.run(script), b""
    until = time.monotonic() + SLOWEST * timeout_s
    try:
        try:
            process.write(data, timeout_s)
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            # It ended before it read everything: its status and its output say why.
        process.end_input()
        while len(output) < limit and (part := process.read(limit - len(output), timeout_s)):
            output += part
            if time.monotonic() > until:  # a byte now and then would else last for ever
                raise TimeoutError(f"it had not sent all after {SLOWEST * timeout_s:g} s")
        return Finished(process.wait(timeout_s), output, process.stderr())
    finally:
        process.close()


def command(argv: Sequence[str], *, cwd: str | None = None) -> str:
    """The line of shell that runs ``argv``, in ``cwd`` if given. Raises HostUnusable: a word holds a line break or NUL,
    which no line can carry."""
    for word in (*argv, cwd or ""):
        if any(c in word for c in "\n\r\0"):
            raise HostUnusable(
                f"cannot use {printable(word)!r} in a command for the machine", cause="it contains a control character"
            )
    line = "exec " + shlex.join(argv)
    return f"cd -- {shlex.quote(cwd)} && {line}" if cwd else line


def printable(text: str, limit: int = 2000) -> str:
    """Text of a host made safe for a terminal: no control or formatting characters, bounded length."""
    clean = "".join(c if c.isprintable() or c == "\n" else " " for c in text[: limit + 1])
    return clean[:limit].strip() + ("…" if len(text) > limit else "")


def of_stderr(data: bytes | bytearray) -> str:
    """The end of a program's standard error, safe to print: of a Python traceback its last line, the reason."""
    text = data.decode(errors="replace").rstrip()
    _, traceback, frames = text.rpartition("Traceback (most recent call last):")
    return printable(frames.splitlines()[-1] if traceback and frames else text)


# -------------------------------------------------------------------------------------------------------- this machine
class LocalProcess:
    #: POSIX promises a pipe 512 bytes and Linux and macOS give 16 KiB at least.
    write_ahead = 8 * 1024

    def __init__(self, script: str) -> None:
        # A session of its own: Ctrl-C is for the controller, not for the host program.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True, bufsize=0, env=_environment(),
        )  # fmt: skip
        assert self._process.stdin is not None  # noqa: S101 - PIPE was asked for
        assert self._process.stdout is not None  # noqa: S101
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)

    def write(self, data: bytes, timeout_s: float) -> None:
        view = memoryview(data)
        while view:
            _ready(self._in.fileno(), select.POLLOUT, timeout_s)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._in.fileno(), view) :]

    def read(self, limit: int, timeout_s: float) -> bytes:
        _ready(self._out.fileno(), select.POLLIN, timeout_s)
        return os.read(self._out.fileno(), limit)

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()

    def wait(self, timeout_s: float) -> int | None:
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else None

    def stderr(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - STDERR_TAIL))
        return of_stderr(self._errors.read())

    def close(self) -> None:
        """Closes its input, upon which the agent exits; one that does not is killed."""
        self.end_input()
        with contextlib.suppress(OSError):
            self._out.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class LocalTransport:
    remote = False

    def run(self, script: str) -> Process:
        return LocalProcess(script)

    def alive(self) -> bool:
        return True

    def close(self) -> None:
        pass


def _environment() -> dict[str, str]:
    """This process's environment with its virtual environment marked active, so that its torch is found first."""
    if sys.prefix == sys.base_prefix:
        return dict(os.environ)
    return {"VIRTUAL_ENV": sys.prefix, **os.environ}


def _ready(fd: int, event: int, timeout_s: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    if not poll.poll(timeout_s * 1000):
        raise TimeoutError
