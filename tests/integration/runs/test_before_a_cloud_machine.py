"""Steps on this computer before a machine of a cloud: if they fail, the cloud was never asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, billed, machines

JOB = """
env: {REGISTERS: 40}
budget: {minutes: 2}
steps:
  - id: compile
    where: controller
    run: |
      echo "for sm_$FCCTL_CUDA_ARCH"
      echo '{"kind":"build","schema_version":1,"kernels":[{"registers":'$REGISTERS'}]}' > "$FCCTL_OUT/build.json"
    gates: ["max(build.kernels[*].registers) <= 128"]
  - id: there
    run: test -n "$FCCTL_EMULATOR_BOOT_ID"
    gates: ["max(build.kernels[*].registers) == 40"]
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    made = CloudWorkspace(tmp_path / "w", private_home, cloud)
    made.job("two", JOB)
    return made


def test_what_fails_here_wakes_nothing(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("run", "two", "--on", "l4", "--yes", "--set", "REGISTERS=255", check=100)
    assert machines(cloud) == {}
    record = workspace.only_run()
    assert (record["status"], record["cost"]["usd"]) == ("failed", 0)
    assert [step["status"] for step in record["steps"]] == ["failed", "skipped"]
    lines = (workspace.only_folder() / "journal.jsonl").read_text()
    assert '"cloud"' not in lines
    assert '"acquire"' not in lines


def test_what_passes_here_goes_on_there(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.target("a100", machine_type="a2-highgpu-1g", instance="other", usd_per_hour=3.7)
    workspace.type("run", "two", "--on", "l4", "--yes", check=0)
    record = workspace.only_run()
    assert [(step["id"], step["status"]) for step in record["steps"]] == [("compile", "passed"), ("there", "passed")]
    assert [gate["verdict"] for step in record["steps"] for gate in step["gates"]] == ["pass", "pass"]
    assert "for sm_89" in (workspace.only_folder() / "steps/compile/log.txt").read_text()
    assert billed(cloud) == []


def test_the_targets_gpu_is_compiled_for_and_a_job_for_here_alone_costs_nothing(
    workspace: CloudWorkspace, cloud: Emulator
) -> None:
    workspace.target("a100", machine_type="a2-highgpu-1g", instance="other", usd_per_hour=3.7)
    done = workspace.type("run", "two", "--on", "a100", "--steps", "compile", check=0)  # nobody is asked for a yes
    assert "may cost" not in done.err
    assert machines(cloud) == {}
    assert "for sm_80" in (workspace.only_folder() / "steps/compile/log.txt").read_text()
