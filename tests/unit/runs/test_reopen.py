"""Who may take up an active run, while another fcctl owns it for a moment to look at it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import ConflictError, FcctlError, HostUnreachable, RunNotFound
from orchestrator.base.journal import LOOK_S
from orchestrator.leases.session_files import SessionFiles
from orchestrator.results.store.store import FileStore
from orchestrator.runs import reopen
from orchestrator.runs.reopen import attach, cancel, fetch, give_up, known, resumed
from orchestrator.sessions.session import stop
from tests.support.stores import begin, make_id, make_record


class Clock(SystemClock):
    """Ends the other fcctl's look when somebody waits for it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.looks: list[Any] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        while self.looks:
            self.looks.pop().release()


@pytest.fixture
def services(tmp_path: Path) -> Any:
    clock = Clock()
    return SimpleNamespace(clock=clock, store=FileStore(tmp_path, clock))


@pytest.mark.parametrize("verb", [attach, fetch, give_up])
def test_a_look_at_a_run_keeps_nobody_from_it(services: Any, verb: Any) -> None:
    run = begin(services.store)
    services.clock.looks.append(run)
    with pytest.raises(FcctlError, match=r"plan of run .* is invalid"):  # it has been claimed: this plan is none
        verb(services, run.run_id)
    assert not services.store.is_followed(run.run_id)


def test_a_look_at_a_session_keeps_nobody_from_stopping_it(services: Any, tmp_path: Path) -> None:
    services.sessions = SessionFiles(tmp_path, services.clock)
    services.clock.looks.append(services.sessions.begin("20261121t081530z-session-l4-3fa9c1", {}))
    with pytest.raises(FcctlError, match="are unreadable"):  # it has been claimed
        stop(services, *services.sessions.open())


@pytest.mark.parametrize("wait_s", [0.0, LOOK_S])
def test_a_run_that_is_followed_is_refused(services: Any, wait_s: float) -> None:
    run = begin(services.store)
    with (
        pytest.raises(ConflictError, match="another fcctl process follows"),
        resumed(services, run.run_id, wait_s=wait_s),
    ):
        pass
    assert services.store.is_followed(run.run_id)
    assert services.clock.now_s == pytest.approx(wait_s, abs=0.11)


def test_a_run_that_another_fcctl_completes_meanwhile_is_attached_to_all_the_same(services: Any) -> None:
    run = begin(services.store)
    services.clock.looks.append(SimpleNamespace(release=lambda: run.complete(make_record(run.run_id))))
    assert attach(services, run.run_id).status == "passed"


def test_a_run_that_is_completed_while_it_is_listed_is_not_called_interrupted(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(services.store)
    saved = SimpleNamespace(plan=SimpleNamespace(job="j"), target=SimpleNamespace(name="t"))
    assert services.store.is_followed(run.run_id)

    def read(*_: object) -> Any:
        run.complete(make_record(run.run_id))
        return saved

    monkeypatch.setattr(reopen, "saved_plan", read)
    assert known(services) == []


def test_a_run_that_another_fcctl_completes_meanwhile_is_cancelled_as_it_ended(
    services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other fcctl may have stopped the machine, so cancel must not wait for an answer of it."""
    run = begin(services.store)
    saved = SimpleNamespace(target=SimpleNamespace(name="l4"), fence_s=60)
    monkeypatch.setattr(reopen, "saved_plan", lambda *_: saved)

    def call(_action: Any) -> None:
        run.complete(make_record(run.run_id))
        raise HostUnreachable("it is off", reason="port")

    monkeypatch.setattr(reopen, "new_link", lambda *_, **__: SimpleNamespace(call=call, close=lambda: None))
    ended = cancel(services, run.run_id, reason="enough")
    assert ended is not None
    assert ended.status == "passed"
    monkeypatch.undo()
    with pytest.raises(RunNotFound):
        cancel(services, make_id(), reason="enough")
