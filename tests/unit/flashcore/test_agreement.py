"""Verdicts of two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashcore import agreement, tables
from flashcore.agreement import Finding


def benchmark(variant: str, ratios: dict[str, tuple[float, float]], tile: int = 32, own: int | None = None) -> Any:
    row: dict[str, Any] = {"name": "mission", **({"configuration": {"TILE_M": own}} if own else {})}
    return {
        "kind": "benchmark", "variant": variant, "label": variant, "configuration": {"TILE_M": tile},
        "benchmarks": [row, {"name": "mission/cold"}],
        "comparisons": [
            {"benchmark": "mission", "against": "mission", "null": True, "mode": "hot", "ratio": 1, "ci_low": 1,
             "ci_high": 1},
            *({"benchmark": "mission", "against": f"mission/{rival}", "null": False, "mode": "hot", "ratio": ratio,
               "ci_low": ratio - wide, "ci_high": ratio + wide} for rival, (ratio, wide) in ratios.items()),
        ],
    }  # fmt: skip


def test_verdicts_are_by_the_whole_interval() -> None:
    assert [Finding(0.9, 0.8, high).verdict for high in (0.99, 1.01)] == ["faster", "undecided"]
    assert Finding(1.1, 1.01, 1.2).verdict == "slower"


def test_two_runs_agree_contradict_or_only_one_decides() -> None:
    first = agreement.findings([benchmark("fused", {"sdpa-flash": (0.7, 0.1), "sdpa-cudnn": (0.9, 0.05),
                                                    "sdpa-math": (0.99, 0.1), "baseline": (0.1, 0.01)})])  # fmt: skip
    second = agreement.findings([benchmark("fused", {"sdpa-flash": (0.8, 0.1), "sdpa-cudnn": (1.1, 0.05),
                                                     "sdpa-math": (0.8, 0.1), "sdpa-other": (1, 0.1)})])  # fmt: skip
    found = agreement.compare(first, second)
    assert [s.rival for s in found.agreeing] == ["sdpa-flash"]
    assert [s.rival for s in found.contradicting] == ["sdpa-cudnn"]
    assert [s.rival for s in found.by_one_only] == ["sdpa-math"]
    assert found.median_difference == pytest.approx(1.1 / 0.9 - 1)


def test_another_configuration_is_another_subject() -> None:
    ratios = {"sdpa-flash": (0.7, 0.1)}
    first, second = (agreement.findings([benchmark("fused", ratios, own=own)]) for own in (64, 128))
    assert not agreement.compare(first, second).common
    older = agreement.findings([benchmark("fused", ratios, tile=64)])  # said once for the whole document
    assert len(agreement.compare(first, older).common) == 1


def test_another_kernel_by_the_same_name_is_another_subject() -> None:
    def run(content: str | None, registers: int = 103) -> dict[agreement.Subject, Finding]:
        build = {"kind": "build", "variant": "wmma", "label": "wmma", **({"content": content} if content else {}),
                 "kernels": [{"name": "k", "arch": "sm_89", "registers": registers}]}  # fmt: skip
        return agreement.findings([build, benchmark("wmma", {"sdpa-flash": (0.7, 0.1)})])

    assert len(agreement.compare(run("wmma-1"), run("wmma-1")).common) == 1
    assert not agreement.compare(run("wmma-1"), run("wmma-2")).common
    assert len(agreement.compare(run(None), run("wmma-2")).common) == 1  # an older run does not say
    assert not agreement.compare(run(None), run("wmma-2", registers=120)).common


def test_the_command_lists_contradictions_and_fails_on_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, ratio in (("a", 0.8), ("b", 1.2), ("c", 0.85)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "bench.json").write_text(json.dumps(benchmark("fused", {"sdpa-flash": (ratio, 0.1)})))
    assert agreement.main([str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    said = capsys.readouterr().out
    assert "contradict: fused (TILE_M=32) against sdpa-flash at mission, hot: 0.800 [0.700, 0.900], 1.200" in said
    assert agreement.main([str(tmp_path / "a"), str(tmp_path / "c")]) == 0
    assert agreement.main([str(tmp_path / "a"), str(tmp_path)]) == 2


def test_the_table_has_a_row_for_each_two_machines() -> None:
    gpus = []
    for gpu, run, ratio in (("h200", "r1", 0.8), ("h100", "r2", 0.82)):
        gpus.append(tables.Evidence(gpu))
        gpus[-1].add_run({"run_id": run}, [benchmark("fused", {"sdpa-flash": (ratio, 0.1)})])
    text = tables.render_agreement(gpus)
    assert "| h200 `r1` | h100 `r2` | 1 | 1 | 0 | 0 | 2.5 % |" in text
    assert tables.render_agreement(gpus[:1]) == ""
