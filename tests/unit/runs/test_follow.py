"""A run that is followed: what is asked for next, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fcctl_remote import wire
from orchestrator.runs.follow import follow

RUN = "20261121t110151z-small-box-6eef63"


class Host:
    """A step ``a`` has written 5 bytes, then 3 more; a step ``b`` has written 2, and the run is over."""

    def __init__(self) -> None:
        self.asked: list[wire.WatchRequest] = []
        running, ended = (wire.RunSummary(RUN, "small", status, 0.0) for status in ("running", "passed"))
        self._answers = [
            (wire.WatchReply([], 10, running), b""),
            (wire.WatchReply([], 10, running, log_step="a", log_offset=0, log_size=5), b"12345"),
            (wire.WatchReply([], 10, running, log_step="a", log_offset=5, log_size=8), b"678"),
            (wire.WatchReply([], 30, ended, log_step="b", log_offset=0, log_size=2), b"ab"),
        ]

    def watch(self, request: wire.WatchRequest) -> tuple[wire.WatchReply, bytes]:
        self.asked.append(replace(request))
        return self._answers[len(self.asked) - 1]

    def call(self, ask: Callable[[Any], Any]) -> Any:
        return ask(self)


def test_what_was_told_is_not_asked_for_again() -> None:
    """Else a host answers each poll at once, as long as the step has any log, and both of them do nothing else."""
    host, told = Host(), []
    observer = SimpleNamespace(event=None, progress=lambda _, tail: told.append(tail))
    ended = follow(host, RUN, SimpleNamespace(observer=observer))  # type: ignore[arg-type]
    assert ended is not None
    assert ended.status == "passed"
    assert told == [b"", b"12345", b"678", b"ab"]
    assert [(r.events_offset, r.log_offset) for r in host.asked] == [(0, 0), (10, 0), (10, 5), (10, 8)]
    assert all(r.wait_s >= 1 for r in host.asked)
