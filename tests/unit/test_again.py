"""What failed in a run of the tests is run once more: ``tests/again.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import source_environment

HOOKS = """
from tests.again import Recorder
def pytest_configure(config): config.pluginmanager.register(Recorder(config.rootpath))
"""
PASSES = "def test_passes(): pass\n"
FLAKY = """
from pathlib import Path
def test_flaky():
    mark = Path("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
FAILS = """
import pytest
@pytest.mark.parametrize("number", range({count}))
def test_fails(number):
    with open("ran", "a") as file: print(number, file=file)
    assert False
"""
SKIPPED = """
import pytest
from pathlib import Path
def test_skipped():
    if Path("mark").exists(): pytest.skip("not here")
    Path("mark").touch()
    assert False
"""
FLAKY_LINE = "flaky: test_it.py::test_flaky passed when run alone; this is a defect"


@pytest.mark.parametrize(
    ("text", "first", "code", "line", "ran"),
    [
        (FLAKY, 1, 0, FLAKY_LINE, 0),
        (FLAKY + FAILS.format(count=1), 1, 1, "test_it.py::test_fails[0] failed again", 2),
        (FAILS.format(count=4), 1, 1, "no test is run again: exit code 1 of pytest, 4 failed tests", 4),
        (SKIPPED, 1, 1, "test_it.py::test_skipped failed again", 0),
        ("def test_(:", 2, 1, "no test is run again: exit code 2 of pytest, 0 failed tests", 0),
        ("", 0, 1, "no test is run again: exit code 0 of pytest, 0 failed tests", 0),
    ],
    ids=["flaky", "fails", "four", "skipped", "no-python", "none"],
)
def test_once_more(tmp_path: Path, text: str, first: int, code: int, line: str, ran: int) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS)
    (tmp_path / "test_it.py").write_text(PASSES + text)

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", *words]
        return subprocess.run(argv, cwd=tmp_path, env=source_environment(), capture_output=True, text=True, check=False)

    assert python("pytest", "-q").returncode == first
    again = python("tests.again")
    assert (again.returncode, again.stderr) == (code, ""), again.stdout
    assert line in again.stdout.splitlines()
    assert len((tmp_path / "ran").read_text().split() if ran else ()) == ran
    assert python("tests.again").returncode == 1, "it is not excused twice"
