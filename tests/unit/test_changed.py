"""The map from what changed to what is run: every source has tests, every folder of tests a subject."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import changed, durations
from tests.changed import ALWAYS, FARTHEST, ROOT, SUBJECT_DISTANCE, SUBJECTS, choose, distances

pytestmark = pytest.mark.group("changed")  # one worker reads all imports
SOURCES = sorted(
    path
    for top in ("orchestrator", "remote", "kernels")
    for path in (ROOT / top).rglob("*.py")
    if path.read_text().strip() and "_data" not in path.parts
)


def test_every_folder_of_tests_has_a_subject_that_exists() -> None:
    folders = {str(path.parent.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}
    top = {folder for folder in folders if not any(folder.startswith(f"{known}/") for known in SUBJECTS)}
    assert top - set(SUBJECTS) - {"unit"} == set(), "a folder of tests that no change reaches"
    assert set(SUBJECTS) - folders == set()
    assert [place for subject in SUBJECTS.values() for place in subject.split() if not (ROOT / place).exists()] == []


def test_every_source_is_of_a_subject() -> None:
    assert len(SOURCES) > 250
    assert [str(path) for path in SOURCES if not list(changed.folders_of(str(path.relative_to(ROOT))))] == []


@pytest.mark.parametrize(
    ("source", "test", "distance"),
    [
        ("tests/unit/money/test_caps_of_nobody.py", None, 0),
        ("tests/unit/money/test_ledger.py", "tests/unit/money/test_ledger.py", 0),
        ("orchestrator/money/ledger.py", "tests/unit/money/test_ledger.py", 1),
        ("orchestrator/money/caps.py", "tests/integration/money/test_cap_notices.py", SUBJECT_DISTANCE),
        ("remote/fcctl_remote/run/lost.py", "tests/integration/host_program/test_lifecycle.py", SUBJECT_DISTANCE),
        ("docs/gates.md", "tests/unit/docs/test_documented.py", SUBJECT_DISTANCE),
        ("tests/integration/host_program/conftest.py", "tests/integration/host_program/test_steps.py", 1),
    ],
)
def test_how_far_a_test_is(source: str, test: str | None, distance: int) -> None:
    found = distances([source])
    assert all(far <= FARTHEST for far in found.values())
    if test is None:
        assert found == {}
    else:
        assert found[test] == distance


def test_imports_are_found_in_each_form(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import a.b as c, d\nfrom e import (\n    f,  # or, g\n    g as h,\n)\nif d:\n    from i.j import k  # late\n"
    )
    assert list(changed.imports(tmp_path / "a.py")) == ["a.b", "d", "e.f", "e.g", "i.j.k"]


def test_the_nearest_are_chosen_until_the_time_is_over() -> None:
    far = {"tests/unit/a.py": 1, "tests/unit/b.py": 1, "tests/unit/long.py": 2, "tests/unit/c.py": 3}
    seconds = {"tests/unit/a.py": 4.0, "tests/unit/b.py": 2.0, "tests/unit/long.py": 30.0, "tests/unit/c.py": 3.0}
    seconds.update(dict.fromkeys(ALWAYS, 0.0))
    found = choose(far, seconds, budget_s=10.0)
    assert found.chosen == (*ALWAYS, "tests/unit/b.py", "tests/unit/a.py", "tests/unit/c.py")
    assert found.left_out == ("tests/unit/long.py",)
    assert found.seconds == 9.0


def test_a_test_that_was_changed_runs_however_long_it_takes() -> None:
    found = choose({"tests/unit/long.py": 0}, {"tests/unit/long.py": 300.0}, budget_s=10.0)
    assert "tests/unit/long.py" in found.chosen


def test_what_changed_is_what_git_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {("diff", "--name-only", "HEAD"): [], ("ls-files", "--others", "--exclude-standard"): []}
    monkeypatch.setattr(changed, "_git", lambda *argv: said.get(argv, ["of the last commit"]))
    assert changed.changed_files(None) == ["of the last commit"]
    said["ls-files", "--others", "--exclude-standard"] = ["new.py"]
    assert changed.changed_files(None) == ["new.py"]


def test_seconds_of_full_tests_keep_no_module_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    durations.FILE.write_text('{"a.py::slow": 90.0, "a.py::quick": 1.0, "b.py::other": 2.0}')
    recorder = durations.Recorder()
    for name, took, marks in (("quick", 0.5, {}), ("quick@group", 0.25, {}), ("slow", 80.0, {"full": 1})):
        report: object = SimpleNamespace(nodeid=f"a.py::{name}", duration=took, keywords=marks)
        recorder.pytest_runtest_logreport(report)  # type: ignore[arg-type]
    recorder.pytest_sessionfinish()
    assert durations.read() == {"a.py::quick": 0.75, "b.py::other": 2.0, "a.py::slow (full)": 80.0}
    assert durations.of_modules() == {"a.py": 0.75, "b.py": 2.0}
