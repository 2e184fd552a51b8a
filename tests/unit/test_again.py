"""What failed in a run of the tests is run once more: ``tests/again.py``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import again
from tests.support import forked
from tests.support.tiers import sampled

HOOKS = """
from tests.again import Recorder
def pytest_configure(config): config.pluginmanager.register(Recorder(config.rootpath))
"""
FLAKY = """
from pathlib import Path
import pytest
MARK = Path("mark")
def test_passes(): pass
def test_flaky():
    was_there = MARK.exists()
    MARK.touch()
    assert was_there
"""
OTHERS = """
def test_fails(): assert False
def test_skipped():
    if Path("again").exists(): pytest.skip("not here")
    Path("again").touch()
    assert False
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", forked.PYTHON_PATH)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "conftest.py").write_text(HOOKS)
    return tmp_path


@pytest.mark.parametrize(("text", "code"), sampled([(FLAKY, 0), (FLAKY + OTHERS, 1)], [(FLAKY + OTHERS, 1)]))
def test_each_runs_once_more(folder: Path, text: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "test_it.py").write_text(text)
    assert subprocess.run([sys.executable, "-m", "pytest", "-q"], check=False).returncode == 1
    assert again.main() == code
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "flaky: test_it.py::test_flaky passed when run alone; this is a defect"
    assert said[1:] == [f"test_it.py::{name} failed again" for name in ("test_fails", "test_skipped")][: 2 * code]
    assert again.main() == 1, "it is not excused twice"


@pytest.mark.parametrize(("exit_code", "count"), [(1, 4), (2, 1), (0, 0), (1, 0), (None, 0)])
def test_no_other_end_is_excused(
    folder: Path, exit_code: int | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(again, "passes", lambda _: True)
    again.FILE.parent.mkdir()
    if exit_code is not None:
        again.FILE.write_text(json.dumps({"exit_code": exit_code, "failed": [f"t{n}" for n in range(count)]}))
    assert again.main() == 1


def test_three_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "passes", lambda _: True)
    again.FILE.parent.mkdir()
    again.FILE.write_text(json.dumps({"exit_code": 1, "failed": ["a", "b", "c"]}))
    assert again.main() == 0
