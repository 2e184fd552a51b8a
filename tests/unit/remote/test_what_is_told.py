"""Who hears of an event and asks how the run stands is told of what it heard, never of what was before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.agent.calls import Watch
from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.run import state as runs
from fcctl_remote.run.control import HostLock
from fcctl_remote.run.process import Signals
from fcctl_remote.run.state import EventLog
from fcctl_remote.run.supervisor import Supervisor

FIRST, SECOND = "20261121t081530z-first-l4-000001", "20261121t081530z-second-l4-000002"


def planned(layout: Layout, run_id: str) -> RunLayout:
    run = layout.run(run_id)
    os.makedirs(run.folder)
    steps = [wire.StepSpec("build", "true", timeout_s=60)]
    plan = wire.RunPlan(run_id, "job", "l4", "ws", "0" * 64, steps, created=1.0)
    files.write_atomic(run.plan, files.to_json(wire.encode(plan)))
    return run


def known(run: RunLayout) -> wire.RunSummary:
    summary = runs.summary(run)
    assert summary is not None
    return summary


def test_a_run_that_waits_names_the_one_it_waits_for(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = HostLock(layout, FIRST, "exclusive")
    holder.join()
    run = planned(layout, SECOND)
    seen: list[tuple[str, str, str | None, str | None]] = []
    append = EventLog.append

    def look(log: EventLog, kind: str, data: dict[str, Any], **options: bool) -> wire.Event:
        written = append(log, kind, data, **options)
        summary = known(run)
        seen.append((kind, summary.status, summary.behind, summary.step))
        if kind == "queued":
            holder.leave()
        return written

    monkeypatch.setattr(EventLog, "append", look)
    monkeypatch.setattr("fcctl_remote.run.attempt.StepRun._attempt", lambda self, attempt: self._announce(attempt))
    signals = Signals()
    try:
        supervisor = Supervisor(layout, run, -1, signals)
        supervisor.mirror = Quiet()  # type: ignore[assignment]
        supervisor.carry_out(["true"])
    finally:
        os.close(signals._read)
        os.close(signals._write)
    assert seen[:3] == [
        ("queued", "queued", FIRST, None),
        ("run_started", "running", None, None),
        ("step_started", "running", None, "build"),
    ]


class Quiet:
    def note(self, text: str) -> None: ...


def test_the_answer_that_brings_an_event_knows_of_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run comes to wait while the answer is put together, at the worst moment."""
    run = planned(layout, SECOND)
    reserve = files.DiskReserve(run.reserve)

    def comes_to_wait() -> None:
        summary = wire.RunSummary(SECOND, "job", "queued", 1.0, behind=FIRST)
        runs.Progress(run, runs.State(summary, "boot", 1), reserve).save()
        EventLog(run.events, reserve).append("queued", {"behind": FIRST})

    for told, summary in answers(run, monkeypatch, comes_to_wait):
        assert "queued" not in told or summary.behind == FIRST


def test_the_answer_that_brings_the_ending_brings_all_events(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks again of a run that has ended."""
    run = planned(layout, SECOND)
    reserve = files.DiskReserve(run.reserve)

    def ends() -> None:
        EventLog(run.events, reserve).append("run_finished", {"status": "passed"})
        plan = runs.load_plan(run)
        assert plan is not None
        runs.write_outcome(run, runs.outcome(plan, "passed", ""), reserve)

    for told, summary in answers(run, monkeypatch, ends):
        assert summary.status == "queued" or told == ["run_finished"]


def answers(run: RunLayout, patch: pytest.MonkeyPatch, happens: Any) -> list[tuple[list[str], wire.RunSummary]]:
    """What ``watch`` says when it happens before the first thing it reads, between the two, and after."""
    read, summary = runs.read_events, runs.summary
    found = []
    for moment in (1, 2, 3):
        for place in (run.events, run.heartbeat, run.outcome):
            Path(place).unlink(missing_ok=True)
        left = [moment]

        def tick(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                happens()

        def timed_read(*words: Any, tick: Any = tick) -> Any:
            tick()
            return read(*words)

        def timed_summary(of: RunLayout, tick: Any = tick) -> Any:
            tick()
            return summary(of)

        with patch.context() as patched:
            patched.setattr(runs, "read_events", timed_read)
            patched.setattr(runs, "summary", timed_summary)
            reply, _ = Watch(run, wire.WatchRequest(run.run_id))._reply(None)
        found.append(([event.type for event in reply.events], reply.summary))
    return found
