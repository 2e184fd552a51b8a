"""A commit or branch where a run is asked for; up to six sides; what is said of two runs of one commit; lineage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import RunNotFound
from orchestrator.results.compare.compare import compare_all
from orchestrator.results.look import chosen, headlines, lineage, named
from orchestrator.results.records import SourceRecord
from orchestrator.results.store.rows import Search
from orchestrator.results.store.store import FileStore
from orchestrator.views.blocks import Grid, plain
from orchestrator.views.html import fragment
from orchestrator.views.tables.compare import all_blocks, forest, headline
from orchestrator.views.tables.compare import headlines as in_one_line
from orchestrator.views.tables.runs import lineage_grid
from tests.support.measured_runs import document, entry, measured, samples, searched, simple
from tests.support.repository import git


def of(commit: str, tree: str = "e") -> dict[str, Any]:
    return {"source": SourceRecord(tree_sha256=tree * 64, git_commit=commit)}


@pytest.fixture
def commits(tmp_path: Path) -> dict[str, str]:
    """Two branches of a repository, and a commit that no run is of."""
    git(tmp_path, "init", "-q", "-b", "main")
    made = {}
    for branch in ("main", "tuned", "idle"):
        if branch != "main":
            git(tmp_path, "switch", "-q", "-c", branch)
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", f"Work on {branch}")
        made[branch] = git(tmp_path, "rev-parse", "HEAD")
    return made


def test_a_branch_stands_for_the_runs_of_its_commit(tmp_path: Path, store: FileStore, commits: dict[str, str]) -> None:
    old = [measured(store, [simple(10.0, seed=i)], at=60 * i, **of(commits["main"])) for i in range(2)]
    new = measured(store, [simple(9.0)], at=300, **of(commits["tuned"]))
    measured(store, [], at=400, **of(commits["tuned"]))
    assert sorted(named(store, "main", tmp_path)) == sorted(old), "both are launches of one program"
    assert named(store, "tuned", tmp_path) == [new], "not the one that measured nothing"
    assert named(store, f"{commits['main'][:9]},tuned", tmp_path)[-1] == new
    assert compare_all(store, ("main", "tuned"), root=tmp_path)[0].new.first.run_id == new
    assert [one.record.run_id for one in chosen(store, ["tuned"], tmp_path)] == [new], "a report takes the same names"
    with pytest.raises(RunNotFound, match="no run is of 'idle'"):
        named(store, "idle", tmp_path)
    with pytest.raises(RunNotFound):
        named(store, "main")
    with pytest.raises(RunNotFound):
        named(store, "--output=x", tmp_path)


def test_two_runs_of_one_source_are_not_called_faster_without_a_word(store: FileStore) -> None:
    for i in range(4):
        measured(store, [simple(10.0, seed=i)], at=60 * i, **of("a" * 40, "1"))
    other = measured(store, [simple(5.0)], at=700, **of("a" * 40, "2"))
    first = store.rows()[-1].run_id
    assert "1 faster; both sides are commit aaaaaaaaaa" in headline(compare_all(store, (first, other))[0])
    last = measured(store, [simple(5.0)], at=800, **of("b" * 40, "3"))
    assert headline(compare_all(store, (first, last))[0]) == "1 faster"
    same = measured(store, [simple(1.0)], at=900, **of("a" * 40, "1"))
    assert headline(compare_all(store, (first, same))[0]).startswith("1 faster; both sides have the same source")


def test_three_sides_are_compared_with_the_first_in_one_picture(store: FileStore) -> None:
    runs = []
    for i, (us, scale) in enumerate(((10.0, 1.0), (8.0, 1.0), (11.0, 3.0))):
        content = document(entry("mission", samples(us)), entry("small", samples(us * scale)))
        runs.append(measured(store, [content], at=60 * i, commit="abc"[i]))
    reports = compare_all(store, runs)
    assert [(r.old.first.run_id, r.new.first.run_id) for r in reports] == [(runs[0], runs[1]), (runs[0], runs[2])]
    picture = forest(reports, 20)
    assert [" ".join(bar.label.split()[:2]) for bar in picture.bars] == ["B mission", "C mission", "C small", "B small"]
    assert forest(reports, 3).caption.count("in the tables: 1 smaller change") == 1
    first, *rest = all_blocks(reports)
    assert isinstance(first, Grid)
    assert [plain(row[0]) for row in first.rows] == ["A", "B", "C"]
    assert first.rows[1][3].startswith("-20") if isinstance(first.rows[1][3], str) else False
    assert len(rest) == 2
    assert in_one_line(reports).startswith("B: 2 faster; C: ")


def test_a_list_names_the_ratio_that_was_measured_in_pairs(store: FileStore) -> None:
    """The time beside it agrees with it, though another step measured PyTorch a little faster."""
    content = document(entry("mission", samples(10.0)), entry("mission/sdpa", samples(20.6), variant="sdpa"))
    content["comparisons"] = [{"benchmark": "mission", "against": "mission/sdpa", "ratio": 0.4902}]
    slow = [entry("mission", samples(15.0), variant="slow"), entry("mission/sdpa", samples(20.1), variant="sdpa")]
    paired = measured(store, [content, document(*slow)], at=0)
    plain_run = measured(store, [{**content, "comparisons": [{"benchmark": "mission", "ratio": "x"}]}], at=60)
    found = headlines(store, store.rows())
    assert (found[paired].ratio, found[paired].reference) == (0.4902, pytest.approx(20.6, rel=0.01))
    assert found[plain_run].ratio == pytest.approx(1 / 2.06, rel=0.01), "of the medians, where nothing was paired"


def test_runs_are_searched_by_words_and_commits_and_put_in_order(store: FileStore) -> None:
    one = measured(store, [simple(10.0)], at=0, **of("a" * 40))
    two = measured(store, [simple(10.0)], at=60, **of("b" * 40), status="failed")
    find = lambda *words, **more: [row.run_id for row in store.search(Search(words, **more))]  # noqa: E731
    assert find() == [two, one]
    assert find("FAILED") == [two]
    assert find("aaaa") == [one]
    assert find("nothing", commits=("b" * 40,)) == [two], "of a commit whose subject has the word"
    assert find("failed", "aaaa") == []
    assert find("100%_'") == []
    assert find(order="oldest") == [one, two]
    assert [row.run_id for row in store.search(Search(("aaaa",)), status="failed")] == []


GONE = "20261120t070000z-tune-fused-l4-0ddba0"


def test_a_search_its_resumption_and_the_run_that_uses_its_best(store: FileStore) -> None:
    cut_off = measured(store, [searched()], at=0, job="tune-fused", status="preempted", parents=[GONE])
    search = measured(store, [searched()], at=60, job="tune-fused", parents=[cut_off])
    user = measured(store, [simple(9.0, parameters_from=[search, "../etc", 7])], at=120)
    alone = measured(store, [simple(9.0)], at=180)

    assert lineage(store, cut_off) == ([GONE], [search, user])
    assert lineage(store, user) == ([GONE, cut_off, search], [])
    assert lineage(store, alone) == ([], [])
    store.delete([user])
    assert lineage(store, search) == ([GONE, cut_off], []), "a deleted run has no parents any more"


def test_a_runs_page_lists_them_with_links(store: FileStore) -> None:
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
