"""A step that ends because its machine goes down is cut off, whoever of the two heard of it first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import attempt
from fcctl_remote.run.attempt import StepRun
from fcctl_remote.run.process import ProcessExit, Signals
from fcctl_remote.run.shutdown_timer import Stored


class Supervisor:
    """As much of one as a step's end asks for."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.signals, self.message = layout, Signals(), "the machine is shutting down"
        self.run = layout.run("20261121t081530z-long-l4-3fa9c1")
        self.looks = 0

    def stop(self) -> str | None:
        self.looks += 1
        return "preempted" if self.signals.stop_asked else None


@pytest.fixture
def supervisor(layout: Layout) -> Iterator[Supervisor]:
    made = Supervisor(layout)
    os.makedirs(made.run.step("long").folder)
    Path(made.run.step("long").log).write_text("working\nnoticed\n")
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, made.signals._stop)
    old = signal.set_wakeup_fd(made.signals._write)
    yield made
    signal.set_wakeup_fd(old)
    signal.signal(signal.SIGTERM, before)
    os.close(made.signals._read)
    os.close(made.signals._write)


def arm(supervisor: Supervisor, **lease: Any) -> None:
    files.write_atomic(supervisor.layout.lease, files.to_json(wire.encode(Stored(wire.Lease(**lease)))))


def ended(supervisor: Supervisor, exit_code: int) -> wire.StepResult:
    step = StepRun(supervisor, wire.StepSpec("long", "x", timeout_s=60), {})  # type: ignore[arg-type]
    step.result.exit_code = exit_code
    step._classify(ProcessExit(exit_code, "exited"))
    return step.result


def test_a_failure_just_before_the_notice_is_the_notices(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm(supervisor, armed=True, dry=False, deadline=1e10)
    monkeypatch.setattr(attempt, "NOTICE_S", 60.0)  # the word comes long before that
    notice = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
    notice.start()
    result = ended(supervisor, 1)
    notice.join()
    assert (result.status, result.exit_code, result.message) == ("cancelled", 1, "the machine is shutting down")


@pytest.mark.parametrize("exit_code", [0, 1])
def test_what_ends_after_the_notice_is_cut(supervisor: Supervisor, exit_code: int) -> None:
    supervisor.signals.stop_asked = True
    result = ended(supervisor, exit_code)
    assert (result.status, result.exit_code) == ("cancelled", exit_code)


def test_without_a_notice_a_failure_is_the_steps_own(supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch) -> None:
    arm(supervisor, armed=True, dry=False, deadline=1e10)
    monkeypatch.setattr(attempt, "NOTICE_S", 0.05)
    result = ended(supervisor, 3)
    assert (result.status, result.exit_code) == ("failed", 3)
    assert "noticed" in (result.message or "")


@pytest.mark.parametrize("lease", [None, {"armed": False}, {"armed": True, "dry": True}])
def test_a_machine_that_stays_on_is_not_waited_for(
    supervisor: Supervisor, lease: dict[str, bool] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lease is not None:
        arm(supervisor, **lease)
    monkeypatch.setattr(attempt, "NOTICE_S", float("inf"))
    assert (ended(supervisor, 1).status, ended(supervisor, 0).status) == ("failed", "passed")
    assert supervisor.looks == 2


def test_an_end_for_the_users_own_reasons_keeps_a_result(supervisor: Supervisor) -> None:
    """Whoever cancels just as a step has passed has its result all the same."""
    supervisor.stop = lambda: "cancelled"  # type: ignore[method-assign]
    assert (ended(supervisor, 0).status, ended(supervisor, 1).status) == ("passed", "cancelled")
