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
    folder = ROOT / "results/reference/h200" / run
    table = KERNELS.split("## Commands")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [step.name for step in ladder.RUNGS]
    rows = re.findall(r"^\| `\w+`, `(\w+)` \|[^|]+\| ([\d.]+) \| (\d+) \|", table, re.MULTILINE)
    assert [name for name, _, _ in rows] == [rung.label for rung in ladder.RUNGS if ":" not in rung.label]
    for name, time, tensor in rows:
        bench = json.loads((folder / f"bench-benchmark-{name}.json").read_text())
        (hot,) = (row["stats"]["p50"] for row in bench["benchmarks"] if row["name"] == "mission")
        assert f"{hot:.{len(time.partition('.')[2])}f}" == time
        profile = json.loads((folder / f"profile-profile-{name}-mission.json").read_text())
        assert f"{profile['kernels'][0]['metrics']['tensor_active_pct']:.0f}" == tensor


def test_the_gate_is_one_and_the_files_exist() -> None:
    (expr,) = re.findall(r"`(benchmark\.[^`]+)`", PAGE)
    gates.parse(expr)
    for name in ("registry.py", "tables.py", "csrc/flashcore.h"):
        assert name.rpartition("/")[2] in PAGE
        assert (ROOT / "kernels/flashcore" / name).exists()


def test_the_guide_is_short() -> None:
    assert len(PAGE.split()) <= 340, "300 of prose, and the bars of a table"
