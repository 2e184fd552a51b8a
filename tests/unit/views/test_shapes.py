"""Sizes are an axis of a report, never rival kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.views.blocks import Grid, plain
from orchestrator.views.report import words
from orchestrator.views.report.build import build
from orchestrator.views.report.charts import charts, size_in
from orchestrator.views.report.model import Report
from orchestrator.views.report.sections import sections
from tests.support import reference_run, sample_run


@pytest.mark.parametrize(
    ("name", "kernel", "size"),
    [
        ("BM_copy/64", "BM_copy", "64"),
        ("softmax n=1024", "softmax", "n=1024"),
        ("softmax[dtype=f32,n=64]", "softmax[dtype=f32]", "n=64"),
        ("n=64", "", "n=64"),
        ("gemm/64/128/real_time", "gemm/real_time", "64, 128"),
        ("test_softmax[64]", "test_softmax", "64"),
        ("wmma_32", "wmma_32", ""),
        ("copy[block=128]", "copy[block=128]", ""),
        ("stage2", "stage2", ""),
    ],
)
def test_a_size_is_taken_from_a_name(name: str, kernel: str, size: str) -> None:
    assert size_in(name) == (kernel, size)


def report(folder: Path, *names_and_times: tuple[str, float]) -> Report:
    entries: list[dict[str, Any]] = [
        {"name": name, "unit": "us", "stats": {"n": 20, "p50": us, "mean": us}} for name, us in names_and_times
    ]
    document = {"kind": "benchmark", "schema_version": 1, "tool": "times", "benchmarks": entries}
    sample_run.write_documents(folder, {"bench": document})
    record = sample_run.record()
    return build([Shown(record, folder, load(record, folder))])


def test_one_kernel_at_three_sizes_has_no_winner(tmp_path: Path) -> None:
    found = report(tmp_path, ("n=64", 3.0), ("n=128", 9.0), ("n=256", 40.0))
    said = list(words.verdict(found))[1]
    assert said == "time takes 3.00 µs at n=64 to 40.00 µs at n=256, over 3 sizes."
    (grid,) = [block for block in sections(found)[0].blocks if isinstance(block, Grid)]
    assert grid.header == ("kernel", "n=64", "n=128", "n=256")
    assert [plain(cell) for cell in grid.rows[0]] == ["time", "3.00", "9.00", "40.00"]


def test_kernels_compete_at_each_size(tmp_path: Path) -> None:
    found = report(tmp_path, ("a/64", 3.0), ("a/128", 9.0), ("b/64", 4.0), ("b/128", 5.0), ("c", 1.0))
    said = list(words.verdict(found))[1]
    assert said == "Fastest of 2 sizes: a at 1, b at 1."
    one = report(tmp_path / "one", ("a/64", 3.0), ("a/128", 4.0), ("b/64", 4.0), ("b/128", 5.0))
    assert list(words.verdict(one))[1] == "a is the fastest at all 2 sizes."
    (picture,) = [chart for chart in charts(found) if chart.name.startswith("shapes")]
    assert picture.rows == (("a", "1.00x", "0.56x"), ("b", "0.75x", "1.00x"))


def test_the_published_run_has_a_map_of_its_shapes_for_each_mode(tmp_path: Path) -> None:
    found = build([reference_run.shown(reference_run.install(tmp_path))])
    maps = [chart for chart in charts(found) if chart.name.startswith("shapes")]
    assert [chart.title for chart in maps] == ["Shapes, hot", "Shapes, cold", "Shapes, eager"]
    assert maps[0].header[:2] == ("kernel", "mission")
    flagship = next(row for row in maps[0].rows if row[0] == "flagship")
    assert flagship[1] == "2.02x", "the ratio measured in pairs"


def test_benchmarks_of_no_common_case_have_a_plain_caption_and_no_empty_column(tmp_path: Path) -> None:
    """A page said "Times on all timings", above an empty p99 and an empty error."""
    (results, *_) = sections(report(tmp_path, ("softmax", 53.19)))
    (grid,) = [block for block in results.blocks if isinstance(block, Grid)]
    assert (grid.caption, grid.header) == ("Times", ("kernel", "p50, µs", "status"))
