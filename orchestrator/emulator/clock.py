"""The emulator's clock: real time multiplied, or time that moves only on request; and its timer queue."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from orchestrator.base.clock import elapsed

_LOG = logging.getLogger(__name__)
#: After a sleep of the computer, due events are called within so many real seconds.
_LOOK_S = 2.0


class EmulatedClock:
    """Seconds since the epoch that pass ``speed`` times as fast as real ones, also while this computer sleeps.

    Args:
        start: the first reading; now, if None.
        speed: emulated seconds per real second. 0 stands still: only :meth:`advance` moves it.
    """

    def __init__(self, start: float | None = None, speed: float = 1.0) -> None:
        if speed < 0:
            raise ValueError("the emulator's time cannot go backwards")
        self.speed = speed
        self._base = time.time() if start is None else start
        self._real = elapsed()
        self._lock = threading.Lock()

    def now(self) -> float:
        """Emulated seconds since the epoch."""
        with self._lock:
            return self._base + (elapsed() - self._real) * self.speed

    def advance(self, seconds: float) -> None:
        """Jump forward."""
        if seconds < 0:
            raise ValueError("the emulator's time cannot go backwards")
        with self._lock:
            self._base += seconds

    def real(self, seconds: float) -> float | None:
        """How many real seconds ``seconds`` take; None if they never pass by themselves."""
        return seconds / self.speed if self.speed else None


class Timeline:
    """The time of a world on ``clock``: calls events in order of time, in its own thread, holding ``lock`` for each.

    Its condition is notified after every event, so that waiters check again.
    """

    def __init__(self, clock: EmulatedClock) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="emulator-timeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self.changed:
            self._stopped = True
            self._due.clear()
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join(10)

    def now(self) -> float:
        return self.clock.now()

    def at(self, when: float, event: Callable[[], None]) -> None:
        with self.changed:
            heapq.heappush(self._due, (when, next(self._order), event))
            self.changed.notify_all()

    def advance(self, seconds: float) -> None:
        """Advances the clock and calls each event at its own time."""
        with self.changed:
            end = self.clock.now() + seconds
            while self._due and self._due[0][0] <= end:
                self.clock.advance(max(0.0, self._due[0][0] - self.clock.now()))
                self._call()
            self.clock.advance(max(0.0, end - self.clock.now()))
            self.changed.notify_all()

    def wait(self, until: float, done: Callable[[], bool], *, real_limit_s: float) -> None:
        last = time.monotonic() + real_limit_s
        with self.changed:
            while not done() and not self._stopped:
                left = until - self.clock.now()
                real = self.clock.real(left)
                patience = last - time.monotonic()
                if left <= 0 or patience <= 0:
                    return
                self.changed.wait(patience if real is None else min(real, patience))

    def _run(self) -> None:
        with self.changed:
            while not self._stopped:
                left = self._due[0][0] - self.clock.now() if self._due else None
                if left is not None and left <= 0:
                    self._call()
                    continue
                real = None if left is None else self.clock.real(left)
                self.changed.wait(None if real is None else min(real, _LOOK_S))  # the computer may sleep

    def _call(self) -> None:
        _, _, event = heapq.heappop(self._due)
        try:
            event()
        except Exception:  # noqa: BLE001 - one broken event must not end time for all the others
            _LOG.exception("an event of the emulator failed")
        self.changed.notify_all()


def timestamp(seconds: float) -> str:
    """RFC 3339 with milliseconds and offset, as Compute Engine writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def parse_timestamp(text: str) -> float:
    """Seconds since the epoch. Raises ValueError: not RFC 3339 with an offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("the time has no offset from UTC")
    return moment.timestamp()
