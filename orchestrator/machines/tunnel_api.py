"""Ways between machines that cannot reach each other: every byte passes through this computer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from orchestrator.machines.targets import Target


class Stream(Protocol):
    """One connection, both ways. Closing it from another thread ends whatever blocks on it."""

    def recv(self, limit: int) -> bytes:
        """At most ``limit`` bytes; empty at the end. Raises OSError."""

    def sendall(self, data: bytes) -> None:
        """Raises OSError."""

    def end(self) -> None:
        """Nothing more will be sent; the other way stays open."""

    def close(self) -> None: ...


class TunnelConnection(Protocol):
    """One connection to a machine, for everything that a fleet needs of it. Not for runs: they have their own.

    The machine is not trusted. What it may open towards us ends at the one place that :meth:`listen` was given.

    Raises, from every method: ``LinkLost`` when the connection broke or fell silent (open
    another), :class:`~orchestrator.base.errors.HostUnusable` if the machine does not let it happen.
    """

    def listen(self, reach: Callable[[], Stream]) -> int:
        """Have a port on the machine's loopback whose every connection goes on to where ``reach`` leads; the port.

        It is gone with the passage. ``reach`` is called in threads of the passage, and may raise OSError or FcctlError:
        that connection is closed then.
        """

    def dial(self, port: int) -> Stream:
        """A connection to a port of the machine's loopback."""

    def check(self) -> None:
        """Ask whether the machine still answers."""

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        """A file of a run's private folder there, or by its path one that comes home; None if there is none, or it is
        longer than ``limit`` bytes."""

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        """The same, written whole or not at all, for its owner's eyes only; False if there is no such run."""

    def remove(self, run_id: str, name: str) -> None: ...

    def close(self) -> None:
        """End it, and every connection through it. Twice is harmless."""


class Tunnels(Protocol):
    def open(self, target: Target) -> TunnelConnection:
        """Log in to a machine that is up.

        Raises:
            HostUnreachable, LinkLost: as :meth:`orchestrator.machines.host_api.HostConnector.connect`.
        """
