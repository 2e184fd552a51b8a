"""Results that are larger than a run may bring home: they are left out by name, and everything else ends as always."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.tiers import sampled

Make = Callable[..., CloudWorkspace]
JOB = """
steps:
  - id: write
    timeout: 60
    run: |
      head -c 2000000 /dev/zero > "$FCCTL_OUT/big"
      head -c 400000 /dev/zero > "$FCCTL_OUT/small"
"""


@pytest.mark.parametrize("release", sampled(["stop", "delete"], keep=("stop",)))
def test_the_rest_comes_home_and_the_machine_goes_off(release: str, shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud, release=release)
    workspace.job("work", JOB)
    done = workspace.changed("most", 1_000_000, "run", "work", "--on", "l4")
    assert done.returncode == 0, done.stderr
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}, "never deleted: its disk has the only copy"
    assert workspace.active() == []
    record = workspace.only_run()
    assert (record["status"], record["omitted"]) == (
        "passed", [{"path": "steps/write/out/big", "reason": "too_large"}],
    )  # fmt: skip
    assert sorted(path.name for path in (workspace.only_folder() / "steps/write/out").iterdir()) == ["small"]
    assert "too large  steps/write/out/big" in " ".join(
        done.stdout.split("Not collected from the host")[1].splitlines()
    )
    said = (
        f"{workspace.instance} instead of deleting it: steps/write/out/big is only on its disk, because it is too"
        f" large to fetch"
    )
    assert (said in done.stderr) is (release == "delete")
