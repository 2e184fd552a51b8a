"""What undecided gates do to a step and its run."""

from __future__ import annotations

import pytest

from fcctl_remote import wire
from fcctl_remote.gates import effect

MISSING = "benchmark.speedup > 2"


def gate(verdict: str, *, optional: bool = False) -> wire.GateResult:
    return wire.GateResult(MISSING, verdict, hint="no 'speedup'; print it", optional=optional)


def result(status: str, *gates: wire.GateResult) -> wire.StepResult:
    return wire.StepResult("bench", status, gates=list(gates))


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
