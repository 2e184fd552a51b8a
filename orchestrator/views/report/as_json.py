"""What a report says, for programs: ``fcctl results report --json``."""

from __future__ import annotations

from typing import Any

from orchestrator.base.fields import pick
from orchestrator.results.timings import Ratio
from orchestrator.views.report import words
from orchestrator.views.report.blocks import Finding
from orchestrator.views.report.model import Report, Row
from orchestrator.views.report.tuning import Tuned


def document(report: Report) -> dict[str, Any]:
    """Plain values: top line, other tables, targets, profiles with their findings, runs with their cost."""
    return {
        "verdict": list(words.verdict(report)),
        "runs": [
            {**pick(run, "run_id job target status gpu seconds usd emulated"), "machine": dict(run.machine),
             "cost": [line.model_dump() for line in run.cost], "problems": list(run.problems)}
            for run in report.runs
        ],
        "tables": [
            {**pick(table, "machine case mode unit"), "rows": [_row(row) for row in table.rows]}
            for table in report.tables
        ],
        "targets": [{"run_id": t.run, **pick(t, "step expr value verdict")} for t in report.targets],
        "profiles": [
            {"run_id": p.run, **pick(p, "label kernel shape metrics stalls targets")}
            for p in report.profiles
            if p.metrics
        ],
        "levers": [
            {"label": one.label, "findings": [_finding(shape, finding) for shape, finding in one.findings]}
            for one in words.levers(report)
        ],
        "tunings": [_tuning(one) for one in report.tunings],
    }  # fmt: skip


def _finding(shape: str, finding: Finding) -> dict[str, Any]:
    facts = [{"name": name, "value": value, "threshold": threshold} for name, value, threshold in finding.facts]
    return {
        **pick(finding, "rule bottleneck lever"),
        "shape": shape,
        "impact": round(finding.impact, 1),
        "facts": facts,
    }


def _tuning(one: Tuned) -> dict[str, Any]:
    result = one.result
    return {
        "run_id": one.run, **pick(one, "label machine"), **pick(result, "complete trials"),
        "states": dict(result.states), "facts": dict(one.facts),
        "curves": [{"strategy": c.strategy, "best": c.best, "curve": list(c.curve)} for c in one.curves],
        "elites": [
            {**pick(e, "trial verdict"), "params": dict(e.params), "searched": _ratio(e.searched),
             "held_out": _ratio(e.held_out)}
            for e in result.elites
        ],
        "reasons": [{"state": s, "reason": r, "trials": n} for s, r, n in result.reasons],
    }  # fmt: skip


def _ratio(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else pick(ratio, "value low high")


def _row(row: Row) -> dict[str, Any]:
    return {
        "run_id": row.run,
        **pick(row, "label stats status roofline_pct roofline_bound"),
        "reference": row.is_reference,
        "speedup": {against: _speedup(ratio) for against, ratio in row.against.items()},
        "max_err": row.correctness.max_err if row.correctness else None,
        "grade": row.grade.letter if row.grade else None,
    }


def _speedup(ratio: Ratio) -> dict[str, float | bool | None]:
    """Their time over ours, with its 95 % interval where the two were timed in turns."""
    low, high = 1 / ratio.high if ratio.high else None, 1 / ratio.low if ratio.low else None
    return {"value": 1 / ratio.value, "low": low, "high": high, "paired": ratio.paired}
