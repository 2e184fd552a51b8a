"""Playing one row of the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency
from tests.integration.faults import happenings
from tests.integration.faults.fault_table import Row
from tests.support.virtual_cloud import CloudWorkspace, Done, Meter, billed, emulated, machine_by_hand, machines
from tests.support.waiting import wait_for

#: Until what happens to it has happened, and then as long as a system needs to go down.
WORK = """
steps:
  - id: work
    run: |
      touch "$HOME/at-work"
      until [ -e "$HOME/happened" ]; do sleep 0.1; done
      sleep 2
    timeout: 2m
budget: {minutes: 2}
"""


@dataclass
class Played:
    """What a row came to."""

    first: Done
    then: list[Done]
    workspace: CloudWorkspace
    cloud: Emulator
    meter: Meter
    record: dict[str, Any] | None
    left_on: list[str]
    zones: list[str]


def play(row: Row, folder: Path, home: Path) -> Played:
    scenario = dict(row.scenario)
    rotate = scenario.pop("rotate", False)
    latency = Latency(**scenario.pop("latency", {}))
    with emulated() as cloud:
        machine_by_hand(cloud, row.machine)
        for key, value in scenario.items():
            setattr(cloud.scenario, key, value)
        cloud.scenario.latency = latency
        workspace = CloudWorkspace(folder, home, cloud, row.ahead_s, **row.target)
        workspace.job("work", WORK)
        if rotate:
            workspace.type("hosts", "up", "l4", "--minutes", "10", "--yes", check=0)
            workspace.type("hosts", "down", "l4", check=0)
            cloud.control.rotate_host_keys("cudadent42-l4-dev")
        for fault in row.faults:
            cloud.faults.add(**{"for_s" if key == "for" else key: value for key, value in fault.items()})
        with Meter(cloud) as meter:
            thread = happenings.soon(cloud, row.during) if row.during else None
            first = workspace.type(*row.command.split())
            if thread is not None:
                thread.join()
            then = [workspace.type(*command.split(), check=code) for command, code in row.then]
            cloud.advance(180)  # what turns itself off has begun to by then
            wait_for(lambda: not any(state.endswith(" STOPPING") for state in billed(cloud)))
        records = list(workspace.runs().values())
        zones = sorted(machine.zone for machine in machines(cloud).values())
        left_on = billed(cloud)
        return Played(first, then, workspace, cloud, meter, records[-1] if records else None, left_on, zones)
