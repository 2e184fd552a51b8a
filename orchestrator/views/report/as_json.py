"""What a report says, for programs: ``fcctl results report --json``."""

from __future__ import annotations

from typing import Any

from orchestrator.results.timings import Ratio
from orchestrator.views.report import words
from orchestrator.views.report.model import Report, Row, RunPart, Table
from orchestrator.views.report.tuning import Tuned


def document(report: Report) -> dict[str, Any]:
    """Plain values: top line, other tables, targets, profiles with their findings, runs with their cost."""
    return {
        "verdict": list(words.verdict(report)),
        "runs": [_run(run) for run in report.runs],
        "tables": [_table(table) for table in report.tables],
        "targets": [
            {"run_id": t.run, "step": t.step, "expr": t.expr, "value": t.value, "verdict": t.verdict}
            for t in report.targets
        ],
        "profiles": [
            {"run_id": p.run, "label": p.label, "kernel": p.kernel, "shape": p.shape, "metrics": p.metrics,
             "stalls": p.stalls}
            for p in report.profiles if p.metrics
        ],
        "levers": [
            {"label": one.label, "findings": [
                {"rule": f.rule, "shape": shape, "bottleneck": f.bottleneck, "lever": f.lever,
                 "impact": round(f.impact, 1), "facts": [vars(fact) for fact in f.facts]}
                for shape, f in one.findings
            ]}
            for one in words.levers(report)
        ],
        "tunings": [_tuning(one) for one in report.tunings],
    }  # fmt: skip


def _tuning(one: Tuned) -> dict[str, Any]:
    result = one.result
    return {
        "run_id": one.run, "label": one.label, "machine": one.machine, "complete": result.complete,
        "trials": result.trials, "states": dict(result.states), "facts": dict(one.facts),
        "curves": [{"strategy": c.strategy, "best": c.best, "curve": list(c.curve)} for c in one.curves],
        "elites": [
            {"trial": e.trial, "params": dict(e.params), "verdict": e.verdict, "searched": _ratio(e.searched),
             "held_out": _ratio(e.held_out)}
            for e in result.elites
        ],
        "reasons": [{"state": s, "reason": r, "trials": n} for s, r, n in result.reasons],
    }  # fmt: skip


def _ratio(ratio: Ratio | None) -> dict[str, float | None] | None:
    return None if ratio is None else {"value": ratio.value, "low": ratio.low, "high": ratio.high}


def _table(table: Table) -> dict[str, Any]:
    return {
        "machine": table.machine,
        "case": table.case,
        "mode": table.mode,
        "unit": table.unit,
        "rows": [_row(row) for row in table.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "run_id": row.run,
        "label": row.label,
        "reference": row.is_reference,
        "stats": row.stats,
        "speedup": {against: _speedup(ratio) for against, ratio in row.against.items()},
        "max_err": row.correctness.max_err if row.correctness else None,
        "status": row.status,
        "roofline_pct": row.roofline_pct,
        "roofline_bound": row.roofline_bound,
        "grade": row.grade.letter if row.grade else None,
    }


def _speedup(ratio: Ratio) -> dict[str, float | bool | None]:
    """Their time over ours, with its 95 % interval where the two were timed in turns."""
    return {
        "value": 1 / ratio.value,
        "low": 1 / ratio.high if ratio.high else None,
        "high": 1 / ratio.low if ratio.low else None,
        "paired": ratio.paired,
    }


def _run(run: RunPart) -> dict[str, Any]:
    return {
        "run_id": run.run_id, "job": run.job, "target": run.target, "status": run.status, "gpu": run.gpu,
        "machine": dict(run.machine), "seconds": run.seconds, "usd": run.usd, "emulated": run.emulated,
        "cost": [line.model_dump() for line in run.cost], "problems": list(run.problems),
    }  # fmt: skip
