"""A child's work: one request as JSON on standard input, one document on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import finite
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Rows of a comparison's picture: on a run's page, and on its own.
BARS, FULL = 8, 20


def report(run: str, version: str) -> dict[str, Any]:
    """The HTML report of the run in this folder, and its pictures as a part of a page."""
    from orchestrator.views.blocks import Picture
    from orchestrator.views.html import fragment
    from orchestrator.views.report import page
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    made = build([_shown(run)])
    drawn = charts(made)
    return {
        "html": page.render(made, drawn, made_by=f"fcctl {version}", back=f"../{made.runs[0].run_id}"),
        "charts": fragment((Picture(chart) for chart in drawn), level=3),
    }


def trend(results: str, root: str, base: str, benchmark: str, variant: str) -> dict[str, Any]:
    """The trends of a benchmark, as a part of a page whose paths begin with ``base``."""
    from orchestrator.results.compare.history import history, source_changes, subjects
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.history import page_blocks

    trends = history(_store(results), benchmark, variant=variant or None, commits=source_changes, root=Path(root))
    known = subjects(Path(root), (point.git_commit for trend in trends for point in trend.series.points))
    return {"html": fragment(page_blocks(trends, known), base)}


def compare(results: str, root: str, base: str, names: list[str], bars_only: bool) -> dict[str, Any]:
    """Sides of the store in ``results``, as a part of a page whose paths begin with ``base``."""
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.results.compare.history import source_changes
    from orchestrator.views.blocks import Block, Text
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.compare import all_blocks, forest, headlines

    reports = compare_all(_store(results), names, history=source_changes, root=Path(root))
    picture = forest(reports, BARS if bars_only else FULL)
    rest: list[Block] = [Text(headlines(reports))] if bars_only else list(all_blocks(reports))
    shown = [picture, *rest] if picture.bars else rest
    if len(reports) > 1 and not bars_only:  # the sides are the legend
        shown = [rest[0], *([picture] if picture.bars else []), *rest[1:]]
    return {"headline": headlines(reports), "html": fragment(shown, base)}


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"compare": compare, "report": report, "trend": trend}


def _store(results: str) -> FileStore:
    from orchestrator.base.clock import SystemClock
    from orchestrator.results.store.store import FileStore

    return FileStore(Path(results), SystemClock(), note=lambda _: None)


def _shown(folder: str) -> Shown:
    path = Path(folder)
    record = RunRecord.model_validate_json((path / "run.json").read_bytes())
    return Shown(record, path, load(record, path))


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    try:
        answer = TASKS[request.pop("task")](**request)
    except Exception as error:  # noqa: BLE001 - told to the parent, which tells the browser
        failure = {"error": {"message": str(error) or type(error).__name__, "cause": getattr(error, "cause", None),
                          "code": getattr(error, "code", None),
                          "hint": getattr(error, "hint", None)}}  # fmt: skip
        sys.stderr.write(json.dumps(failure) + "\n")
        raise SystemExit(1) from None
    sys.stdout.write(json.dumps(finite(answer), allow_nan=False))


if __name__ == "__main__":
    main()
