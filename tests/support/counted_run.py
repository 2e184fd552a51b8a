"""A run whose steps say that they ran, for tests that kill its controller."""

from __future__ import annotations

from pathlib import Path

from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

JOB = """
steps:
  - {id: one, timeout: 60, run: 'echo one >> "$COUNT"'}
  - id: two
    timeout: 60
    run: |
      echo two >> "$COUNT"
      echo '{"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}' > "$FCCTL_OUT/m.json"
    gates: [metrics.metrics.answer == 42]
env: {COUNT: unset}
"""


def pick_up(workspace: Workspace) -> None:
    """``fcctl ps`` until no run is active; what a user would see over the next seconds."""
    wait_for(lambda: not workspace.active() or not workspace.fcctl("ps"))


def check_whole(workspace: Workspace, count: Path) -> None:
    """No step ran twice, nothing is lost, and what happened is what the record says."""
    ran = count.read_text().split() if count.exists() else []
    record = workspace.only_run()
    if record["status"] == "passed":
        assert ran == ["one", "two"]
        assert (workspace.only_folder() / "steps/two/out/m.json").is_file()
        assert [gate["verdict"] for gate in record["steps"][1]["gates"]] == ["pass"]
    else:
        assert record["status"] == "error"
        assert ran == []
        assert "no step ran" in record["message"] or "did not receive" in record["message"]
    assert workspace.json("results", "ls")["runs"][0]["run_id"] == record["run_id"]
