"""The clock as an interface, so that virtual time can stand in for the real one; waiting within a bound; durations as
text, and time zones."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol, TypeVar


class Clock(Protocol):
    """What waits, waits through it."""

    def now(self) -> float:
        """Epoch seconds."""

    def monotonic(self) -> float: ...

    def elapsed(self) -> float:
        """Seconds since some moment, those that this computer slept too. Setting its clock does not move it."""

    def sleep(self, seconds: float) -> None: ...


#: Linux stops its CLOCK_MONOTONIC while it sleeps; macOS does not, and has no other name for it.
_ALSO_ASLEEP = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """:meth:`Clock.elapsed` of this computer, for the controller and for the emulator."""
    return time.clock_gettime(_ALSO_ASLEEP)


class SystemClock:
    """The real one."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def elapsed(self) -> float:
        return elapsed()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


#: By how much this computer's clock may differ from a cloud's for a machine to be started, seconds: caps of a day and a
#: month count by this clock.
WRONG_S = 600.0


def clock_command() -> str:
    """The shell command that sets this computer's clock from a time server."""
    return "sudo sntp -sS time.apple.com" if sys.platform == "darwin" else "sudo timedatectl set-ntp true"


T = TypeVar("T")


def wait_for(check: Callable[[], T], seconds: float, clock: Clock | None = None, *, pause_s: float = 0.1) -> T:
    """Calls ``check`` until its result is true, for ``seconds`` at most; returns the last result, which is of a call
    after that time: a process that waits for a processor does not take an old answer for the last one."""
    clock = clock or SystemClock()
    limit = clock.monotonic() + seconds
    while True:
        is_over = clock.monotonic() >= limit
        if (result := check()) or is_over:
            return result
        clock.sleep(pause_s)


#: No time that is shown, added to or stored is later: 2100-01-01, epoch seconds.
LATEST = 4_102_444_800.0


def bounded(epoch: float) -> float:
    """A foreign time, brought between 1970 and :data:`LATEST`; NaN is 1970."""
    return min(max(epoch, 0.0), LATEST) if epoch == epoch else 0.0  # noqa: PLR0124 - NaN alone differs from itself


def iso(epoch: float | None) -> str | None:
    """ISO 8601 in UTC with milliseconds, ``2026-11-21T08:15:30.123Z``."""
    if epoch is None:
        return None
    return datetime.fromtimestamp(bounded(epoch), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def epoch(stamp: str | None) -> float | None:
    """Epoch seconds of an ISO 8601 time, in UTC if it names no zone; None if it is none."""
    try:
        moment = datetime.fromisoformat(stamp or "")
    except (ValueError, OverflowError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def utc_minute(epoch: float, now: float) -> str:
    """``14:05 UTC``; with its day if that is not the day of ``now``."""
    moment, today = datetime.fromtimestamp(bounded(epoch), UTC), datetime.fromtimestamp(now, UTC)
    day = "" if moment.date() == today.date() else f"{moment:%Y-%m-%d} "
    return f"{day}{moment:%H:%M} UTC"


def duration_text(value: float) -> str:
    """Seconds as the shortest of these forms: ``90`` -> ``1m30s``, ``600`` -> ``10m``, ``0.5`` -> ``0.5s``."""
    if value < 60:
        return f"{value:g}s"
    whole = round(value)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def zone(name: str | None) -> tzinfo:
    """Returns the time zone ``name``, or this computer's for None. Raises ValueError with the nearest name."""
    if name is None:
        return _LocalZone()
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        from orchestrator.base.errors import nearest

        near = nearest(name, sorted(available_timezones()))
        raise ValueError(f"unknown time zone '{name}'" + (f", did you mean '{near}'?" if near else "")) from None


class _LocalZone(tzinfo):
    """This computer's zone, with the rules that its own clock follows, whatever that zone is called."""

    def utcoffset(self, dt: datetime | None) -> timedelta:
        if dt is None:
            return timedelta(0)
        wall = dt.replace(tzinfo=None)
        return (wall - datetime(1970, 1, 1)) - timedelta(seconds=wall.timestamp())  # noqa: DTZ001 - a difference

    def dst(self, dt: datetime | None) -> None:  # noqa: ARG002 - tzinfo's signature
        return None

    def tzname(self, dt: datetime | None) -> str:  # noqa: ARG002 - tzinfo's signature
        return "local"

    def fromutc(self, dt: datetime) -> datetime:
        wall = datetime.fromtimestamp(dt.replace(tzinfo=UTC).timestamp())  # noqa: DTZ006 - the local one is wanted
        return wall.replace(tzinfo=self)


R = TypeVar("R")


def in_thread(action: Callable[[], R], name: str) -> Future[R]:
    """Starts ``action`` in a daemon thread."""
    answer: Future[R] = Future()

    def run() -> None:
        try:
            answer.set_result(action())
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


def when_late(answer: Future[R], dispose: Callable[[R], object]) -> None:
    """Calls ``dispose`` with the result of ``answer`` once there is one, for example to close a connection that was
    made after its caller had given up. Not called if ``answer`` failed."""

    def done(future: Future[R]) -> None:
        if future.exception() is None:
            dispose(future.result())

    answer.add_done_callback(done)
