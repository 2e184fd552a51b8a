"""What undecided gates do to a step and its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from fcctl_remote.base.layout import Layout, RunLayout
from fcctl_remote.gates import effect
from fcctl_remote.run.judge import Case, StepVerdict, judge

MISSING = "benchmark.speedup > 2"
RUN_ID = "20261121t081530z-bench-here-000001"


def gate(verdict: str, *, optional: bool = False) -> wire.GateResult:
    return wire.GateResult(MISSING, verdict, hint="no 'speedup'; print it", optional=optional)


def result(status: str, *gates: wire.GateResult) -> wire.StepResult:
    return wire.StepResult("bench", status, gates=list(gates))


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., StepVerdict]:
    """The host's judgement of a step that ended with exit code 0 and left nothing."""
    layout = Layout(str(tmp_path / "fcctl"))
    run: RunLayout = layout.run(RUN_ID)

    def judge_step(*gates: wire.GateSpec, **fields: Any) -> StepVerdict:
        out = Path(run.step("bench").out)
        out.mkdir(parents=True, exist_ok=True)
        spec = wire.StepSpec("bench", "true", gates=list(gates), **fields)
        return judge(run, Case(spec, result("passed"), [], {"FCCTL_OUT": str(out)}))

    return judge_step


@pytest.mark.parametrize("fields", [{}, {"optional": True}, {"unavailable_ok": True}])
def test_a_step_with_an_undecided_gate_is_unavailable(
    judged: Callable[..., StepVerdict], fields: dict[str, bool]
) -> None:
    found = judged(wire.GateSpec(MISSING), **fields)
    assert found.status == "unavailable"
    assert [(g.verdict, g.optional) for g in found.gates] == [("unavailable", "optional" in fields)]


def test_an_optional_gate_leaves_its_step_passed(judged: Callable[..., StepVerdict]) -> None:
    found = judged(wire.GateSpec(MISSING, optional=True))
    assert (found.status, found.gates[0].verdict, found.gates[0].optional) == ("passed", "unavailable", True)
    false = wire.GateSpec("step.duration_s < 0", optional=True)
    assert judged(false).status == "failed"
    assert judged(wire.GateSpec(MISSING), false).status == "failed"


def test_the_fix_is_the_gates_own_hint_or_a_literal_one(judged: Callable[..., StepVerdict]) -> None:
    found = judged(wire.GateSpec(MISSING), wire.GateSpec(MISSING, hint="print it"))
    why = "there is no 'benchmark' here"
    assert [g.hint for g in found.gates] == [f"{why}; {effect.FIX}", f"{why}; print it"]


def test_the_line_names_the_step_the_gate_why_and_the_fix() -> None:
    assert effect.incomplete([result("passed", gate("pass"))]) is None
    assert effect.incomplete([result("passed", gate("unavailable", optional=True), gate("not_applicable"))]) is None
    left_open = result("unavailable", gate("unavailable"))
    said = f"step 'bench': gate without a value: {MISSING}"
    assert effect.incomplete([result("passed"), left_open]) == f"{said}: no 'speedup'; print it"
    later = wire.StepResult("later", "unavailable", gates=[gate("unavailable")])
    assert effect.incomplete([left_open, later]) == f"{said} (and 1 more): no 'speedup'; print it"
    bare = wire.StepResult("bench", "unavailable", gates=[wire.GateResult("x" * 301, "unavailable")])
    assert effect.incomplete([bare]) == f"step 'bench': gate without a value: {'x' * 300}: {effect.FIX}"


@pytest.mark.parametrize(
    ("fields", "statuses"),
    [
        ({}, {"passed", "warned"}),
        ({"unavailable_ok": True}, {"passed", "warned", "unavailable"}),
        ({"optional": True}, set(wire.STEP_ENDINGS)),
    ],
)
def test_what_a_run_goes_on_after(fields: dict[str, bool], statuses: set[str]) -> None:
    spec = wire.StepSpec("bench", "true", **fields)  # type: ignore[arg-type]
    assert {status for status in wire.STEP_ENDINGS if effect.goes_on(spec, result(status))} == statuses
