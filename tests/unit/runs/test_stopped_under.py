"""What a run is called whose machine was stopped under it."""

from __future__ import annotations

import pytest

from orchestrator.results.records import RunRecord, SourceRecord, StepRecord
from orchestrator.runs.ending import stopped_under


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
