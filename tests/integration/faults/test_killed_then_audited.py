"""A controller killed at a line of its journal; then only ``fcctl hosts audit --stop``: nothing stays on.

At every line: test_killed_at_every_line_of_its_journals of the simulation.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.tiers import sampled
from tests.support.virtual_cloud import CloudWorkspace, billed, emulated, machine_by_hand, machines
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")


def start(workspace: CloudWorkspace, *args: str, kill: forked.Kill | None = None) -> subprocess.Popen[str]:
    """``fcctl ARGS`` in a process of its own, in the cloud's time."""
    url = workspace.emulator.url
    return forked.start(args, workspace.root, workspace.env(), forked.CLOUD, kill=kill, clock=url)


def code(process: subprocess.Popen[str]) -> int:
    with process:
        print(*process.communicate())
    return process.returncode


#: Of begun, acquire, fence, metadata, start, label, acquired, arm, armed, sync, submit, submitted, ended, collected,
#: release, stop, released, complete: label, submit, ended, released.
@pytest.mark.parametrize("line", sampled((6, 11, 13, 17), keep=(11,)))
def test_killed_before_a_line_and_after_the_effect_of_the_one_before(
    line: int, tmp_path: Path, private_home: Path
) -> None:
    with emulated() as cloud:
        machine_by_hand(cloud, "stopped")
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
        process = start(workspace, "run", "noop", "--on", "l4", "--yes", kill=("before", line))
        assert code(process) == -signal.SIGKILL
        cloud.advance(5)  # whatever was asked for has happened
        was_on = bool(billed(cloud))
        said = workspace.type("hosts", "audit", "--stop")
        if was_on:
            assert "noop-l4" in said.out
        # A run that still works there is not disturbed; it is ended by whoever collects it.
        if billed(cloud):
            assert "runs there" in said.out
            wait_for(lambda: workspace.type("ps") and not workspace.active())
        assert said.code == 0 or not billed(cloud)
        assert billed(cloud) == []
        assert len(machines(cloud)) == 1
        wait_for(lambda: workspace.type("ps") and not workspace.active())
        assert billed(cloud) == []


@pytest.mark.full
@pytest.mark.parametrize("delay_s", sampled([0.0, 0.2, 0.6], keep=[0.2]))
def test_hosts_up_killed_while_it_wakes(delay_s: float, tmp_path: Path, private_home: Path) -> None:
    """It has no journal; the machine is found by its name, and has its limit from the start."""
    with emulated() as cloud:
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
        process = start(workspace, "hosts", "up", "l4", "--yes")
        wait_for(lambda: billed(cloud))
        time.sleep(delay_s)
        process.kill()
        assert code(process) in (-signal.SIGKILL, 0)
        cloud.advance(5)
        (machine,) = machines(cloud).values()
        assert machine.resource["scheduling"]["maxRunDuration"]["seconds"] in (3600, "3600")
        verdict = workspace.type("hosts", "audit", "--json").json["machines"][0]["verdict"]
        assert verdict in ("stray", "up")
        workspace.type("hosts", "down", "l4", check=0)
        assert billed(cloud) == []
