"""docs/next-kernel.md, and the ladder of docs/kernels.md: its figures are those of a published run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fcctl_remote.gates import evaluate as gates
from flashcore import ladder

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/next-kernel.md").read_text()
KERNELS = (ROOT / "docs/kernels.md").read_text()


def test_the_ladder_is_that_of_the_published_run() -> None:
    (run,) = re.findall(r"The ladder, as the run `(\S+)` measured it on an NVIDIA H200", KERNELS)
    documents = [json.loads(path.read_text()) for path in (ROOT / "results/reference/h200-ladder" / run).glob("*.json")]
    times = {
        document["label"]: {row["name"]: row["stats"]["p50"] for row in document["benchmarks"]}
        for document in documents
        if document.get("kind") == "benchmark"
    }
    tensor = {
        document["label"]: document["kernels"][0]["metrics"]["tensor_active_pct"]
        for document in documents
        if document.get("kind") == "profile"
    }
    table = KERNELS.split("## Commands")[0]
    rows = re.findall(r"^\| `(\w+)`[^|]*\|[^|]+\| ([\d.]+)(?:, ([\d.]+))? \| (\d*) ?\|", table, re.MULTILINE)
    assert [row[0] for row in rows] == [step.name for step in ladder.RUNGS]
    for name, mission, long, active in rows:
        label = ladder.NAMED[name].label
        figures = (times[label].get("mission"), times[label].get("4,16,2048,64"), tensor.get(label))
        for figure, shown in zip(figures, (mission, long, active), strict=True):
            assert shown == ("" if figure is None else f"{figure:.{len(shown.partition('.')[2])}f}"), name


def test_the_gate_is_one_and_the_files_exist() -> None:
    (expr,) = re.findall(r"`(benchmark\.[^`]+)`", PAGE)
    gates.parse(expr)
    for name in ("registry.py", "tables.py", "csrc/flashcore.h"):
        assert name.rpartition("/")[2] in PAGE
        assert (ROOT / "kernels/flashcore" / name).exists()


def test_the_guide_is_short() -> None:
    assert len(PAGE.split()) <= 340, "300 of prose, and the bars of a table"
