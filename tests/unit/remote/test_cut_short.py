"""A step that ends because its machine goes down is cut off, whoever of the two heard of it first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import attempt, judge
from fcctl_remote.run.attempt import StepRun
from fcctl_remote.run.process import ProcessExit, Signals
from fcctl_remote.run.shutdown_timer import Stored
from tests.support.living import is_running


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


@pytest.mark.parametrize(("gates", "status"), [([], "passed"), ([wire.GateSpec("benchmark.x < 1")], "cancelled")])
def test_a_result_whose_gates_nobody_decided_is_not_passed(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, gates: list[wire.GateSpec], status: str
) -> None:
    """A cancel that comes between the step's end and its gates: a resumed run would take it for passed."""
    control: Any = supervisor
    control.ending, control.stop, control.idle = None, lambda: control.ending, lambda: None
    control.progress = SimpleNamespace(state=SimpleNamespace(session=None, steps=[], summary=SimpleNamespace(
        step_started=1.0)))  # fmt: skip
    control.plan, control.lock, control.queue = SimpleNamespace(adopted=[]), None, SimpleNamespace(fd=None)
    control.events = SimpleNamespace(append=lambda *_: None)
    control.mirror = SimpleNamespace(note=lambda _: None)
    step = StepRun(control, wire.StepSpec("long", "x", gates=gates), {})

    def attempted(number: int) -> None:
        step.result.attempts, step.result.exit_code, step.result.status = number, 0, "passed"
        control.ending = "cancelled"

    monkeypatch.setattr(step, "_lacks_something", lambda _: False)
    monkeypatch.setattr(step, "_attempt", attempted)
    assert step.carry_out().status == status


def test_nothing_that_a_reader_started_outlives_a_cancel(supervisor: Supervisor, tmp_path: Path) -> None:
    """A reader's program, ncu for example, has a session of its own."""
    note = tmp_path / "pid"

    def read() -> None:
        program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
        files.write_atomic(str(note), b"%d" % program.pid)
        program.wait()

    answer = judge.aside(read, supervisor.signals, 300.0, lambda: "cancelled" if note.exists() else None, lambda: None)
    pid = int(note.read_text())
    try:
        assert answer.stopped == "cancelled"
        assert not is_running(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_reader_that_not_even_sigkill_ends_does_not_hold_up_the_run(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such is one that reads from a file server that is away."""
    killed: list[int] = []
    monkeypatch.setattr(judge, "send", lambda pid, *_, **__: killed.append(pid))
    monkeypatch.setattr(judge, "KILL_PATIENCE_S", 0.1)
    answer = judge.aside(lambda: time.sleep(600), supervisor.signals, 300.0, lambda: "cancelled", lambda: None)
    assert answer.stopped == "cancelled"
    assert os.waitpid(killed[0], os.WNOHANG) == (0, 0), "it was not waited for"
    os.kill(killed[0], signal.SIGKILL)
    os.waitpid(killed[0], 0)
