"""How long each test took when it last ran here; ``python -m tests.durations`` prints the slowest.

Kept in ``.pytest_cache``, for :mod:`tests.changed`, which has a minute, and for whoever makes the tests faster.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "durations.json"
SHOWN = 30
#: Behind the name of a test that is marked ``full``.
FULL = " (full)"


class Recorder:
    """Adds up set-up, call and tear-down of each test, and keeps them when the tests have ended."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("@")[0] + (FULL if "full" in report.keywords else "")
        self._seconds[test] = round(self._seconds.get(test, 0.0) + report.duration, 3)

    def pytest_sessionfinish(self) -> None:
        FILE.parent.mkdir(exist_ok=True)
        before = {test: took for test, took in read().items() if test + FULL not in self._seconds}
        FILE.write_text(json.dumps({**before, **self._seconds}, indent=0))


def read() -> dict[str, float]:
    """Test -> seconds; empty if none has run here."""
    try:
        return {str(test): float(seconds) for test, seconds in json.loads(FILE.read_text()).items()}
    except (OSError, ValueError):
        return {}


def of_modules() -> dict[str, float]:
    """Test module -> seconds, without its tests marked ``full``: who asks does not run these."""
    found: dict[str, float] = {}
    for test, seconds in read().items():
        if test.endswith(FULL):
            continue
        module = test.partition("::")[0]
        found[module] = found.get(module, 0.0) + seconds
    return found


if __name__ == "__main__":
    slowest = sorted(read().items(), key=lambda one: -one[1])[:SHOWN]
    print(f"the slowest {len(slowest)} tests, seconds:")
    for name, seconds in slowest:
        print(f"{seconds:8.1f}  {name}")
