"""tools/setup.sh and the Makefile run with what a Mac has: bash 3.2, BSD sed and awk."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted({*ROOT.glob("tools/*.sh"), ROOT / ".ci/run"})
#: bash 3.2 lacks these, and under ``set -u`` ends at ``"${array[@]}"`` of an empty array (bash 4.4 mended that).
NEWER_BASH = re.compile(
    r"\$\{\w+\[@\]\}|\bdeclare -A|\blocal -A|\bmapfile\b|\breadarray\b|\$\{\w+(?:,,|\^\^|@Q)|&>>|\|&|\bcoproc\b"
)
GNU_ONLY = re.compile(r"\bsed -i\b|\bsed\b.*\\t|\breadlink -f\b|\bgrep -P\b|\bdate -d\b|\bstat -c\b|\bcp -al?\b.*--")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_needs_no_newer_bash(script: Path) -> None:
    code = [line for line in script.read_text().splitlines() if not line.lstrip().startswith("#")]
    assert [line for line in code if NEWER_BASH.search(line) or GNU_ONLY.search(line)] == []


def test_the_makefile_needs_no_gnu_tools() -> None:
    assert [line for line in (ROOT / "Makefile").read_text().splitlines() if GNU_ONLY.search(line)] == []


def test_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = {line.split()[0] for line in shown.splitlines()}
    assert {"setup", "demo", "test", "lint", "simulate"} <= named
    assert all(len(line.split()) > 2 for line in shown.splitlines())


def installed_by(tmp_path: Path, *words: str, **environ: str) -> list[str]:
    """What the script asks of pip, twice run, with a Python that has no torch and writes down its arguments."""
    (tmp_path / "tools").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "tools/setup.sh").write_text((ROOT / "tools/setup.sh").read_text())
    for name in ("python", "fcctl"):
        program = tmp_path / ".venv/bin" / name
        program.write_text('#!/bin/sh\ncase $1 in -c) exit 1;; esac\nprintf "%s\\n" "$*" >>"$LOG"\n')
        program.chmod(0o755)
    env = {**os.environ, "LOG": str(tmp_path / "log"), **environ}
    for _ in range(2):
        subprocess.run(["bash", "tools/setup.sh", *words], cwd=tmp_path, env=env, check=True, capture_output=True)
    return (tmp_path / "log").read_text().splitlines()


@pytest.mark.parametrize("index", ["", "https://packages.invalid/cpu"])
def test_torch_is_installed_with_and_without_an_index(tmp_path: Path, index: str) -> None:
    torch, own = installed_by(tmp_path, TORCH_INDEX=index)
    assert torch.endswith((f"--index-url {index} " if index else "version-check ") + "torch==2.13.0")
    assert own.endswith("-e .[dev,kernels]")


def test_the_demo_needs_no_torch(tmp_path: Path) -> None:
    (own,) = installed_by(tmp_path, "demo")
    assert own.endswith("-e .")
