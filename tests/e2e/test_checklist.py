"""FlashCore's checklist, as a script, on the published runs: all that a GPU that is not an L4 can decide."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.results import export
from tests.support.scripts import launcher
from tests.support.workspace import REPOSITORY

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("jq") is None, reason="the checklist's queries need jq"),
]
SCRIPT = REPOSITORY / "tests/e2e/checklist.sh"
PROFILED = "20261121t224752z-evidence-gpu-host-d7dc25"
#: It ended before it measured anything.
FAILED = "20261121t131923z-evidence-gpu-host-e6ceb7"


def checked(folder: Path, run_id: str) -> tuple[int, list[str]]:
    env = {**os.environ, "PATH": f"{launcher(folder / 'bin').parent}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(
        ["bash", str(SCRIPT), run_id], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout.splitlines()


def test_the_published_run_passes_the_checklist(tmp_path: Path) -> None:
    export.published_workspace(REPOSITORY, tmp_path)
    code, lines = checked(tmp_path, PROFILED)
    assert [line for line in lines if line.startswith("[FAIL]")] == []
    assert (code, len([line for line in lines if line.startswith("[PASS]")])) == (0, 12)
    skipped = [line for line in lines if line.startswith("[SKIP]")]
    assert len(skipped) == 4
    assert all("measured on NVIDIA H100" in line for line in skipped)


def test_a_run_that_failed_does_not(tmp_path: Path) -> None:
    export.published_workspace(REPOSITORY, tmp_path)
    code, lines = checked(tmp_path, FAILED)
    assert code == 1
    assert "[FAIL] the run passed, and none of its gates is undecided" in lines
    assert "[FAIL] p50, p90 and p99 of the mission, in us, from at least 100 samples" in lines
