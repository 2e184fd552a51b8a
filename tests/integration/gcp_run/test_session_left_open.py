"""A session that is left open: the machine's own timer or the cloud ends it, and the next command says so.

fcctl runs in this process, in the emulated cloud's time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, Meter, billed

pytest.importorskip("google.cloud.compute_v1")

RATE = 0.706832  # dollars an hour of g2-standard-4 in us-west1


@pytest.mark.full
def test_nobody_comes_and_the_next_command_says_so(cloud: Emulator, tmp_path: Path, private_home: Path) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
    start = ("session", "start", "--on", "l4", "--budget", "1", "--idle-minutes", "5")
    with Meter(cloud) as meter:
        workspace.type(*start, check=0)
        assert "over" not in workspace.type("ps", check=0).err
        cloud.advance(12 * 60)
        assert billed(cloud) == []
    assert meter.longest_s < 7 * 60
    told = workspace.type("ps", check=0).err
    assert " ended: " in told
    assert "it cost $0.0" in told
    assert workspace.type("ps", check=0).err == ""
    workspace.type(*start, check=0)
    cloud.advance(12 * 60)
    done = workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    assert " ended: " in done.err
    assert workspace.only_run()["status"] == "passed", "with a start of its own"
    assert billed(cloud) == []
