"""From the host's account of a run, or the reason why its machine was stopped, to its record and its notice."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.machines.targets import LocalTarget
from orchestrator.results.records import GateRecord, RunRecord, SourceRecord, StepRecord
from orchestrator.results.store import rows
from orchestrator.results.store.rows import row_of
from orchestrator.runs import notices
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.record import CLOCKS_DIFFER_S, from_outcome, stopped_under
from tests.support import sample_run

MISSING = "benchmark.speedup > 2"
RUN_ID = "20261121t081530z-bench-here-000001"


@pytest.mark.parametrize(
    ("optional", "said", "status", "code"),
    [
        (False, "passed", "incomplete", 104),
        (True, "passed", "passed", 0),
        (False, "failed", "failed", 100),
        (False, "cancelled", "cancelled", 103),
        (False, "incomplete", "incomplete", 104),
    ],
)
def test_a_host_program_that_does_not_know_incomplete(optional: bool, said: str, status: str, code: int) -> None:
    """Its gates do not say whether they are optional, either: the plan does, of a step."""
    spec = wire.StepSpec("bench", "true", optional=optional, unavailable_ok=not optional)
    plan = wire.RunPlan(RUN_ID, "bench", "here", "ws", "0" * 64, [spec])
    saved = SavedPlan(plan=plan, target=LocalTarget(name="here"), source=SourceRecord(tree_sha256="0" * 64))
    gates = [wire.GateResult(MISSING, "unavailable", hint="no 'speedup'; print it")]
    step = wire.StepResult("bench", "unavailable", gates=gates)
    outcome = wire.Outcome(RUN_ID, "bench", said, 0, 1.0, 2.0, [step])
    raw = wire.encode(outcome)
    raw["steps"][0]["gates"][0].pop("optional", None)
    record = from_outcome(saved, raw, [], 3.0)
    assert (record.status, record.exit_code) == (status, code)
    if said == "passed" and not optional:
        assert record.message == f"step 'bench': gate without a value: {MISSING}: no 'speedup'; print it"


@pytest.mark.parametrize(
    ("started", "finished", "took"),
    [
        (1e12, 1e12 + 2, 2.0),
        (-5.0, 1e300, 1e300),
        (math.nan, math.nan, math.nan),
        (100.0, 101.0, 1e9),
        (3e8, 2e8, -7.0),
    ],
)
def test_no_clock_or_duration_of_a_host_ends_a_run_or_costs_a_fortune(
    started: float, finished: float, took: float
) -> None:
    plan = wire.RunPlan(RUN_ID, "bench", "here", "ws", "0" * 64, [wire.StepSpec("bench", "true")], created=90.0)
    target = LocalTarget(name="here")
    saved = SavedPlan(plan=plan, target=target, source=SourceRecord(tree_sha256="0" * 64), usd_per_hour=1.0)
    step = wire.StepResult("bench", "passed", started=started, finished=finished, duration_s=took, exit_code=10**30)
    outcome = wire.Outcome(RUN_ID, "bench", "passed", 10**30, started, finished, [step])
    record = from_outcome(saved, wire.encode(outcome), [], 190.0)
    assert record.status == "passed", record.message
    assert 0 <= record.cost.usd <= (100 + CLOCKS_DIFFER_S) / 3600
    row = row_of(record)
    assert 0 <= row.duration_s <= 100 + CLOCKS_DIFFER_S
    with closing(sqlite3.connect(":memory:")) as db:
        for statement in rows.CREATE:
            db.execute(statement)
        db.execute(rows.INSERT, [getattr(row, name) for name in rows.COLUMNS])
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"run_id": "20261120t081530z-bench-here-000001"}, "it belongs to run '20261120t081530z-bench-here-000001'"),
        ({"tree_sha256": "1" * 64}, "it is of another source tree"),
        ({"steps": []}, "its steps are not build, bench"),
        ({"steps": ["bench", "build"]}, "its steps are not build, bench"),
        ({"steps": ["build", "bench", "more"]}, "its steps are not build, bench"),
        ({}, None),
    ],
)
def test_the_outcome_of_another_run_is_not_this_run_s(changes: dict[str, Any], fault: str | None) -> None:
    """A host may answer with what an earlier run left, which passed."""
    steps = [wire.StepSpec("build", "true"), wire.StepSpec("bench", "true")]
    plan = wire.RunPlan(RUN_ID, "bench", "here", "ws", "0" * 64, steps)
    saved = SavedPlan(plan=plan, target=LocalTarget(name="here"), source=SourceRecord(tree_sha256="0" * 64))
    names = changes.pop("steps", ["build", "bench"])
    outcome = wire.Outcome(
        RUN_ID,
        "bench",
        "passed",
        0,
        1.0,
        2.0,
        [wire.StepResult(name, "passed") for name in names],
        tree_sha256="0" * 64,
    )
    record = from_outcome(saved, {**wire.encode(outcome), **changes}, [], 3.0)
    assert record.status == ("passed" if fault is None else "error")
    assert fault is None or fault in (record.message or "")


@pytest.mark.parametrize(
    ("fields", "status", "ends"),
    [
        ({}, "failed", "error"), ({}, "skipped", "error"), ({}, "unavailable", "error"), ({}, "warned", "passed"),
        ({"optional": True}, "failed", "passed"), ({"unavailable_ok": True}, "unavailable", "passed"),
        ({"keep_going": True}, "failed", "error"),
    ],
)  # fmt: skip
def test_a_host_that_says_passed_of_a_run_whose_step_did_not_is_not_believed(
    fields: dict[str, bool], status: str, ends: str
) -> None:
    plan = wire.RunPlan(RUN_ID, "bench", "here", "ws", "0" * 64, [wire.StepSpec("bench", "true", **fields)])
    saved = SavedPlan(plan=plan, target=LocalTarget(name="here"), source=SourceRecord(tree_sha256="0" * 64))
    outcome = wire.Outcome(RUN_ID, "bench", "passed", 0, 1.0, 2.0, [wire.StepResult("bench", status)])
    record = from_outcome(saved, wire.encode(outcome), [], 3.0)
    assert record.status == ends
    assert ends == "passed" or f"its status is passed, but step 'bench' is {status}" in (record.message or "")


def test_it_is_told_as_a_failure_at_the_step_that_was_left_open() -> None:
    record = sample_run.record(status="incomplete", exit_code=104, message="step 'test': gate without a value")
    failed = record.steps[-1]
    left_open = record.steps[3].model_copy(update={"gates": [GateRecord(expr=MISSING, verdict="unavailable")]})
    told = notices.of_run(record.model_copy(update={"steps": [failed, left_open]}))
    assert told.event == "failed"
    assert told.text.startswith("phase0 on local incomplete at test: step 'test': gate without a value")


def record(status: str, *steps: tuple[str, str, int | None]) -> RunRecord:
    return RunRecord(
        run_id="r", job="bench", target="l4", status=status, exit_code=100, message="the host's words",  # type: ignore[arg-type]
        created="2026-11-21T08:00:00.000Z", finished="2026-11-21T08:10:00.000Z",
        source=SourceRecord(tree_sha256="0" * 64),
        steps=[StepRecord(id=name, status=how, exit_code=code) for name, how, code in steps],  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("code", [143, 137, -15])
def test_a_step_that_the_shutdown_ended_is_not_its_own_failure(code: int) -> None:
    cut = record("failed", ("build", "passed", 0), ("test", "failed", code), ("bench", "skipped", None))
    said = stopped_under(cut, "preempted", "vm was preempted", "go on")
    assert (said.status, said.message, said.hint) == ("preempted", "vm was preempted (the host's words)", "go on")


def test_a_failure_of_its_own_stays_one() -> None:
    own = record("failed", ("build", "passed", 0), ("test", "failed", 1), ("bench", "skipped", None))
    assert stopped_under(own, "preempted", "vm was preempted", "go on") == own
    passed = record("passed", ("build", "passed", 0))
    assert stopped_under(passed, "lost", "stopped", None) == passed
