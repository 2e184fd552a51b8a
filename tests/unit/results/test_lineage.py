"""Which runs a run comes from, and which come from it."""

from __future__ import annotations

from pathlib import Path

from orchestrator.app import SystemClock
from orchestrator.results.look import headlines, lineage
from orchestrator.results.store.store import FileStore
from orchestrator.views.html import fragment
from orchestrator.views.tables.runs import lineage_grid
from tests.support.measured_runs import measured, searched, simple

GONE = "20261120t070000z-tune-fused-l4-0ddba0"


def test_a_search_its_resumption_and_the_run_that_uses_its_best(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "results", SystemClock(), note=lambda _: None)
    cut_off = measured(store, [searched()], at=0, job="tune-fused", status="preempted", parents=[GONE])
    search = measured(store, [searched()], at=60, job="tune-fused", parents=[cut_off])
    user = measured(store, [simple(9.0, parameters_from=[search, "../etc", 7])], at=120)
    alone = measured(store, [simple(9.0)], at=180)

    assert lineage(store, cut_off) == ([GONE], [search, user])
    assert lineage(store, user) == ([GONE, cut_off, search], [])
    assert lineage(store, alone) == ([], [])
    store.delete([user])
    assert lineage(store, search) == ([GONE, cut_off], []), "a deleted run has no parents any more"


def test_a_runs_page_lists_them_with_links(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "results", SystemClock(), note=lambda _: None)
    search = measured(store, [searched()], at=0, job="tune-fused", parents=[GONE])
    user = measured(store, [simple(9.0, parameters_from=[search])], at=60)
    rows = {row.run_id: row for row in store.rows()}
    (grid,) = lineage_grid(rows[search], *lineage(store, search), rows, headlines(store, rows.values()))
    assert [line[1] for line in grid.rows] == ["", "this run", "uses its parameters"]
    text = fragment([grid], "/root")
    assert f'href="/root/runs/{user}"' in text
    assert f"deleted <small>{GONE}</small>" in text
    (grid,) = lineage_grid(rows[user], *lineage(store, user), rows, {})
    assert [line[1] for line in grid.rows] == ["", "source of its parameters", "this run"]
    assert list(lineage_grid(rows[user], [], [], rows, {})) == []
