"""docs/howto.md, typed line by line in a repository with two branches."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.workspace import REPOSITORY, Workspace

pytestmark = pytest.mark.full

PAGE = (REPOSITORY / "docs/howto.md").read_text()
BENCH = """
steps:
  - id: bench
    run: for i in 1 2 3 4 5 6 7 8 9; do echo "copy time_us=$(($(cat time) + i))"; done > times.txt
    collect: [{reader: times, file: times.txt}]
"""


def test_every_command_of_the_page(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    config = workspace.root / "fcctl.toml"
    config.write_text(config.read_text().replace("targets.here", "targets.l4"))
    workspace.job("bench", BENCH)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *words], cwd=workspace.root, check=True, capture_output=True)

    (workspace.root / ".gitignore").write_text("results/\nruns.tar.zst\nreport.html\n")
    git("init", "-q", "-b", "main")
    for branch, time in (("main", "100"), ("tuned", "80")):
        if branch != "main":
            git("switch", "-q", "-c", branch)
        (workspace.root / "time").write_text(time)
        git("add", "-A")
        git("commit", "-q", "-m", branch)
    printed = {}
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            if program == "git":
                git(*words)
            else:
                printed[line] = workspace.fcctl(*words).stdout
    compared = printed["fcctl results compare main tuned --fail-on none"]
    assert re.search(r"-19\.\d %|-20\.\d %", compared), "each branch's own runs"
    assert "and 1 more" in compared, "both launches are one side"
    assert (workspace.root / "report.html").read_text().startswith("<!doctype html>")
    assert (workspace.root / "runs.tar.zst").stat().st_size > 1000
    there = Workspace(tmp_path / "there", private_home)
    there.fcctl("results", "import", str(workspace.root / "runs.tar.zst"))
    assert len(there.runs()) == 4
