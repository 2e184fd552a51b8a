"""The long poll: answers as soon as a run has news, or another call waits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import BadName, RunLayout
from fcctl_remote.run import events, lost
from fcctl_remote.run import state as runs
from fcctl_remote.wire import Refusal

POLL_S = 0.02
EAGER_POLL_S = 0.004  # in the first moments, when a short run would otherwise wait for us
EAGER_S = 0.3
SETTLE_S = 1.0
MAX_WAIT_S = 60.0
MAX_EVENT_BYTES = 512 * 1024
TAIL_BYTES = 32 * 1024
TAIL_EVERY_S = 0.2  # how often a growing log is sent for a progress line
MAX_LOG_BYTES = 1024 * 1024  # of one answer: little memory, and fast enough for any link
CURRENT = "@current"


class Watch:
    """One call of ``watch``."""

    def __init__(self, run: RunLayout, request: wire.WatchRequest, followed: dict[str, str]) -> None:
        self.run = run
        self.request = request
        self._followed = followed  # run id -> the step that @current meant in the last answer
        self._offset = max(0, request.log_offset)
        self._events_offset = max(0, request.events_offset)

    def answer(self, pause: Callable[[float], bool]) -> tuple[wire.WatchReply, bytes]:
        """Wait for news. ``pause(seconds)`` sleeps, and says whether the caller wants to be answered at once. Raises
        Refusal: not_found, when the run was deleted meanwhile."""
        started = settled = time.monotonic()
        deadline = started + min(max(0.0, self.request.wait_s), MAX_WAIT_S)
        lost.settle_unstarted(self.run)
        lost.write_lost_outcome(self.run)
        while True:
            finished = runs.is_finished(self.run)  # asked first: what is read below is then complete
            step = self._log_step()
            now = time.monotonic()
            if finished or now >= deadline or self._has_news(step, now - started):
                return self._reply(step)
            if now - settled > SETTLE_S:
                settled = now
                lost.settle_unstarted(self.run)
                lost.write_lost_outcome(self.run)
            interval = EAGER_POLL_S if now - started < EAGER_S else POLL_S
            if pause(min(interval, max(0.0, deadline - now))):
                return self._reply(step)

    def _has_news(self, step: str | None, waited_s: float) -> bool:
        if files.size_of(self.run.events) > self._events_offset and self._events()[1] > self._events_offset:
            return True
        if self.request.tail and waited_s < TAIL_EVERY_S:
            return False
        return step is not None and self._log_size(step) > self._start_of(step)

    def _events(self) -> tuple[list[wire.Event], int]:
        return events.read(self.run.events, self._events_offset, MAX_EVENT_BYTES)

    def _log_size(self, step: str) -> int:
        """Bytes that can be read of it."""
        try:
            with files.closing(self._open_log(step)) as fd:
                return os.fstat(fd).st_size
        except OSError:
            return 0

    def _open_log(self, step: str) -> int:
        return files.open_beneath(self.run.folder, self.run.relative(self.run.step(step).log))

    def _log_step(self) -> str | None:
        step = self.request.log_step
        if step != CURRENT:
            return step
        known = runs.summary(self.run)
        return known.step if known is not None else None

    def _start_of(self, step: str) -> int:
        """The offset the caller has of this step's log: 0 if ``@current`` meant another step when it was given."""
        if self.request.log_step == CURRENT and self._followed.get(self.run.run_id, step) != step:
            return 0
        return self._offset

    def _reply(self, step: str | None) -> tuple[wire.WatchReply, bytes]:
        # The events first, so that the summary knows of all that they tell; but with an ending go all events.
        new, offset = self._events()
        summary = runs.summary(self.run)
        if summary is None:
            raise Refusal("not_found", "run %s was deleted from this host" % self.run.run_id)
        if summary.status in wire.RUN_ENDINGS:
            new, offset = self._events()
        reply = wire.WatchReply(new, offset, summary, telemetry=runs.last_sample(self.run))
        blob = b""
        if step is not None:
            reply.log_step = step
            reply.log_offset, reply.log_size, blob = self._read_log(step)
            if self.request.log_step == CURRENT:
                self._followed[self.run.run_id] = step
        return reply, blob

    def _read_log(self, step: str) -> tuple[int, int, bytes]:
        try:
            fd = self._open_log(step)
        except BadName as error:
            raise Refusal("bad_request", str(error)) from None
        except OSError:
            return self._start_of(step), 0, b""
        with files.closing(fd):
            size = os.fstat(fd).st_size
            start = min(self._start_of(step), size)
            if self.request.tail:
                start = max(start, size - TAIL_BYTES)
            return start, size, os.pread(fd, min(size - start, MAX_LOG_BYTES), start)
