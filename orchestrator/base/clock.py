"""This computer's clocks."""

from __future__ import annotations

import time

#: Linux stops its CLOCK_MONOTONIC while it sleeps; macOS does not, and has no other name for it.
_ALSO_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The real :class:`~orchestrator.base.clock_api.Clock`."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        return time.clock_gettime(_ALSO_ASLEEP)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def iso(epoch: float | None) -> str | None:
    """ISO 8601 in UTC with milliseconds, ``2026-11-21T08:15:30.123Z``."""
    if epoch is None:
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
