"""``fcctl run JOB --publish DIR``: the artifacts where a person looks for them; ``--repeat``: launches as one side."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

JOB = """
report: true
steps:
  - id: one
    run: |
      mkdir -p "$FCCTL_ARTIFACTS/bench"; echo %s > "$FCCTL_ARTIFACTS/bench/a.json"
      ln -s /etc/passwd "$FCCTL_ARTIFACTS/link"; exit %d
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    return Workspace(tmp_path / "w", private_home, sshd)


def test_artifacts_and_the_report_are_copied(workspace: Workspace) -> None:
    into = workspace.root / "out"
    for text in ("1", "2"):
        workspace.job("made", JOB % (text, 0))
        done = workspace.fcctl("run", "made", "--on", "box", "--publish", str(into))
        assert "published 4 files" in done.stderr
        assert (into / "artifacts/bench/a.json").read_text() == f"{text}\n"
        (into / "artifacts/mine.txt").write_text("of the user")
    assert (into / "reports/summary.md").read_text().startswith("# made on")
    assert sorted(path.name for path in into.rglob("*") if path.is_file()) == [
        "a.json", "manifest.yaml", "mine.txt", "summary.md", "summary.md"
    ]  # fmt: skip
    assert (into / "artifacts/mine.txt").read_text() == "of the user"


def test_what_a_failed_run_left_is_copied_and_its_end_counts(workspace: Workspace) -> None:
    workspace.job("fails", JOB % ("1", 3))
    workspace.fcctl("run", "fails", "--on", "box", "--publish", "out", check=100)
    assert (workspace.root / "out/artifacts/bench/a.json").exists()
    (workspace.root / "file").write_text("x")
    assert "not published" in workspace.fcctl("run", "fails", "--on", "box", "--publish", "file", check=100).stderr
    refused = workspace.fcctl("run", "fails", "--publish", "x", "--detach", check=2).stderr
    assert "it needs the results of the run" in refused


def test_a_passed_run_that_cannot_be_published_is_an_error_after_its_report(workspace: Workspace) -> None:
    workspace.job("empty", "steps: [{id: one, run: 'true'}]\n")
    done = workspace.fcctl("run", "empty", "--on", "box", "--publish", "out", check=7)
    assert "the run left no artifacts to publish" in done.stderr
    assert "passed" in done.stdout


BENCH = """
steps:
  - id: bench
    run: |
      for i in 1 2 3 4 5 6 7 8 9; do echo "copy time_us=$((100 + i))"; done > times.txt
      test ! -e broken
    collect: [{reader: times, file: times.txt}]
"""


def test_three_launches_are_one_side_of_the_comparison(workspace: Workspace) -> None:
    workspace.job("bench", BENCH)
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
