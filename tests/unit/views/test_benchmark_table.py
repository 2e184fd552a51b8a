"""Benchmarks as people see them: FlashCore's from a GPU, and other repositories'."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fcctl_remote import readers
from orchestrator.results.documents import Document, Documents
from orchestrator.results.look import Shown
from orchestrator.views.blocks import Text
from orchestrator.views.table import show_blocks
from orchestrator.views.tables.documents import benchmark
from tests.support import sample_run

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def shown(content: dict[str, Any], width: int = 78) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False, emoji=False)
    documents = Documents((Document("bench", "benchmark", "benchmark.json", content),))
    show_blocks(console, benchmark(Shown(sample_run.record(), Path(), documents)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines), default=0) <= width
    return "\n".join(lines)


def lines_of(text: str, first_word: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first_word]]


@pytest.fixture
def h200() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FIXTURES / "benchmarks/h200_baseline.json").read_text())
    return content


def test_one_line_a_shape_and_mode_with_the_best_backend_beside_it(h200: dict[str, Any]) -> None:
    text = shown(h200)
    assert [line.split()[:6] for line in text.splitlines() if line.startswith(("mission", "s64"))] == [
        ["mission", "172.6", "173.3", "173.4", "9.03", "default"],
        ["s64", "15.13", "15.29", "15.36", "4.94", "efficient"],
        ["mission", "198.0", "198.6", "199.1", "10.01", "cuDNN"],
        ["s64", "24.92", "24.98", "25.05", "5.49", "efficient"],
        ["mission", "182.8", "186.7", "189.6", "19.54", "default"],
        ["s64", "25.09", "26.12", "30.37", "14.27", "efficient"],
    ]
    assert [line for line in text.splitlines() if line in ("hot", "cold", "eager")] == ["hot", "cold", "eager"]
    assert "19.1x slower  17.0x slower" in text
    assert "null 1.000  the kernel against itself; 1.000 to 1.002 over 6 rows" in text
    assert "baseline on NVIDIA H200" in text
    assert "more" not in text


def test_a_wide_terminal_gets_intervals_and_the_references_percentiles(h200: dict[str, Any]) -> None:
    first = lines_of(shown(h200, 130), "mission")[0]
    assert " ".join(first) == (
        "mission hot 172.6 173.3 173.4 171.3 9.03 9.14 9.18 default 19.1x slower [19.1, 19.2] 17.0x slower [17.0, 17.1]"
    )


def test_a_narrow_terminal_still_gets_one_line_a_row(h200: dict[str, Any]) -> None:
    text = shown(h200, 60)
    assert len(lines_of(text, "mission")) == 3
    assert "19.1x slower" in text


def test_a_ratio_that_may_be_one_does_not_claim_to_differ(h200: dict[str, Any]) -> None:
    for comparison in h200["comparisons"]:
        if comparison["benchmark"] == "mission" and comparison["against"] == "mission/sdpa":
            comparison.update(ratio=0.9, ci_low=0.8, ci_high=1.1)
    narrow, wide = shown(h200), shown(h200, 130)
    assert "1.11x faster ?" in narrow
    assert "1.11x faster ?  [0.91, 1.25]" in wide
    assert "the interval contains 1, so no difference was measured" in narrow


def test_another_variant_has_its_rows_and_the_ratio_its_column(h200: dict[str, Any]) -> None:
    ours = [dict(e, variant="wmma") if e["variant"] == "baseline" else e for e in h200["benchmarks"]]
    old = {"name": "mission/baseline", "variant": "baseline", "mode": "hot", "unit": "us",
           "stats": {"n": 100, "p50": 1381.1, "p90": 1390.0, "p99": 1400.0, "min": 1380.0}}  # fmt: skip
    measured = {"benchmark": "mission", "against": "mission/baseline", "ratio": 0.125, "ci_low": 0.12, "ci_high": 0.13}
    document = {**h200, "benchmarks": [*ours, old], "comparisons": [*h200["comparisons"], measured]}
    text = shown(document, 130)
    rows = lines_of(text, "mission")
    assert [row[2] for row in rows[:2]] == ["wmma", "baseline"]
    assert "8.00x faster" in text
    assert "153x slower" in " ".join(rows[1]), "of the medians, where nothing was measured in pairs"


def test_a_machine_too_busy_to_measure_on_says_so(h200: dict[str, Any]) -> None:
    h200["comparisons"][0].update(ratio=1.3)
    h200["comparisons"][1].update(throttled_blocks=7)
    text = shown(h200)
    assert "null 1.300" in text
    assert "too busy" in text
    assert "throttled in 7 blocks" in text


def test_a_reference_without_a_kernel_is_not_lost(h200: dict[str, Any]) -> None:
    kept = [e for e in h200["benchmarks"] if e["name"] != "s64"]
    (row, *_) = lines_of(shown({**h200, "benchmarks": kept}), "s64")
    assert row == ["s64", "4.94", "efficient"]


@pytest.mark.parametrize(
    ("reader", "file", "wanted"),
    [
        ("google-benchmark", "google_benchmark/repetitions.json", ("p50",)),
        ("google-benchmark", "google_benchmark/aggregates_only.json", ("p50",)),
        ("google-benchmark", "google_benchmark/python_binding.json", ("p50",)),
        ("pytest-benchmark", "pytest_benchmark/with_data.json", ("p50", "p90", "min")),
        ("pytest-benchmark", "pytest_benchmark/stats_only.json", ("p50", "min")),
        ("nvbench", "nvbench/cold_and_batch.json", ("mode", "n", "mean", "min")),
    ],
)
def test_other_repositories_benchmarks_are_listed_as_they_are(reader: str, file: str, wanted: tuple[str, ...]) -> None:
    document = readers.read(reader, str(FIXTURES / "readers" / file))
    text = shown(document)
    header = next(line for line in text.splitlines() if line.startswith("benchmark")).split()
    assert set(wanted) <= set(header)
    assert "SDPA" not in text
    joined = "".join(text.split())
    for entry in document["benchmarks"]:
        assert "".join(entry["name"].split()) in joined, entry["name"]
        assert "".join(entry.get("error", "").split()) in joined


def test_times_in_several_units_say_which_is_whose() -> None:
    entries = [{"name": name, "unit": unit, "stats": {"p50": 2.5}} for name, unit in (("load", "ms"), ("copy", "us"))]
    text = shown({"benchmarks": entries})
    assert "times in ms / µs" in text
    assert [lines_of(text, f"{name},") for name in ("load", "copy")] == [
        [["load,", "ms", "2.50"]], [["copy,", "µs", "2.50"]],
    ]  # fmt: skip
    assert lines_of(shown({"benchmarks": entries[:1]}), "load") == [["load", "2.50"]]


def test_thousands_of_rows_are_cut_and_counted() -> None:
    entries = [{"name": f"k/{i}", "unit": "us", "stats": {"p50": 1.0 + i}} for i in range(5000)]
    text = shown({"benchmarks": entries})
    assert "... and 4940 more" in text
    both = entries + [{"name": f"k{i}/sdpa", "unit": "us", "stats": {"p50": 2.0}} for i in range(5000)]
    both += [{"name": f"k{i}", "unit": "us", "stats": {"p50": 2.0}} for i in range(5000)]
    assert "... and 9940 more" in shown({"benchmarks": both})


def test_a_grade_that_its_authors_gave_is_told(h200: dict[str, Any]) -> None:
    assert "grade" not in shown(h200)
    row = next(r for r in h200["benchmarks"] if r["name"] == "mission")
    row["grade"] = {"letter": "A+", "next_step": "search the parameters"}
    assert "grade A+ of mission  next: search the parameters" in shown(h200)


def test_above_many_kernels_stands_their_number(h200: dict[str, Any]) -> None:
    made = [{**h200, "label": label} for label in ("stage2", "fused", "stage5", "flagship")]
    documents = [Document("bench", "benchmark", f"{one['label']}.json", one) for one in made]
    for count, words in ((3, "stage2 and fused and stage5 on NVIDIA H200"), (4, "4 kernels on NVIDIA H200")):
        blocks = benchmark(Shown(sample_run.record(), Path(), Documents(tuple(documents[:count]))))
        assert next(block.text for block in blocks if isinstance(block, Text)).startswith(words)


def test_a_reference_that_is_not_pytorchs_attention_has_its_own_name() -> None:
    def entry(name: str, variant: str, time: float, role: str) -> dict[str, Any]:
        return {"name": name, "case": "n=1024", "variant": variant, "role": role, "unit": "us", "stats": {"p50": time}}

    made = [entry("n=1024", "mine", 10.0, ""), entry("n=1024/cublas", "cublas", 20.0, "reference")]
    found = {"benchmark": "n=1024", "against": "n=1024/cublas", "ratio": 0.5}
    text = shown({"kind": "benchmark", "benchmarks": made, "comparisons": [found]}, 110)
    assert "SDPA" not in text
    assert ["n=1024", "10.00", "20.00", "cublas", "2.00x", "faster"] in [line.split() for line in text.splitlines()]


def test_a_label_is_that_of_the_documents_own_kernel() -> None:
    made = [{"name": name, "variant": kind, "unit": "us", "stats": {"p50": time}}
            for name, kind, time in (("s64", "cpu", 10.0), ("s64/numpy", "numpy", 20.0))]  # fmt: skip
    text = shown({"kind": "benchmark", "label": "cpu:TILE=8", "variant": "cpu", "benchmarks": made}, 110)
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("s64")] == [
        ["s64", "cpu:TILE=8"], ["s64", "numpy"],
    ]  # fmt: skip
