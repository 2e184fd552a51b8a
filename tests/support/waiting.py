"""Waiting for what is about to happen."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(what: Callable[[], object], seconds: float = 60) -> None:
    """Return as soon as ``what()`` is true; it fails the test if that takes longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
