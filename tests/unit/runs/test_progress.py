"""The best that runs have of a gate, for ``fcctl progress``."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.results.records import GateRecord, RunRecord, StepRecord
from orchestrator.runs.job.job import parse
from orchestrator.runs.progress import Goal, goals
from orchestrator.views.tables.plan import gap_text, value_text

P50, RIGHT = 'benchmark.benchmarks[name="mission"].stats.p50 < 200', "correctness.summary.passed == 48"
JOB = f"""
job: phase1
steps:
  - id: bench
    run: ./bench
    gates:
      - '{P50}'
      - {RIGHT}
"""


def run(number: int, p50: float, passed: int) -> RunRecord:
    gates = [
        GateRecord(expr=P50, value=p50, verdict="pass" if p50 < 200 else "fail"),
        GateRecord(expr=RIGHT, value=passed, verdict="pass" if passed == 48 else "fail"),
    ]
    ended = all(gate.verdict == "pass" for gate in gates)
    step = StepRecord(id="bench", status="passed" if ended else "failed", gates=gates)
    when = "2026-11-21T07:00:00Z"
    return RunRecord.model_validate({
        "run_id": f"20261121t07000{number}z-phase1-l4-0ddba{number}", "job": "phase1", "target": "l4",
        "status": step.status, "exit_code": 0 if ended else 100, "created": when, "started": when, "finished": when,
        "steps": [step.model_dump()], "source": {"tree_sha256": "0" * 64},
    })  # fmt: skip


def time_goal(*records: RunRecord) -> Goal:
    return next(
        goals([(spec.id, one.expr) for spec in parse(JOB, "phase1.yaml").job.steps for one in spec.gates], records)
    )


def test_a_time_is_not_met_by_a_run_whose_other_gate_of_the_step_failed() -> None:
    wrong, right, slow = run(1, 90.0, 47), run(2, 180.0, 48), run(3, 250.0, 48)
    alone = time_goal(wrong)
    assert (alone.met, alone.best, alone.gap) == (False, 90.0, None)
    assert (value_text(alone), gap_text(alone)) == ("90.00 µs", "another gate of the step failed")
    met = time_goal(wrong, right)
    assert (met.met, met.best, met.run_id) == (True, 180.0, right.run_id)
    missed = time_goal(wrong, slow)
    assert (missed.met, missed.best, gap_text(missed)) == (False, 250.0, "25 % over"), (
        "a wrong kernel's time is no best"
    )


def test_a_count_above_its_target_is_over_it() -> None:
    for passed, said in ((36, "25 % under"), (60, "25 % over")):
        (goal,) = goals([("bench", RIGHT)], [run(1, 250.0, passed)])
        assert gap_text(replace(goal, beside_a_failure=False)) == said
