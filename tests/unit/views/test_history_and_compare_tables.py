from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.base import sanitize
from orchestrator.results.compare.compare import compare_all
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.history import history
from orchestrator.results.compare.verdicts import BY_DEFAULT
from orchestrator.results.store.store import FileStore
from orchestrator.views.blocks import Picture
from orchestrator.views.figures import microseconds, percent, sparkline
from orchestrator.views.html import fragment
from orchestrator.views.tables.compare import answer, markdown, print_comparison
from orchestrator.views.tables.history import page_blocks, print_history, trend_chart
from tests.support.measured_runs import document, entry, measured, samples, simple


def console(width: int) -> Console:
    return Console(file=io.StringIO(), width=width, color_system=None, highlight=False, emoji=False)


def printed(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@pytest.mark.parametrize(("value", "wanted"), [(0.01324, "0.0132"), (12345.0, "12345"), (1e308, "1e+308")])
def test_a_time_has_few_digits_whatever_a_host_says(value: float, wanted: str) -> None:
    assert microseconds(value) == wanted


def test_sparklines() -> None:
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 20) == "▁▂▃▄▅▆▇█"
    assert sparkline([1, 8], 20, ascii_only=True) == "_#"
    assert sparkline([], 20) == ""
    assert sparkline([1.0, 1.7e308, 1.7e308], 20) == "▁██", "and no error"
    assert sparkline([5.0, 5.0], 20) == "▅▅"
    assert sparkline([4.51, 4.50, 4.56, 4.47], 20) == "▄▄▅▄", "2 % looks flat"
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_changes_in_per_cent() -> None:
    assert [percent(r) for r in (1.0512, 0.95, 0.99999, 2.0)] == ["+5.1 %", "-5.0 %", "+0.0 %", "+100.0 %"]


@pytest.fixture
def twenty(store: FileStore) -> FileStore:
    """Twenty runs, the later ten slower."""
    long = "a_benchmark_with_a_rather_long_name/batch=128/sequence=2048"
    build = {"kind": "build", "schema_version": 1, "label": "x" * 70}
    for i in range(20):
        slower = 1.0 if i < 10 else 1.1
        content = document(*(entry(f"{long}/{k}", samples(10.0 * slower, seed=i)) for k in range(3)))
        kernels = [{"name": "k" * 200 + f"<{k}>", "arch": "sm_89", "registers": 100 + i} for k in range(5)]
        measured(store, [content, simple(10.0 * slower, seed=i), {**build, "kernels": kernels}], at=60 * i)
    return store


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(twenty: FileStore, width: int) -> None:
    out = console(width)
    rows = twenty.rows()
    print_comparison(compare_all(twenty, (rows[-1].run_id, rows[0].run_id)), out)
    print_history(history(twenty, "mission"), out)
    text = printed(out)
    assert max(map(len, text.splitlines())) <= width
    assert "slower" in text
    assert "+10.0 %" in text
    assert "1.10x slower since" in text


def test_cells_of_markdown_mean_nothing() -> None:
    assert sanitize.markdown("a|b") == "a\\|b"
    assert sanitize.markdown("@me <b>") == "&#64;me &lt;b\\>"
    assert sanitize.markdown("line\nline") == "line line"


def test_a_side_that_did_not_pass_says_how_it_ended(twenty: FileStore) -> None:
    old = twenty.rows()[0].run_id
    new = measured(twenty, [simple(10.0, seed=99)], at=5000, status="incomplete", exit_code=104)
    found, out = compare_all(twenty, (old, new))[0], console(120)
    print_comparison([found], out)
    for text in (printed(out), markdown([found])):
        assert text.count("incomplete") == 1
        assert ", incomplete" in text, "a page shows two spaces as one"
    assert (found.old.endings, found.new.endings) == ("", "incomplete")


def test_compared_times_in_several_units_say_which_is_whose(store: FileStore) -> None:
    entries = [entry(name, samples(10.0), unit=unit) for name, unit in (("load", "ms"), ("copy", "us"))]
    runs = [measured(store, [document(*entries[:count])], at=60 * i) for i, count in enumerate((2, 2, 1))]
    for names, wanted in ((runs[:2], ("load, ms", "copy, µs")), (runs[1:], ("load  ",))):
        print_comparison(compare_all(store, names), out := console(120))
        assert all(name in printed(out) for name in wanted)


def test_a_comment_is_marked_as_good_only_if_something_was_decided(store: FileStore) -> None:
    """Not where the new side measured nothing, or on another driver."""
    other = {"device": "NVIDIA L4", "driver": "570.1"}
    contents = [simple(10.0)] * 4, [simple(10.0, seed=9)] * 4, [document()], [simple(10.0, environment=other)]
    old, *others = (measured(store, of, at=60 * i) for i, of in enumerate(contents))
    signs = [markdown(compare_all(store, (old, new), fail_on=BY_DEFAULT)).split()[6] for new in others]
    assert signs == ["✅", "ℹ️", "ℹ️"]


