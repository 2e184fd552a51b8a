"""``fcctl run --repeat``: several launches of one program, compared as one side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.workspace import Workspace

BENCH = """
steps:
  - id: bench
    run: |
      for i in 1 2 3 4 5 6 7 8 9; do echo "copy time_us=$((100 + i))"; done > times.txt
      test ! -e broken
    collect: [{reader: times, file: times.txt}]
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("bench", BENCH)
    return made


def test_three_launches_are_one_side_of_the_comparison(workspace: Workspace) -> None:
    workspace.fcctl("run", "bench", "--on", "here")
    before = next(iter(workspace.runs()))
    done = workspace.fcctl("run", "bench", "--on", "here", "--repeat", "3", "--compare", before)
    assert [f"run {n} of 3" in done.stderr for n in (1, 2, 3)] == [True] * 3
    new = re.findall(r"^note: run (\S+)$", done.stderr, re.MULTILINE)
    assert sorted(new) == sorted(set(workspace.runs()) - {before})
    assert len(new) == 3
    assert f"fcctl results compare RUN {','.join(new)}" in done.stderr
    assert "1+3 launches" in done.stdout or "and 2 more" in done.stdout
    lines = workspace.fcctl("run", "bench", "--on", "here", "--repeat", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["passed", "passed"]
