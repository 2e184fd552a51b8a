"""The documents of docs/gates.md, written by a step: they decide its gates, and a comparison reads their samples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.command import Fcctl

ROOT = Path(__file__).parents[3]
JOB = """\
job: own
steps:
  - id: say
    run: for i in 1 2 3 4 5; do cp "doc$i.json" "$FCCTL_OUT/"; done
    gates:
      - benchmark.benchmarks[name="softmax"].stats.p50 < 13
      - correctness.summary.failed == 0
      - max(build.kernels[*].registers) <= 40
      - profile.kernels[0].metrics.dram_throughput_pct > 80
      - metrics.metrics.gbps > 400
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_what_the_page_shows_is_taken(fcctl: Fcctl, workspace: Path) -> None:
    page = (ROOT / "docs" / "gates.md").read_text()
    lines = re.findall(r'^\{"kind": .+\}$', page, flags=re.MULTILINE)
    assert len(lines) == 5
    for number, line in enumerate(lines, start=1):
        (workspace / f"doc{number}.json").write_text(line)
    (workspace / "jobs" / "own.yaml").write_text(JOB)
    for _ in range(2):
        done = fcctl("run", "own", "--on", "local", cwd=workspace)
        assert done.code == 0, done.err
        assert "Gates  5 of 5 passed" in done.out
        for said in ("softmax", "✓ 1/1 cases passed", "gbps"):
            assert said in done.out
    report = fcctl("results", "compare", "last~1", "--json", cwd=workspace).json
    [row] = report["benchmarks"]
    assert row["verdict"] in ("same", "inconclusive"), row
