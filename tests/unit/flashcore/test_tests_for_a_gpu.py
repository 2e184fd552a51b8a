"""Tests that are skipped where there is no GPU are whole all the same: each fixture that one asks for is there."""

from __future__ import annotations

import subprocess
import sys

from tests.support.workspace import REPOSITORY

#: Plans the set-up of all tests for a GPU and runs nothing; as if there were one.
PLAN = """if True:
    import sys, pytest
    class NothingIsSkipped:
        @pytest.hookimpl(tryfirst=True)
        def pytest_collection_modifyitems(self, items):
            for node in (node for item in items for node in item.listchain()):
                node.own_markers[:] = [mark for mark in node.own_markers if mark.name != "skipif"]
    options = ["-q", "-n0", "-p", "no:cacheprovider", "--setup-plan", "-m", "gpu", "tests/integration/flashcore"]
    sys.exit(pytest.main(options, [NothingIsSkipped()]))
"""


def test_each_fixture_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", PLAN], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert done.stdout.count("SETUP    M builds") >= 5
