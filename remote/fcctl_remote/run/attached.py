"""Runs that live no longer than the connection which submitted them: no tmux, and an end when the other end is gone."""

import contextlib
import os
import select
import subprocess
from typing import Optional, Sequence

#: Between SIGTERM and SIGKILL for a step whose controller is gone, seconds: nobody waits for what it would still write.
GRACE_S = 2.0


def start(command: Sequence[str], cwd: str) -> bool:
    """Start the supervisor on a pipe that this process holds for as long as it lives."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        start_new_session=True,
    )
    _HELD.append(process)
    return True


#: Kept so that neither the pipe is closed nor the child reaped before this process ends.
_HELD = []  # type: list[subprocess.Popen[bytes]]


class ConnectionLifetime:
    """The supervisor's end of that pipe."""

    def __init__(self) -> None:
        self._fd: Optional[int] = os.dup(0)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)  # no step inherits it

    def broken(self) -> bool:
        """Whether the process that held the other end is gone."""
        if self._fd is None:
            return True
        ready, _, _ = select.select([self._fd], [], [], 0)
        if ready:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None
        return bool(ready)
