"""This machine as a host: the same protocol as over SSH, through pipes."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time

from orchestrator.machines.connect.transport import STDERR_TAIL, Process, printable

#: How long a program may take to exit after its input ended, seconds.
GRACE_S = 0.5


class LocalProcess:
    #: POSIX promises a pipe 512 bytes and Linux and macOS give 16 KiB at least.
    write_ahead = 8 * 1024

    def __init__(self, script: str) -> None:
        # A session of its own: Ctrl-C is for the controller, not for the host program.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            bufsize=0,
            env=_environment(),
        )
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
        return printable(self._errors.read().decode(errors="replace"))

    def close(self) -> None:
        """Closes its input, upon which the agent exits; one that does not is killed."""
        self.end_input()
        with contextlib.suppress(OSError):
            self._out.close()
        if self._process.poll() is None:
            deadline = time.monotonic() + GRACE_S
            while self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.005)
            if self._process.poll() is None:
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
