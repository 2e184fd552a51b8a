"""The figure that stands for a run, and what the overview makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.results.look import Headline, headlines
from orchestrator.results.records import GateRecord
from orchestrator.results.store.rows import row_of
from orchestrator.results.store.store import FileStore
from orchestrator.runs.cost.outlook import MachineOn
from orchestrator.views.blocks import Bar, Bars, Cell, apart, plain
from orchestrator.views.dashboard.lists import _gates
from orchestrator.views.dashboard.pages import _state
from orchestrator.views.html import fragment
from orchestrator.views.live_runs import LiveRun
from orchestrator.views.report import session
from orchestrator.views.tables.runs import answer, change, failures, jobs_grid, runs_grid
from tests.support import sample_run
from tests.support.measured_runs import document, entry, measured, samples, simple


@pytest.fixture
def three(store: FileStore) -> FileStore:
    """Three runs of a job, the second the fastest, the last one failed."""
    for i, us in enumerate((12.0, 9.0, 10.0)):
        other = document(entry("a_faster_one", samples(1.0, seed=i)))
        measured(store, [simple(us, seed=i), other], at=60 * i, status="failed" if i == 2 else "passed")
    return store


def test_the_main_benchmark_stands_for_a_run(three: FileStore) -> None:
    found = headlines(three, three.rows())
    assert {head.benchmark for head in found.values()} == {"mission"}
    assert sorted(round(head.p50) for head in found.values()) == [9, 10, 12]
    assert headlines(three, []) == {}


def test_a_kernel_stands_for_a_run_not_what_is_done_beside_it(store: FileStore) -> None:
    names = (
        "Device to host transfer time",
        "GPU allocation time",
        "H2D",
        "Kernel execution time",
        "aten::copy_ CUDA total",
    )
    measured(store, [document(*(entry(name, samples(5.0)) for name in names))])
    (head,) = headlines(store, store.rows()).values()
    assert head.benchmark == "Kernel execution time"


def test_a_job_is_its_last_run_against_its_best(three: FileStore) -> None:
    rows = three.rows()
    heads = headlines(three, rows)
    (line,) = jobs_grid(rows, heads, {rows[0].run_id: Cell("failed 1/2")}, 0.0).rows
    text = [plain(cell) for cell in line]
    assert text[2].startswith("10.")
    assert text[3].startswith("9.")
    assert text[1].endswith("% slower than the previous best")
    assert f"first={rows[1].run_id}" in line[1].href, "a click says whether that is more than chance"
    assert "failed 1/2" in text[5]
    said, facts = answer(rows[0].run_id, rows[1:], heads)
    assert "% slower than the previous run, the best so far, 2.00x faster than PyTorch." in said.text
    assert [name for name, _ in facts.pairs][:2] == ["this run", "previous run, the best so far"]
    (only,) = jobs_grid(rows[-1:], heads, {}, 0.0).rows
    assert only[1] == "first result"


def test_runs_in_different_units_are_compared_as_times(store: FileStore) -> None:
    """0.5 ms, then 510 us, is about the same; before, it was 1020x slower. A unit that is none of time is left out."""
    for i, (time, unit) in enumerate(((0.5, "ms"), (3.0, "ticks"), (510.0, "us"))):
        ours, theirs = (entry(f"mission{name}", samples(time, noise=0, seed=i), unit=unit) for name in ("", "/sdpa"))
        slow = {**theirs, "name": "mission/sdpa-math", "unit": "s", "stats": {**theirs["stats"], "p50": 0.002}}
        measured(store, [document(ours, theirs, slow)], at=60 * i)
    rows = store.rows()
    heads = headlines(store, rows)
    assert [heads[row.run_id].p50 for row in rows if row.run_id in heads] == pytest.approx([510.0, 500.0])
    said, _ = answer(rows[0].run_id, rows[1:], heads)
    assert said.text.startswith("510.0 µs, about the same as the previous run, the best so far (2.0 % slower)")
    assert said.text.endswith("as fast as PyTorch.")


def test_the_previous_best_of_a_session_is_of_the_same_benchmark(store: FileStore) -> None:
    """Not of what the job measured before it was renamed."""
    for i, name in enumerate(("copy", "copy", "triad")):
        measured(store, [document(entry(name, samples(3.0 + i)))], at=60 * i)
    services: Any = SimpleNamespace(store=store)
    rows = store.rows()
    for own, before in ((rows[:1], ""), (rows[1:2], rows[2].run_id)):
        (best,) = session._best(services, own, headlines(store, own))
        assert (best.run_id, best.before_run) == (own[0].run_id, before)


def test_times_that_vary_more_than_they_differ_are_said_to_and_get_no_verdict(store: FileStore) -> None:
    """The sentence stands beside the comparison, which alone says slower or inconclusive."""
    for i in range(2):
        us = [(1 + 0.6 * i) * (10.0 if j % 5 else 30.0) for j in range(100)]
        measured(store, [document(entry("mission", us))], at=60 * i)
    rows = store.rows()
    heads = headlines(store, rows)
    (line,) = jobs_grid(rows, heads, {}, 0.0).rows
    assert line[1].text == "60.0 % slower than the previous best, but the times vary by more"
    assert line[1].kind == "doubt"
    said, _ = answer(rows[0].run_id, rows[1:], heads)
    assert "60.0 % slower than the previous run, the best so far, but the times vary by more" in said.text
    assert "inconclusive" not in said.text


@pytest.mark.parametrize(
    ("mode", "us", "shown"),
    [("hot", 9.4, "6.0 % faster than the previous run, not certain from single runs"),
     ("hot", 9.2, "8.0 % faster than the previous run"),
     ("eager", 9.2, "8.0 % faster than the previous run, not certain from single runs")],
)  # fmt: skip
def test_a_change_that_a_comparison_calls_inconclusive_is_not_called_a_gain(mode: str, us: float, shown: str) -> None:
    old, new = (Headline(run_id, "mission", mode, "us", "fused", p50) for run_id, p50 in (("a", 10.0), ("b", us)))
    assert change(new, old, "the previous run") == shown


@pytest.mark.parametrize("ending", ["cancelled", "over_budget", "failed", "lost"])
def test_a_figure_is_compared_with_runs_that_ended_well(three: FileStore, ending: str) -> None:
    for i, us in enumerate((14.0, 12.1)):
        measured(three, [simple(us, seed=7 + i)], at=200 + 60 * i, status="passed" if i else ending)
    rows = [row for i, row in enumerate(three.rows()) if i in (0, 1, 4)]
    heads = headlines(three, rows)
    (line,) = jobs_grid(rows, heads, {}, 0.0).rows
    assert plain(line[1]).startswith("about the same as the previous best (")
    said, facts = answer(rows[0].run_id, rows[1:], heads)
    assert "about the same as the previous run" in said.text
    assert [value.href for _, value in facts.pairs if isinstance(value, Cell) and value.href] == [
        f"/runs/{rows[2].run_id}"
    ]


def test_a_run_that_was_cancelled_is_not_the_last_word_on_a_job(three: FileStore) -> None:
    measured(three, [simple(20.0)], at=300, status="cancelled")
    rows = three.rows()
    (line,) = jobs_grid(rows, headlines(three, rows), {}, 0.0).rows
    assert line[0].href == f"/runs/{rows[1].run_id}"


def test_the_newest_run_that_did_not_pass_needs_a_look(three: FileStore) -> None:
    rows = three.rows()
    assert [row.run_id for row in failures(rows)] == [rows[0].run_id]
    assert list(failures(rows[1:])) == [], "an older failure that a later run has made good does not"


def test_a_list_of_runs_names_figures_and_subjects_and_escapes_them(three: FileStore) -> None:
    rows = [row.model_copy(update={"git_commit": "c" * 40}) for row in three.rows()]
    grid = runs_grid(rows, headlines(three, rows), {"c" * 40: "<b>subject</b>"}, 0.0, "Runs")
    text = fragment([grid], "/root")
    assert "&lt;b&gt;subject&lt;/b&gt;" in text
    assert f'href="/root/runs/{rows[0].run_id}"' in text
    rows = rows[1:]  # the last one failed, and its figure is no one's to compare with
    grid = runs_grid(rows, headlines(three, rows), {}, 0.0, "Runs", known=rows)
    faster, none = (row[3] for row in grid.rows)
    assert [round(us) for us in faster.points] == [12, 9]
    assert faster.note.startswith("2"), "than the previous run, by so much"
    assert faster.note.endswith("% faster")
    assert none == "", "there is no run before"
    label = plain(faster).removesuffix(f" {faster.note}")
    assert f'role="img" aria-label="{label}"><polyline points="0.0,1.0 160.0,27.0"/></svg>' in fragment([grid], "/root")
    assert 'data-label="result"' in text, "a phone shows each cell with its column's name"


@pytest.mark.parametrize(("middle", "at"), [(None, (0.0, 50.0, 100.0)), (1.0, (1.92, 1.92, 98.08))])
def test_bars_share_one_axis(middle: float | None, at: tuple[float, ...]) -> None:
    bars = Bars("", (Bar("a", 1.0, ""), Bar("b", 2.0, "", low=1.5, high=2.0)), middle)
    assert (bars.at(0.0) if middle is None else bars.at(1.0), bars.at(1.0), bars.at(2.0)) == at
    assert Bars("", (Bar("nothing", 0.0, ""),)).at(0.0) == 0.0


@pytest.mark.parametrize(
    ("states", "shown"), [((), "ready"), (("starting",), "starting"), (("starting", "running"), "busy")]
)
def test_a_machine_that_is_on_is_starting_busy_or_ready(states: tuple[Any, ...], shown: str) -> None:
    active = [LiveRun(f"run-{state}", "job", "l4", state) for state in states]
    on = MachineOn("l4", "vm", 0.72, started=0.0, seen=3600.0, until=7200.0, stop="fcctl hosts down l4")
    cell = _state([on], active, 3600.0)
    assert plain(cell) == f"{shown} on for 1 h 00 min, $0.72, stops in 1 h 00 min at the latest: fcctl hosts down l4"


def shown_of(gates: list[GateRecord]) -> Cell:
    """What the overview shows of a run with these gates."""
    (step, *_) = sample_run.record().steps
    record = sample_run.record(steps=[step.model_copy(update={"gates": gates})])
    site: Any = SimpleNamespace(store=SimpleNamespace(get=lambda _: record))
    return _gates(site, row_of(record))


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (("pass", "pass"), "passed 2 of 2"), (("fail", "unavailable"), "failed 1 of 2"),
        (("pass", "unavailable"), "incomplete 1 of 2"), ((), ""),
    ],
)  # fmt: skip
def test_a_gate_without_a_value_did_not_fail(verdicts: tuple[str, ...], shown: str) -> None:
    gates = [GateRecord.model_validate({"expr": "x < 1", "verdict": verdict}) for verdict in verdicts]
    assert shown_of(gates) == Cell(shown, kind="status")


@pytest.mark.parametrize(
    ("value", "verdict", "shown"),
    [(70.0, "fail", "p50 < 58 µs: 70.00 µs, 21 % over"), (50.0, "pass", "p50 < 58 µs: 50.00 µs, met")],
)
def test_the_overview_has_the_target_and_the_gap_to_it(value: float, verdict: str, shown: str) -> None:
    limits = {'benchmark.benchmarks[name="mission"].stats.p50 < 58': value, "correctness.summary.passed == 20": 20}
    gates = [GateRecord.model_validate({"expr": expr, "value": one, "verdict": verdict if one == value else "pass"})
             for expr, one in limits.items()]  # fmt: skip
    assert shown_of(gates).note == shown


def test_forty_kernels_of_one_template_are_told_apart_by_what_differs() -> None:
    long = "void flash::attention_forward_kernel<cutlass::half_t, Layout<Shape<_64, _128>>, {}, 64, {}>(Params)"
    names = [long.format(tile, str(masked).lower()) for tile in range(20) for masked in (False, True)]
    short = apart(names, 60)
    assert len(set(short)) == 40
    assert short[1] == "void flash::attention_forward_kernel<..., 0, true>"
    assert max(map(len, short)) <= 60


def test_other_names_stay_and_keep_their_end() -> None:
    assert apart(["a", "b<1>", "a"], 44) == ["a", "b<1>", "a"]
    assert apart(["k<1>", "k<1, 2>"], 44) == ["k<1>", "k<1, 2>"], "another number of arguments"
    assert apart(["k<f<1, 2>(3)>", "k<f<1, 3>(3)>"], 44) == ["k<f<1, 2>(3)>", "k<f<1, 3>(3)>"]
    (cut,) = apart(["x" * 100 + "_last"], 20)
    assert len(cut) == 20
    assert cut.endswith("_last")
    assert apart(["k<\x1b[31m, 1>", "k<\x1b[31m, 2"], 44) == ["k<..., 1>", "k<..., 2>"]
