"""A machine that was taken as it was remembered is looked at again while a long run is followed on it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.machines.cloud import Machine
from orchestrator.runs.machine import watch as hold_watch
from orchestrator.runs.machine.watch import GLANCE_EVERY_S, Watch

DEADLINE = 1_800_003_600.0


class Stage:
    """As much of a held machine as a glance needs; the cloud answers what ``seen`` is."""

    def __init__(self, patch: pytest.MonkeyPatch, *, warm: bool = True) -> None:
        self.time, self.asked, self.notes = 0.0, 0, list[str]()
        self.seen: Machine | Exception = self.machine(DEADLINE)
        acquired = {"zone": "us-west1-c", "instance_id": "7", "deadline": DEADLINE, "warm": warm}
        services = SimpleNamespace(
            clock=SimpleNamespace(monotonic=lambda: self.time), observer=SimpleNamespace(note=self.notes.append),
            book=SimpleNamespace(known=lambda *_: None),
        )  # fmt: skip
        held: Any = SimpleNamespace(services=services, target=None, acquired=lambda: acquired)
        patch.setattr(hold_watch, "query_in_thread", self._ask)
        self.watch = Watch(held)

    def machine(self, deadline: float | None, status: str = "RUNNING") -> Machine:
        return Machine("proj", "us-west1-c", "vm", "7", status, deadline=deadline)

    def _ask(self, *_: object) -> Future[Machine | None]:
        self.asked += 1
        answer: Future[Machine | None] = Future()
        if isinstance(self.seen, Exception):
            answer.set_exception(self.seen)
        else:
            answer.set_result(self.seen)
        return answer

    def follow(self, seconds: float) -> None:
        until = self.time + seconds
        while self.time < until:
            self.watch.glance()
            self.time += 5


def test_asked_seldom_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.follow(60)
    assert stage.asked == 0
    stage.follow(60)
    assert stage.asked == 1
    stage.follow(GLANCE_EVERY_S)
    assert stage.asked == 2
    assert stage.notes == []


def test_one_that_was_asked_for_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, warm=False)
    stage.follow(2 * GLANCE_EVERY_S)
    assert stage.asked == 0


@pytest.mark.parametrize(("deadline", "word"), [(None, "does not stop it"), (DEADLINE + 60, "and not at")])
def test_another_limit_is_told_once(monkeypatch: pytest.MonkeyPatch, deadline: float | None, word: str) -> None:
    stage = Stage(monkeypatch)
    stage.seen = stage.machine(deadline)
    stage.follow(3 * GLANCE_EVERY_S)
    (note,) = stage.notes
    assert word in note


def test_no_answer_and_one_that_goes_down_are_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.seen = OSError("no network")
    stage.follow(GLANCE_EVERY_S)
    stage.seen = stage.machine(None, "STOPPING")
    stage.follow(GLANCE_EVERY_S)
    assert (stage.asked, stage.notes) == (2, [])
