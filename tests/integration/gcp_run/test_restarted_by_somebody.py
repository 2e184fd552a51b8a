"""A warm machine that somebody stopped and started: what is remembered of its limit was that of another start."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.virtual_cloud import CloudWorkspace, billed, emulated, machines, start_by_hand, stop_by_hand


def test_its_limit_is_asked_for_again(tmp_path: Path, private_home: Path) -> None:
    with emulated() as cloud:
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, release="keep", keep_minutes=60)
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        stop_by_hand(cloud)
        cloud.advance(120)
        start_by_hand(cloud)
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        journals = [workspace.root / "results/runs" / run_id / "journal.jsonl" for run_id in workspace.runs()]
    told = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    lines = sorted(told, key=lambda line: line["time"])  # ids of the same second are in no order
    acquired = [line["data"] for line in lines if line["kind"] == "acquired"]
    assert [facts["warm"] for facts in acquired] == [False, True, False]
    assert acquired[2]["deadline"] > acquired[1]["deadline"] + 100


def test_a_label_that_is_refused_once_is_set_again(tmp_path: Path, private_home: Path) -> None:
    """With the label of a run that died before its first step, the machine would be left on for that run."""
    with emulated() as cloud:
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        (machine,) = machines(cloud).values()
        machine.resource["labels"]["fcctl-run"] = "20260101t000000z-noop-l4-abcdef"
        cloud.faults.add(action="instances.setLabels", nth=1, do={"http": {"status": 412, "reason": "conditionNotMet"}})
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        assert billed(cloud) == []
