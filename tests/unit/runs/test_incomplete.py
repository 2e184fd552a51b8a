"""Runs in which a gate was left open: what the controller makes of an older host program's word, and whom it tells."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing

import pytest

from fcctl_remote import wire
from orchestrator.machines.targets import LocalTarget
from orchestrator.results.records import GateRecord, RunRecord, SourceRecord
from orchestrator.results.store import schema
from orchestrator.results.store.rows import row_of
from orchestrator.runs.ending import CLOCKS_DIFFER_S, from_outcome
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.notify import notices
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
        for statement in schema.CREATE:
            db.execute(statement)
        db.execute(schema.INSERT, schema.values(row))
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


def test_it_is_told_as_a_failure_at_the_step_that_was_left_open() -> None:
    record = sample_run.record(status="incomplete", exit_code=104, message="step 'test': gate without a value")
    failed = record.steps[-1]
    left_open = record.steps[3].model_copy(update={"gates": [GateRecord(expr=MISSING, verdict="unavailable")]})
    told = notices.of_run(record.model_copy(update={"steps": [failed, left_open]}))
    assert told.event == "failed"
    assert told.text.startswith("phase0 on local incomplete at test: step 'test': gate without a value")