def test_facts_that_one_side_alone_has_are_a_line_if_they_are_many(twenty: FileStore) -> None:
    """As where one run has no environment document."""
    runs = [row.run_id for row in twenty.rows()[:2]]
    driver, *known = (Difference(f"gpu.fact_{i}", i, i + 1 if i == 0 else None) for i in range(31))
    for facts, wanted in (([driver, *known], "30 in total"), ([driver, *known[:2]], "gpu.fact_2")):
        (report,), out = compare_all(twenty, runs), console(120)
        print_comparison([replace(report, environment=tuple(facts))], out)
        assert wanted in (text := printed(out))
        assert ("only on the old side: gpu.fact_1, " in text) is (len(facts) > 20)
        assert "gpu.fact_0" in text, "what both sides have is a row"
        assert "gpu.fact_30 " not in text


def test_an_episode_is_shown_as_one(store: FileStore) -> None:
    for i in range(30):
        measured(store, [simple(13.0 if 12 <= i < 15 else 10.0, seed=i)], at=60 * i)
    (trend,) = history(store, "mission", variant="fused")
    out = console(120)
    print_history([trend], out)
    assert "1.30x slower for 3 runs from 2026-11-21" in printed(out)
    (change,) = trend.as_json()["changes"]
    assert (change["episode_runs"], change["ratio"]) == (3, pytest.approx(1.3, rel=0.01))
    points = trend_chart(trend.series, trend.changes, (), {}, {})["layer"][0]["data"]["values"]
    assert [round(level["v"]) for level in points] == [10, 13, 10]


def test_what_a_comparison_rests_on_is_said(store: FileStore) -> None:
    runs = [measured(store, [document(entry("a", samples(10.0 + i % 2, seed=i)))], at=60 * i) for i in range(12)]

    def told(old: list[str], new: list[str]) -> str:
        out = console(200)
        print_comparison(compare_all(store, (",".join(old), ",".join(new))), out)
        return printed(out)

    assert "the launches of both sides were interleaved" in told(runs[0:8:2], runs[1:8:2])
    assert "1 slower" in told(runs[0:8:2], runs[1:8:2])
    assert "not interleaved: the verdict allows for a drift of" in told(runs[0:8:2], runs[8:12])
    assert "is the measured difference between runs of the same source on this machine" in told(runs[:1], runs[1:2])


def test_the_answer_says_why_two_times_do_not_compare(store: FileStore) -> None:
    old, new = (measured(store, [simple(9.0, method_version=v)], at=60 * v) for v in (3, 4))
    (head, counts) = answer(compare_all(store, (old, new)))
    assert head.text.endswith(", incomparable: different measurement method: v3 before, now v4")
    assert counts.text == "All benchmarks: 1 incomparable"


def test_a_trend_is_by_commit_with_subjects_and_links_and_jobs_and_settings_apart(store: FileStore) -> None:
    for i, commit in enumerate("aabbbc"):
        measured(store, [simple(10.0 - i, seed=i)], at=60 * i, commit=commit)
    measured(store, [simple(3.0)], at=600, job="other")
    measured(store, [simple(3.0)], at=660, settings={"TILE": "64", "STAGES": "2"})
    trends = history(store, "mission", variant="fused")
    assert sorted((len(t.series.points), t.series.points[0].job, t.series.points[0].settings) for t in trends) == [
        (1, "bench", "STAGES=2 TILE=64"),
        (1, "other", ""),
        (6, "bench", ""),
    ]
    known = {"b" * 40: "Swizzle <the> tile"}
    (trend,) = (one for one in trends if len(one.series.points) == 6)
    tags = {trend.series.points[0].run_id: ["baseline", "v1"]}
    picture, *_ = [block for block in page_blocks(trends, known, tags) if isinstance(block, Picture)]
    assert [point["tags"] for point in picture.chart.spec["layer"][2]["data"]["values"]][:2] == ["baseline, v1", ""]
    axis = picture.chart.spec["layer"][1]["encoding"]["x"]["axis"]
    assert axis["values"] == [1, 3, 6]
    assert axis["labelExpr"] == '({"1": "aaaaaaa", "3": "bbbbbbb", "6": "ccccccc"})[datum.value]'
    html = fragment([picture], "/root")
    assert 'href="/root/runs/' in html
    assert "(Swizzle &lt;the&gt; tile)" in html, "on hover, and in the numbers"
    assert "aaaaaaa" in html
    assert "</a> <small>baseline, v1</small>" in html
