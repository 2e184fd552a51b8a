"""What a report says of a search, in every form; and the files about itself that a run gets."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from orchestrator.base.errors import FcctlError
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import DocumentRecord, StepRecord
from orchestrator.views.blocks import plain
from orchestrator.views.report import machine_charts, outputs
from orchestrator.views.report.build import build
from orchestrator.views.report.charts import charts
from orchestrator.views.report.model import Report
from orchestrator.views.tables.run import print_run_summary
from tests.support import sample_run

HOSTILE = "</td><script>alert(1)</script>\x1b[31m\u202e | `*_[a](javascript:1)"


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "ci_low": value - 0.01, "ci_high": value + 0.01}


def tuning(reason: str = "SIGSEGV") -> dict[str, Any]:
    trials = [
        {"number": 0, "params": {"TILE": 64, "STAGES": 1}, "state": "complete", "value": 1.0, "gpu": "NVIDIA L4"},
        {"number": 1, "params": {"TILE": 32, "STAGES": 1}, "state": "crashed", "reason": reason, "gpu": "NVIDIA L4"},
        {"number": 2, "params": {"TILE": 128, "STAGES": 1}, "state": "complete", "value": 0.8, "gpu": "NVIDIA L4"},
        {"number": 3, "params": {"TILE": 16, "STAGES": 1}, "state": "crashed", "reason": reason, "gpu": "NVIDIA L4"},
    ]
    elite = {
        "trial": 2, **ratio(0.8), "held_out": ratio(0.85), "verdict": "faster",
        "per_case": {"mission": {"us": 4.2, **ratio(0.8)}, "s256": {"us": 2.9, **ratio(0.85)}},
    }  # fmt: skip
    return {
        "kind": "tuning", "tune": "flashcore", "title": "fused", "gpu": {"name": "NVIDIA L4", "sms": 58},
        "search": {"strategy": "evolution", "seed": 3, "budget": 4, "ended": "budget", "space": {"size": 82}},
        "metric": {"unit": "us", "direction": "min", "cases": ["mission"], "held_out": ["s256"]},
        "summary": {"trials": 4, "states": {"complete": 2, "crashed": 2}},
        "default": {"params": {"TILE": 64, "STAGES": 1}}, "curve": [1.0, 1.0, 0.8, 0.8], "trials": trials,
        "final": [elite], "complete": True, "wall_s": 61.0, "effort": {"gpu_timed_share": 0.66},
        "controls": [{"strategy": "random", "trials": 4, "curve": [1.0, None, 0.9, 0.9]}],
    }  # fmt: skip


def shown(folder: Path, document: dict[str, Any], *, cut_off: bool = False) -> Shown:
    """Of a step that was cut off the record names no document, since nobody looked."""
    path = "steps/search/out/tuning.json"
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text(json.dumps(document))
    step = StepRecord(
        id="search", status="cancelled" if cut_off else "passed", exit_code=0, attempts=1, duration_s=61.0,
        documents=[] if cut_off else [DocumentRecord(kind="tuning", path=path)],
    )  # fmt: skip
    ended: dict[str, Any] = (
        {"status": "cancelled", "exit_code": 103} if cut_off else {"status": "passed", "exit_code": 0}
    )
    record = sample_run.record(steps=[step], message=None, **ended)
    return Shown(record, folder, load(record, folder))


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return build([shown(tmp_path, tuning())])


def test_search_against_control_elites_and_failures(report: Report) -> None:
    (one,) = report.tunings
    assert one.label == "flashcore (fused)"
    assert one.controls.rows == (
        ("evolution", "4", "0.8000", "3 trials"), ("random (control)", "4", "0.9000", ""),
    )  # fmt: skip
    ((trial, params, searched, held_out, verdict, times),) = one.elites.rows
    assert (trial, params, plain(verdict)) == ("2", "TILE=128", "🟢 faster")
    assert (searched, held_out) == ("0.800 [0.790, 0.810]", "0.850 [0.840, 0.860]")
    assert times == "mission 4.20 us, s256 (held out) 2.90 us"
    assert one.reasons.rows == (("crashed", "2", "SIGSEGV"),)
    assert dict(one.facts)["GPU time for checks and timing"] == "66 %"


def test_a_search_is_drawn_over_its_parameters(tmp_path: Path) -> None:
    document = tuning()
    params = [{"TILE": 64 * (1 + n % 2), "ORDER": "row", "<script>": f"<b>{n}</b>"} for n in range(1, 12)]
    document["trials"] = [
        {"number": n, "params": one, "state": "complete", "value": 1.0 - n / 100} for n, one in enumerate(params, 1)
    ]
    (chart,) = [one for one in charts(build([shown(tmp_path, document)])) if one.name == "parameters"]
    assert chart.header == ("trial", "time", "TILE", "<script>"), "what never changed is no axis"
    assert chart.rows[0] == ("11", "0.8900", "128", "<b>11</b>")
    assert "11 of 11 timed trials" in chart.caption
    best = {point["trial"] for point in chart.spec["layer"][0]["data"]["values"] if point["best"]}
    assert best == set(range(4, 12))
    drawn = machine_charts.inline_svg(chart.spec)
    assert "&lt;script&gt;" in drawn
    assert "<script" not in drawn


def summary(shown: Shown) -> str:
    out = io.StringIO()
    print_run_summary(shown.record, shown.folder, Console(file=out, width=100, highlight=False))
    return " ".join(out.getvalue().split())


def test_the_end_of_the_search_tells_what_it_found_and_how_to_take_it_over(tmp_path: Path) -> None:
    text = summary(shown(tmp_path, tuning()))
    for wanted in (
        "4 of 4: 2 complete, 2 crashed", "timed on NVIDIA L4", "duration 1 min 01 s", "crashed 2 SIGSEGV",
        "TILE=128 0.800 [0.790, 0.810] 0.850 [0.840, 0.860] ✓ faster",
        "default TILE=64 STAGES=1", "below 1 is faster",
        f"add the result to your table: fcctl tune --adopt {sample_run.RUN_ID}",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_reasons_that_are_not_shown_are_counted(tmp_path: Path) -> None:
    document = tuning()
    for number in range(4, 30):
        document["trials"].append({"number": number, "params": {}, "state": "hung", "reason": f"after {number // 2} s"})
    text = summary(shown(tmp_path, document))
    assert "crashed 2 SIGSEGV" in text
    assert "others 4 see tune_log.csv" in text


def test_where_nothing_was_held_out_there_is_no_column_for_it(tmp_path: Path) -> None:
    text = summary(shown(tmp_path, {**tuning(), "final": [{"trial": 2, **ratio(0.8), "verdict": "faster"}]}))
    assert "held out" not in text.partition("Elites")[2].partition("faster")[0]
    assert "TILE=128 0.800 [0.790, 0.810] ✓ faster" in text


@pytest.mark.parametrize("change", [{"final": []}, {"final": [{"trial": 2, **ratio(0.99), "held_out": ratio(1.02)}]}])
def test_what_is_not_proven_is_not_offered(tmp_path: Path, change: dict[str, Any]) -> None:
    text = summary(shown(tmp_path, {**tuning(), **change}))
    assert "--adopt" not in text
    assert ("no configuration that the second measurement confirmed" in text) is not bool(change["final"])
    assert ("✗ slower" in text) is bool(change["final"])


def test_what_a_search_had_found_that_was_cut_off_is_told_as_that(tmp_path: Path) -> None:
    best = {"rank": 1, "trial": 2, "params": {"TILE": 128, "STAGES": 1}, "state": "complete", "value": 0.8}
    one = shown(tmp_path, {**tuning(), "final": [], "complete": False, "elites": [best]}, cut_off=True)
    said = "interrupted; the best so far, not measured again: trial 2, 0.800 of the default's time, TILE=128"
    assert said in summary(one)
    assert "second measurement" not in summary(one)
    assert said in outputs.markdown(build([one]))


@pytest.mark.parametrize("trials", [[], tuning()["trials"]])
def test_what_kept_a_search_from_going_on_is_told(tmp_path: Path, trials: list[Any]) -> None:
    why = "the default configuration does not work: crashed: SIGSEGV"
    change = {"final": [], "complete": False, "fault": why, "trials": trials, "summary": {}}
    one = shown(tmp_path, {**tuning(), **change})
    assert why in summary(one)
    assert f"stopped: {why}." in outputs.markdown(build([one]))
    assert "cut off" not in summary(one)


def test_what_a_cancelled_step_left_that_is_no_searchs_document_is_left_alone(tmp_path: Path) -> None:
    assert shown(tmp_path / "a", {"kind": "benchmark"}, cut_off=True).documents.items == ()
    none = shown(tmp_path / "b", {}, cut_off=True)
    (tmp_path / "b" / "steps/search/out/tuning.json").write_text('{"kind": "tun')
    assert load(none.record, none.folder).items == ()


def test_the_report_says_it_in_every_form(report: Report) -> None:
    text = outputs.markdown(report)
    assert "## Tuning" in text
    assert "takes 0.850 \\[0.840, 0.860\\] of the default's time on held-out cases: faster." in text
    html = outputs.render(report, charts(report))
    assert "Elites, measured again" in html
    assert 'id="chart-search"' in html
    (found,) = outputs.document(report)["tunings"]
    assert found["elites"][0]["held_out"] == {"value": 0.85, "low": 0.84, "high": 0.86}
    assert found["curves"][1]["curve"] == [1.0, None, 0.9, 0.9]
    assert found["reasons"] == [{"state": "crashed", "reason": "SIGSEGV", "trials": 2}]


def test_the_picture_has_the_control_beside_the_search(report: Report) -> None:
    (chart,) = [c for c in charts(report) if c.name == "search"]
    assert chart.header == ("", "after 1", "after 2", "after 4")
    assert chart.rows == (("evolution", "1.0000", "1.0000", "0.8000"), ("random (control)", "1.0000", "", "0.9000"))


def test_what_a_host_writes_is_shown_as_text(tmp_path: Path) -> None:
    document = {**tuning(HOSTILE), "title": HOSTILE, "tune": HOSTILE}
    document["final"][0]["state"], document["final"][0]["reason"] = "wrong", HOSTILE
    one = shown(tmp_path, document)
    made = build([one])
    html = outputs.render(made, charts(made))
    assert "<script" not in html
    for text in (html, outputs.markdown(made), summary(one)):
        assert "\x1b" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize("document", [{"kind": "tuning"}, {"kind": "tuning", "final": [{}], "trials": [{}]}])
def test_a_document_with_nothing_in_it_is_no_obstacle(tmp_path: Path, document: dict[str, Any]) -> None:
    made = build([shown(tmp_path, document)])
    assert "no configuration that the second measurement confirmed" in outputs.markdown(made)
    assert outputs.render(made, charts(made))


def test_a_runs_own_files(tmp_path: Path) -> None:
    one = shown(tmp_path, tuning())
    (tmp_path / "artifacts/tune").mkdir(parents=True)
    (tmp_path / "artifacts/tune/topk.json").write_text("{}")
    (tmp_path / "artifacts/link").symlink_to("/etc/passwd")
    made = outputs.files(one.record, tmp_path, {"BUDGET": "32"})
    assert set(made) == {"artifacts/manifest.yaml", "artifacts/reports/summary.md"}
    summary = made["artifacts/reports/summary.md"]
    assert b"## Tuning" in summary
    manifest = yaml.safe_load(made["artifacts/manifest.yaml"])
    assert (manifest["run_id"], manifest["settings"]) == (sample_run.RUN_ID, {"BUDGET": "32"})
    assert manifest["source"]["git_commit"].startswith("0123456789")
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == {
        "tune/topk.json": hashlib.sha256(b"{}").hexdigest(),
        "reports/summary.md": hashlib.sha256(summary).hexdigest(),
    }


def test_what_cannot_be_reported_is_one_kind_of_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "build", lambda _: {}["x"])
    with pytest.raises(FcctlError, match="report could not be written"):
        outputs.files(sample_run.record(), tmp_path, {})
