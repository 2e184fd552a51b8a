"""A machine that is on for nobody: the audit that finds it tells the program and the webhook of ``[notify]``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.hook import listening
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, billed, emulated, machine_by_hand


def test_found_by_the_audit_told_and_stopped(tmp_path: Path, private_home: Path) -> None:
    with emulated() as cloud, listening() as hook:
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
        machine_by_hand(cloud, "running")
        cloud.advance(3600)
        told = tmp_path / "told.jsonl"
        command = json.dumps(["sh", "-c", f"printf '%s ' $FCCTL_EVENT >> {told}; cat >> {told}; echo >> {told}"])
        with (workspace.root / "fcctl.toml").open("a") as file:
            file.write(f'\n[notify]\ncommand = {command}\nwebhook = "{hook.url}"\n')
        workspace.type("hosts", "audit", check=10)
        workspace.type("hosts", "audit", "--stop", "--quiet", check=0)
        assert billed(cloud) == []
        workspace.type("hosts", "audit", check=0)
    lines = told.read_text().splitlines()
    assert len(lines) == 2, "each audit that finds it says so, and none once it is off"
    event, _, text = lines[0].partition(" ")
    body = json.loads(text)
    assert (event, body["event"]) == ("left_running", "left_running")
    assert [(m["name"], m["zone"]) for m in body["machines"]] == [(INSTANCE, "us-west1-c")]
    assert 0.5 < body["usd_per_hour"] <= body["machines"][0]["usd_so_far"] * 1.1
    assert "fcctl hosts audit --stop" in body["text"]
    assert [sent for _, sent in hook.got] == [json.loads(line.partition(" ")[2]) for line in lines]
