from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.results.levers import RULES, SHOWN, Measured, Stalled, findings

STALLS = {name: rule for name, *_, rule in RULES if isinstance(rule, Stalled)}
PAGE = (Path(__file__).resolve().parents[3] / "docs/report.md").read_text()

#: What just fires each rule, and what just does not.
EDGES = {
    "spills": (Measured(spill_bytes=8), Measured(spill_bytes=0)),
    "stack": (Measured(stack_bytes=16), Measured(stack_bytes=0)),
    "scalar_fallback": (
        Measured(tensor_pct=1.9, sm_pct=20, wants_tensor=True),
        Measured(tensor_pct=2.0, sm_pct=20, wants_tensor=True),
    ),
    "memory_bound": (Measured(dram_pct=60), Measured(dram_pct=59.9)),
    "tensor_bound": (Measured(tensor_pct=70), Measured(tensor_pct=69.9)),
    "exponentials": (
        Measured(roofline_bound="exp2", roofline_pct=40),
        Measured(roofline_bound="tensor", roofline_pct=90),
    ),
    "launch_bound": (Measured(p50_us=10, launch_floor_us=2), Measured(p50_us=10, launch_floor_us=1.9)),
    "underfilled": (Measured(blocks=57, sms=58), Measured(blocks=58, sms=58)),
    # 128 threads at half of 48 warps: 6 blocks an SM, 348 on 58 of them.
    "last_wave": (
        Measured(blocks=400, sms=58, threads=128, theoretical_occupancy_pct=50, warps_per_sm=48),
        Measured(blocks=696, sms=58, threads=128, theoretical_occupancy_pct=50, warps_per_sm=48),
    ),
    "occupancy": (
        Measured(occupancy_pct=24, stalls={"long_scoreboard": 1, "selected": 1}),
        Measured(occupancy_pct=25, stalls={"long_scoreboard": 1, "selected": 1}),
    ),
}


def only(rule: str, measured: Measured) -> list[str]:
    return [f.rule for f in findings(measured, None) if f.rule == rule]


@pytest.mark.parametrize("rule", EDGES)
def test_a_rule_fires_at_its_threshold_and_not_before(rule: str) -> None:
    fires, silent = EDGES[rule]
    assert only(rule, fires) == [rule]
    assert only(rule, silent) == []


@pytest.mark.parametrize("rule", STALLS)
def test_a_stall_fires_by_its_share_of_a_warps_life(rule: str) -> None:
    reason, threshold = STALLS[rule].reasons[0], STALLS[rule].threshold_pct
    at = Measured(stalls={reason: threshold, "selected": 100 - threshold})
    below = Measured(stalls={reason: threshold - 0.1, "selected": 100.1 - threshold})
    assert only(rule, at) == [rule]
    assert only(rule, below) == []
    # An idle kernel and a busy one differ in how many warps there are, not in the shares.
    assert only(rule, replace(at, stalls={k: v * 7 for k, v in at.stalls.items()})) == [rule]


def test_every_rule_has_an_edge_here_and_a_line_in_the_docs_with_its_thresholds() -> None:
    lines = dict(re.findall(r"^\| `(\w+)` \|(.*)$", PAGE, flags=re.MULTILINE))
    assert list(lines) == [name for name, *_ in RULES]
    assert {*EDGES, *STALLS} == set(lines)
    for rule, stall in STALLS.items():
        assert f">= {stall.threshold_pct} %" in lines[rule]
        assert all(f"`{reason}`" in lines[rule] for reason in stall.reasons)
    for rule, (fires, _) in EDGES.items():
        (finding,) = [f for f in findings(fires, None) if f.rule == rule]
        for _, _, threshold in finding.facts:
            number = re.match(r"(?:<|>=) [\d.]+ %", threshold)
            assert number is None or number[0] in lines[rule], rule


def test_a_kernel_that_is_not_meant_for_tensor_cores_is_not_sent_there() -> None:
    assert findings(Measured(tensor_pct=0.0, sm_pct=80)) == []


def test_nothing_measured_finds_nothing() -> None:
    assert findings(Measured()) == []
    assert findings(Measured(stalls={"wait": 0.0}, blocks=0, p50_us=0.0, launch_floor_us=0.5)) == []


def test_three_are_shown_the_largest_impact_first() -> None:
    many = Measured(
        spill_bytes=4, tensor_pct=1, wants_tensor=True, sm_pct=50, blocks=10, sms=58, p50_us=1, launch_floor_us=0.5,
        dram_pct=65,
    )  # fmt: skip
    shown = findings(many)
    assert [f.rule for f in shown] == ["spills", "scalar_fallback", "underfilled"]
    assert len(shown) == SHOWN
    assert [f.impact for f in findings(many, None)] == sorted((f.impact for f in findings(many, None)), reverse=True)


def test_every_finding_has_the_number_that_triggered_it() -> None:
    for fires, _ in EDGES.values():
        for finding in findings(fires, None):
            assert finding.facts
            assert finding.facts[0][2] != "for information"
            assert 0 <= finding.impact <= 100
            assert finding.lever
            assert not finding.lever.endswith(".")
