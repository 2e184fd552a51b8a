"""Tunnels between machines that cannot reach each other: all traffic passes through this computer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.machines.targets import Target


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
