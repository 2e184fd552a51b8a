"""A child's work: a request as JSON in a line of standard input, the part of a page in a line of standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Rows of a comparison's picture: on a run's page, and on its own.
BARS, FULL = 8, 12


def report(run: str, version: str) -> str:
    """The HTML report of the run in this folder."""
    from orchestrator.views.report import outputs
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    made = build([_shown(run)])
    return outputs.render(made, charts(made), made_by=f"fcctl {version}", back=f"../{made.runs[0].run_id}")


def pictures(run: str) -> str:
    """The pictures of the report of the run in this folder."""
    from orchestrator.views.blocks import Picture
    from orchestrator.views.html import fragment
    from orchestrator.views.report.build import build
    from orchestrator.views.report.charts import charts

    return fragment((Picture(chart) for chart in charts(build([_shown(run)]))), level=3)


def trend(results: str, root: str, base: str, benchmark: str, variant: str, ends: list[str]) -> str:
    """The trends of a benchmark, of the runs between two if they are given. Paths begin with ``base``."""
    from orchestrator.results.compare.history import history, source_changes, subjects
    from orchestrator.results.look import tags_of
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.history import page_blocks

    between, store = (min(ends), max(ends)) if ends else None, _store(results)
    trends = history(
        store, benchmark, variant=variant or None, between=between, commits=source_changes, root=Path(root)
    )
    known = subjects(Path(root), (point.git_commit for trend in trends for point in trend.series.points))
    return fragment(page_blocks(trends, known, tags_of(store)), base)


def compare(results: str, root: str, base: str, names: list[str], bars_only: bool) -> str:
    """Sides of the store in ``results`` against the first of them. Paths begin with ``base``."""
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.results.compare.history import source_changes
    from orchestrator.views.blocks import Block, Folded, closed
    from orchestrator.views.html import fragment
    from orchestrator.views.tables.compare import all_blocks, answer, forest

    reports = compare_all(_store(results), names, history=source_changes, root=Path(root))
    picture = forest(reports, BARS if bars_only else FULL)
    bars: list[Block] = [picture] if picture.bars else []
    if bars_only:
        return fragment([*answer(reports), *bars], base)
    legend, *rest = all_blocks(reports)
    figures = [block for block in rest if not isinstance(block, Folded)]
    folds: list[Block] = [Folded("Figures of all benchmarks", tuple(figures))] if figures else []
    folds += [block for block in rest if isinstance(block, Folded)]
    middle: list[Block] = [legend, *bars] if len(reports) > 1 else [*bars, legend]
    return fragment([*answer(reports), *middle, *closed(folds)], base)


def warm() -> str:
    """Nothing, with all that the other tasks import."""
    from orchestrator.results.compare import compare, history  # noqa: F401
    from orchestrator.views.report import charts, drawing  # noqa: F401
    from orchestrator.views.tables import compare as _  # noqa: F401

    return drawing.inline_svg({"mark": "point", "data": {"values": []}})


TASKS: dict[str, Callable[..., str]] = {
    "compare": compare, "pictures": pictures, "report": report, "trend": trend, "warm": warm,
}  # fmt: skip


def _store(results: str) -> FileStore:
    from orchestrator.base.clock import SystemClock
    from orchestrator.results.store.store import FileStore

    return FileStore(Path(results), SystemClock(), note=lambda _: None)


def _shown(folder: str) -> Shown:
    path = Path(folder)
    record = RunRecord.model_validate_json((path / "run.json").read_bytes())
    return Shown(record, path, load(record, path))


def main() -> None:
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"html": TASKS[request.pop("task")](**request)}
        except Exception as error:  # noqa: BLE001 - told to the parent, which tells the browser
            told = {key: getattr(error, key, None) for key in ("cause", "code", "hint")}
            answer = {"error": {"message": str(error) or type(error).__name__, **told}}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
