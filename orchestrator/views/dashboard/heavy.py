"""A child's work: one request as JSON on standard input, one document on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator.base.untrusted import finite
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord


def report(runs: list[str], version: str) -> dict[str, Any]:
    """The HTML report of the runs in these folders."""
    from orchestrator.views.report import page
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    made = build(_shown(folder) for folder in runs)
    return {"html": page.render(made, charts(made), made_by=f"fcctl {version}")}


def trend(measurements: list[dict[str, Any]]) -> dict[str, Any]:
    """Series of measurements with their change points and records, drawn."""
    from orchestrator.results.compare.changes import changes, ladder, series
    from orchestrator.results.measurement import Measurement
    from orchestrator.views.dashboard.trend_chart import trend_chart
    from orchestrator.views.report.drawing import inline_svg

    found = []
    for one in series(Measurement(**m) for m in measurements):
        moved, rungs = changes(one), ladder(one)
        found.append({
            "title": one.title, "svg": inline_svg(trend_chart(one, moved, rungs)) if len(one.points) > 1 else "",
            "points": len(one.points),
            "unit": one.points[-1].unit, "last": one.points[-1].p50, "best": rungs[-1].point.p50 if rungs else None,
            "best_run": rungs[-1].point.run_id if rungs else None,
            "changes": [
                {"ratio": c.ratio, "before": c.before, "after": c.after, "p": c.p, "commits": c.commits, "why": c.why,
                 "run_id": c.first_after.run_id, "episode_runs": c.end - c.index if c.end else None}
                for c in moved
            ],
        })  # fmt: skip
    return {"series": found}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"report": report, "trend": trend}


def _shown(folder: str) -> Shown:
    path = Path(folder)
    record = RunRecord.model_validate_json((path / "run.json").read_bytes())
    return Shown(record, path, load(record, path))


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer = TASKS[request.pop("task")](**request)
    except Exception as error:  # noqa: BLE001 - told to the parent, which tells the browser
        said = {"error": {"message": str(error) or type(error).__name__, "cause": getattr(error, "cause", None),
                          "hint": getattr(error, "hint", None)}}  # fmt: skip
        sys.stderr.write(json.dumps(said) + "\n")
        raise SystemExit(1) from None
    sys.stdout.write(json.dumps(finite(answer), allow_nan=False))


if __name__ == "__main__":
    main()
