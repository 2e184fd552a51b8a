"""The tests that failed in the last run, once more and alone: ``python -m tests.again``, for ``.ci/run``.

A test that passes now does not fail the whole; that it failed once is a defect all the same, and is printed as one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(".pytest_cache/failed.json")
#: So many may fail by chance; if more do, something is broken.
MOST = 3


class Recorder:
    """Keeps how a run of the tests ended. One that is killed leaves no record."""

    def __init__(self, root: Path) -> None:
        self._file = root / FILE
        self._failed: dict[str, bool] = {}
        self._passed = 0

    def pytest_sessionstart(self) -> None:
        self._file.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._passed += report.when == "call" and report.passed
        if report.failed:
            self._failed[report.nodeid.partition("@")[0]] = True

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._file.parent.mkdir(exist_ok=True)
        record = {"exit_code": int(exitstatus), "failed": list(self._failed), "passed": self._passed}
        self._file.write_text(json.dumps(record))


def passes(test: str) -> bool:
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", test], check=False)
    return done.returncode == 0 and bool(json.loads(FILE.read_text())["passed"])


def main() -> int:
    """The exit code: 0 if each test that failed passes now."""
    try:
        record = json.loads(FILE.read_text())
    except FileNotFoundError:
        record = {"exit_code": None, "failed": []}
    failed = record["failed"]
    if record["exit_code"] != pytest.ExitCode.TESTS_FAILED or not 0 < len(failed) <= MOST:
        print(f"no test is run again: exit code {record['exit_code']} of pytest, {len(failed)} failed tests")
        return 1
    again = {test: passes(test) for test in failed}
    FILE.unlink()  # what fails next is not excused by it
    for test, passed in again.items():
        print(f"flaky: {test} passed when run alone; this is a defect" if passed else f"{test} failed again")
    return 0 if all(again.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
