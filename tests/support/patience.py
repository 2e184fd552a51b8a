"""A busy computer is no finding: how long ``fcctl ps`` waits in tests with real processes.

It waits five seconds for a host, and then says that the host is unreachable: beside other tests, a host program may
need as long to start. It waits a moment for a machine that is to be stopped, and then leaves that to a later command:
loading the cloud's library may take longer. Who tests these limits types the command to a new interpreter, or calls
what has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.machines.connect.reconnect import Hurry
from orchestrator.runs.machine import pending_releases
from tests.support.waiting import GUARD_S


def be_patient() -> None:
    """For the rest of this process."""
    _wait((GUARD_S,), GUARD_S)


@contextmanager
def patient() -> Iterator[None]:
    """For the commands of a block."""
    hurry_s, moment_s = Hurry.__init__.__defaults__, pending_releases.MOMENT_S
    be_patient()
    try:
        yield
    finally:
        _wait(hurry_s, moment_s)


def _wait(hurry_s: tuple[float, ...] | None, moment_s: float) -> None:
    Hurry.__init__.__defaults__ = hurry_s  # type: ignore[misc]
    pending_releases.MOMENT_S = moment_s
