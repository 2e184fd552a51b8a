"""A busy computer is no finding: how long ``fcctl ps`` waits for a host in tests.

It waits five seconds, and then says that the host is unreachable. Beside other tests, a host program may need as long
to start. Who tests that limit sets it, or types the command to a new interpreter.
"""

from __future__ import annotations

from orchestrator.machines.connect.reconnect import Hurry
from tests.support.waiting import GUARD_S


def be_patient() -> None:
    """For this process and those that are forked from it."""
    Hurry.__init__.__defaults__ = (GUARD_S,)  # type: ignore[misc]
