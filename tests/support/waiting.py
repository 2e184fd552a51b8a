"""Waiting for what is about to happen."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A guard only: a test that waits for an event costs no more for it, however busy the computer is.
GUARD_S = 240.0


def wait_for(what: Callable[[], object]) -> None:
    """Return as soon as ``what()`` is true; it fails the test if that takes longer than ``GUARD_S``."""
    deadline = time.monotonic() + GUARD_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
