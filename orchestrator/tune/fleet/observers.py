"""Observers of a search and of its members' runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from fcctl_remote import wire
from orchestrator.base.observer import Observer
from orchestrator.tune.fleet.rules import HOST_LINE

_log = logging.getLogger(__name__)


class MembershipObserver(Observer):
    """Passes everything to ``inner``, and the lines about hosts in the search's log to ``on_line``.

    Args:
        on_status: called with each status of the search: whether it is running.
        after: a run whose earlier lines are ignored.
    """

    def __init__(
        self, inner: Observer, on_line: Callable[[str], None], on_status: Callable[[bool], None] = lambda _: None, *,
        after: str | None = None,
    ) -> None:  # fmt: skip
        self._inner, self._on_line, self._on_status, self._old = inner, on_line, on_status, after
        self._step: tuple[str, str | None] | None = None
        self._seen = 0
        self._rest = b""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        self._on_status(reply.summary.status not in wire.RUN_ENDINGS)
        step = reply.summary.run_id, reply.log_step
        if step != self._step:
            self._step, self._seen, self._rest = step, 0, b""
        fresh = log_tail if reply.log_offset >= self._seen else log_tail[self._seen - reply.log_offset :]
        self._seen = max(self._seen, reply.log_offset + len(log_tail))
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        self._rest = self._rest[-1000:]
        is_old = reply.summary.run_id == self._old
        if is_old and log_tail:
            self._old = None
        for line in [] if is_old else lines:
            if HOST_LINE.fullmatch(line.rstrip(b"\r")):
                self._on_line(line.decode(errors="replace"))
        self._inner.progress(reply, log_tail)

    def phase(self, name: str, detail: str = "") -> None:
        self._inner.phase(name, detail)

    def event(self, event: wire.Event) -> None:
        self._inner.event(event)

    def note(self, message: str) -> None:
        self._inner.note(message)

    def aside(self) -> AbstractContextManager[None]:
        return self._inner.aside()

    def close(self) -> None:
        self._inner.close()


class MemberEvents(Observer):
    """The observer of a member's run: what its user has to know becomes a note of the search."""

    def __init__(self, name: str, inner: Observer) -> None:
        self._name, self._inner = name, inner

    def phase(self, name: str, detail: str = "") -> None:
        _log.info("host %s: %s %s", self._name, name, detail)

    def event(self, event: wire.Event) -> None:
        if event.type == "queued":
            self.note(f"waits until {event.data.get('behind') or 'another run'} ends on this machine")
        elif event.type == "warning":
            self.note(str(event.data.get("message")))

    def note(self, message: str) -> None:
        self._inner.note(f"host {self._name}: {message}")
