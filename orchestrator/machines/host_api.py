"""The interfaces of a session with the host program on a machine, and of tunnels between machines that cannot reach
each other: all of their traffic passes through this computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fcctl_remote import wire
from orchestrator.machines.targets import Target


@dataclass(frozen=True)
class Transfer:
    files: int
    bytes: int
    seconds: float
    how: str  # inline, rsync, calls, none
    rsync_error: str = ""


@dataclass(frozen=True)
class Bundle:
    """Libraries for steps, as one zip file named by its hash."""

    path: Path
    sha256: str
    size: int  # bytes


class Bundles(Protocol):
    """The bundles that this computer can send."""

    def tune(self) -> Bundle:
        """The bundle of a search, built if absent. Raises ConfigError: its libraries are not installed here;
        FcctlError: no room for it."""

    def find(self, sha256: str) -> Bundle:
        """The bundle that an earlier plan names. Raises NotFoundError."""


#: Hears how many bytes more were sent.
Sent = Callable[[int], None]


def unheard(_: int) -> None:
    """For those who show no progress."""


class HostSession(Protocol):
    """One session with the host program on one machine.

    Every method raises ``LinkLost`` when the connection breaks or falls silent (open a new session and continue), and
    :class:`~orchestrator.base.errors.HostFault` when the host program refuses.
    """

    @property
    def hello(self) -> wire.Hello: ...

    def tree_diff(self, workspace: str, entries: Sequence[wire.TreeEntry]) -> wire.TreeDiff: ...

    def send(
        self, workspace: str, tree_root: str, source_root: Path, paths: Sequence[str], sent: Sent = unheard
    ) -> Transfer:
        """Bring ``paths`` of ``source_root`` into the tree on the host: a few small files in one call; else by rsync
        where both ends have it, else in several calls."""

    def snapshot(
        self, workspace: str, run_id: str, entries: Sequence[wire.TreeEntry], tree_sha256: str
    ) -> wire.Snapshot: ...

    def bundle(self, sha256: str, size: int, offset: int, data: bytes) -> wire.BundleState:
        """Sends a piece of a bundle; without ``data``, asks how much of it is there."""

    def submit(self, plan: wire.RunPlan, secrets: Mapping[str, str]) -> wire.Submitted: ...

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]: ...

    def status(self, run_ids: Sequence[str] | None = None) -> list[wire.RunSummary]: ...

    def cancel(self, run_id: str, reason: str, status: str = "cancelled", grace_s: float = 10.0) -> wire.RunSummary: ...

    def files(self, run_id: str) -> wire.FileList: ...

    def fetch(self, run_id: str, parts: Sequence[wire.FilePart]) -> Iterator[tuple[wire.FilePart, bytes]]:
        """The parts in order, each cut into pieces of at most ``MAX_BLOB_BYTES``; calls are pipelined."""

    def forget(self, run_id: str) -> None:
        """Deletes the run's folder on the host; safe once its results are verified in the store."""

    def lease(self, request: wire.LeaseRequest) -> wire.Lease: ...

    def probe(self, env: Mapping[str, str]) -> dict[str, Any]:
        """``{"document": environment document, "text": printed report, "exit_code": 0 | 1 | 2}``, as steps with ``env``
        have it."""

    def close(self) -> None: ...


class HostConnector(Protocol):
    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program, uploading it if its hash is absent. Raises HostUnreachable: with the
        reason (name, port, key, login, proxy, timeout); HostUnusable: no Python >= 3.8 there, or no room for the host
        program."""


# ------------------------------------------------------------------------------------------------------------- tunnels
class Stream(Protocol):
    """One connection; its methods raise OSError. Closing it from another thread unblocks them."""

    def recv(self, limit: int) -> bytes:
        """At most ``limit`` bytes; empty at the end."""

    def sendall(self, data: bytes) -> None: ...

    def end(self) -> None:
        """Sends no more; the other direction stays open."""

    def close(self) -> None: ...


class TunnelConnection(Protocol):
    """A connection to a machine, for all tunnels and files of a fleet; runs have their own.

    The machine is not trusted: a connection from it ends where :meth:`listen` says. Every method raises LinkLost when
    the connection broke or fell silent (open another), and HostUnusable if the machine does not permit the request.
    """

    def listen(self, reach: Callable[[], Stream]) -> int:
        """A port on the machine's loopback, closed with this connection; each connection to it is forwarded to
        ``reach()``.

        ``reach`` is called in threads; if it raises OSError or FcctlError, that connection is closed.
        """

    def dial(self, port: int) -> Stream:
        """A connection to a port of the machine's loopback."""

    def check(self) -> None:
        """Checks that the machine still answers."""

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        """A file of a run's private folder, or by its path one that is collected; None if it does not exist or is
        longer than ``limit`` bytes."""

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        """Writes a file atomically, readable by its owner only; False if there is no such run."""

    def remove(self, run_id: str, name: str) -> None: ...

    def close(self) -> None:
        """Closes it and every connection through it; idempotent."""


class Tunnels(Protocol):
    def open(self, target: Target) -> TunnelConnection:
        """Log in to a machine that is up. Raises as HostConnector.connect does."""
