"""What a search's log says of the machines that help it, heard by whoever follows the search."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from fcctl_remote import wire
from orchestrator.base.observer import Observer
from orchestrator.tune.fleet.rules import HOST_LINE


class MembershipObserver:
    """The search's own observer, and an ear for what its log says of the machines."""

    def __init__(
        self,
        inner: Observer,
        heard: Callable[[str], None],
        followed: Callable[[bool], None] = lambda _: None,
        *,
        after: str | None = None,
    ) -> None:
        """
        Args:
            followed: called whenever its machine says how it stands, with whether it goes on.
            after: what this run of it said before is no news.
        """
        self._inner = inner
        self._heard = heard
        self._followed = followed
        self._old = after
        self._step: tuple[str, str | None] | None = None
        self._seen = 0
        self._rest = b""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None:
        self._followed(reply.summary.status not in wire.RUN_ENDINGS)
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
                self._heard(line.decode(errors="replace"))
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
