"""One machine, several runs: a first-come queue of tickets, each alive as long as its holder's flock; whoever sees a
dead one drops it. Exclusive runs have the machine to themselves; shared ones go side by side."""

from __future__ import annotations

import contextlib
import fcntl
import os

from fcctl_remote.base import files
from fcctl_remote.base.layout import RUN_ID, Layout


class HostLock:
    """A run's place in the machine's queue."""

    def __init__(self, layout: Layout, run_id: str, mode: str) -> None:
        self._layout = layout
        self._run_id = run_id
        self._shared = mode == "shared"
        self.fd: int | None = None  # keeps the ticket alive; a forked child must close it
        self._name = ""

    @classmethod
    def is_free(cls, layout: Layout) -> bool:
        """Whether no run has the machine, or waits for it."""
        queue = cls(layout, "", "shared")
        return not any(queue._alive(name) for name in queue._tickets())

    def join(self) -> None:
        """Take a ticket behind all others."""
        with files.locked(os.path.join(self._layout.locks, "queue.lock")):
            taken = self._tickets()
            number = max([int(name.split(".")[0]) for name in taken], default=0) + 1
            self._name = "%012d.%s.%s" % (number, "s" if self._shared else "x", self._run_id)
            # Locked before it is visible, else another would take it for a dead one.
            temporary = os.path.join(self._layout.tickets, ".new-" + self._run_id)
            self.fd = files.open_own(temporary, os.O_RDWR, 0o600)
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            os.rename(temporary, self._path(self._name))

    def behind(self) -> str | None:
        """The run to wait for; None once this run has the machine."""
        for name in self._tickets():
            if name >= self._name:
                break
            _, mode, run_id = name.split(".", 2)
            if not (self._shared and mode == "s") and self._alive(name):
                return run_id
        return None

    def leave(self) -> None:
        """Leave the queue; safe to call twice."""
        if self.fd is None:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(self._name))
        os.close(self.fd)
        self.fd = None

    def _tickets(self) -> list[str]:
        names = filter(_parsed, os.listdir(self._layout.tickets))
        return sorted(name for name in names if files.is_plain(self._path(name)))

    def _path(self, name: str) -> str:
        return os.path.join(self._layout.tickets, name)

    def _alive(self, name: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if files.is_locked(self._path(name)):
                return True
            os.unlink(self._path(name))
        return False


def _parsed(name: str) -> tuple[str, str, str] | None:
    parts = name.split(".", 2)
    if len(parts) != 3 or not parts[0].isdigit() or parts[1] not in ("s", "x") or not RUN_ID.fullmatch(parts[2]):
        return None
    return parts[0], parts[1], parts[2]
