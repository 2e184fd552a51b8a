"""A part of ``make mac-like``, which takes minutes, on the nearest thing to a Mac."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.mac_like.__main__ import ROOT, SAMPLE, TESTS


def test_what_it_runs_is_there() -> None:
    assert [one for one in (*SAMPLE, *TESTS) if not (ROOT / one).exists()] == []


@pytest.mark.full
@pytest.mark.first
def test_a_sample_passes_on_the_nearest_thing_to_a_mac() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    argv = [sys.executable, "-m", "tests.mac_like", "-n", "0", "-m", "not full", *SAMPLE]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
