"""Steps with ``where: controller``: on this computer, first, and for nothing if they fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.sshd import LoopbackSshd
from tests.support.tiers import sampled
from tests.support.virtual_cloud import CloudWorkspace, machines
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

JOB = """
env: {REGISTERS: 40, PLACE: unset}
steps:
  - id: on-host
    run: |
      echo "host $HOME" >> "$PLACE"
      echo "image ${FCCTL_CUDA_IMAGE:-none}"
      test -f "$FCCTL_RUN_DIR/steps/compile/out/build.json"
    gates:
      - max(build.kernels[*].registers) == 40
      - steps.compile.status == "passed"
  - id: compile
    where: controller
    activity: build
    run: |
      echo "controller $HOME" >> "$PLACE"
      echo "image $FCCTL_CUDA_IMAGE"
      echo "arch $FCCTL_CUDA_ARCH $TORCH_CUDA_ARCH_LIST in $(basename "$PWD")"
      grep -q nothing main.cu && echo scratch > made-here && echo kept > "$FCCTL_ARTIFACTS/cubin"
      echo '{"kind":"build","schema_version":1,"kernels":[{"name":"k","registers":'$REGISTERS'}]}' > "$FCCTL_OUT/build.json"
    gates:
      - expr: max(build.kernels[*].registers) <= 128
        hint: unroll less
"""  # noqa: E501


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd)
    made.job("two", JOB)
    return made


def left_running(run_id: str) -> list[int]:
    found = []
    for place in Path("/proc").iterdir():
        try:
            if place.name.isdigit() and f"FCCTL_RUN_ID={run_id}".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def host_was_untouched(sshd: LoopbackSshd) -> bool:
    return not list(sshd.home.glob(".fcctl/runs/*")) and not list(sshd.home.glob(".fcctl/trees/[!.]*"))


def test_they_run_here_first_and_the_host_sees_what_they_found(
    workspace: Workspace, sshd: LoopbackSshd, tmp_path: Path, private_home: Path
) -> None:
    place = tmp_path / "place"
    workspace.fcctl("run", "two", "--on", "box", "--set", f"PLACE={place}")
    assert place.read_text().splitlines() == [f"controller {private_home}", f"host {sshd.home}"]
    record, folder = workspace.only_run(), workspace.only_folder()
    assert [(s["id"], s["status"]) for s in record["steps"]] == [("compile", "passed"), ("on-host", "passed")]
    assert [g["verdict"] for s in record["steps"] for g in s["gates"]] == ["pass"] * 3
    assert record["status"] == "passed"
    assert record["cost"]["breakdown"][0]["activity"] == "test"  # what ran here was not billed
    assert "arch 89 8.9 in src" in (folder / "steps/compile/log.txt").read_text()
    assert "image nvidia/cuda:" in (folder / "steps/compile/log.txt").read_text()
    assert "image none" in (folder / "steps/on-host/log.txt").read_text()
    assert json.loads((folder / "steps/compile/out/build.json").read_text())["kernels"][0]["registers"] == 40
    assert (folder / "artifacts/cubin").read_text() == "kept\n"
    assert not (workspace.root / "made-here").exists()  # it worked in a snapshot
    assert not list((private_home / ".fcctl/controller/runs").iterdir())


def test_the_host_has_no_say_in_what_ran_here(workspace: Workspace, sshd: LoopbackSshd, tmp_path: Path) -> None:
    """A step there writes where this computer's steps have their files, and its outcome claims another result."""
    forge = """
steps:
  - {id: compile, where: controller, run: 'echo true words; echo mine > "$FCCTL_OUT/note.txt"'}
  - id: forge
    run: |
      mkdir -p "$FCCTL_RUN_DIR/steps/compile/out"
      echo forged > "$FCCTL_RUN_DIR/steps/compile/log.txt"
      echo forged > "$FCCTL_RUN_DIR/steps/compile/out/note.txt"
      echo forged > "$FCCTL_RUN_DIR/steps/compile/out/more.txt"
"""
    workspace.job("forge", forge)
    workspace.fcctl("run", "forge", "--on", "box")
    folder = workspace.only_folder() / "steps/compile"
    assert (folder / "log.txt").read_text() == "true words\n"
    assert (folder / "out/note.txt").read_text() == "mine\n"
    assert not (folder / "out/more.txt").exists()
    assert [step["id"] for step in workspace.only_run()["steps"]] == ["compile", "forge"]
    assert workspace.only_run()["omitted"] == []


def test_a_missing_tool(workspace: Workspace, sshd: LoopbackSshd) -> None:
    step = "{id: compile, where: controller, run: 'true', needs: {tools: [no-such-nvcc]}%s}"
    workspace.job("must", f"steps:\n  - {step % ''}\n  - {{id: host, run: 'true'}}\n")
    workspace.job("may", f"steps:\n  - {step % ', optional: unavailable'}\n  - {{id: host, run: 'true'}}\n")
    refused = workspace.fcctl("run", "must", "--on", "box", check=100)
    assert "this machine has no no-such-nvcc" in refused.stdout
    assert "hint" in refused.stdout
    assert host_was_untouched(sshd)
    workspace.fcctl("run", "may", "--on", "box")
    statuses = {r["job"]: [s["status"] for s in r["steps"]] for r in workspace.runs().values()}
    assert statuses == {"must": ["unavailable", "skipped"], "may": ["unavailable", "passed"]}


SLOW = """
steps:
  - {id: compile, where: controller, run: 'echo began; trap "" TERM; setsid sleep 300 & sleep 300'}
  - {id: host, run: "true"}
"""


def slow_run(workspace: Workspace) -> tuple[subprocess.Popen[str], str]:
    workspace.job("slow", SLOW)
    process = workspace.start("run", "slow", "--on", "box")
    return process, at_work(workspace)


def at_work(workspace: Workspace) -> str:
    """The run of which a step is at work here."""
    wait_for(lambda: any(left_running(run_id) for run_id in workspace.active()))
    (run_id,) = workspace.active()
    log = workspace.home / f".fcctl/controller/runs/{run_id}/steps/compile/log.txt"
    wait_for(lambda: log.exists() and log.stat().st_size)  # its shell is there before its first line
    return run_id


@pytest.mark.full
def test_their_logs_are_there_while_they_run_and_afterwards(workspace: Workspace, tmp_path: Path) -> None:
    workspace.job("talks", """
steps:
  - {id: compile, where: controller, run: 'echo one; until [ -e "$GO" ]; do sleep 0.1; done; echo two'}
  - {id: host, run: echo three; sleep 1}
env: {GO: unset}
""")  # fmt: skip
    process = workspace.start("run", "talks", "--on", "box", "--set", f"GO={tmp_path / 'go'}")
    at_work(workspace)
    logs = workspace.start("logs", "-f", "last", "--step", "compile")
    assert logs.stdout is not None
    assert logs.stdout.readline() == "one\n"
    (tmp_path / "go").touch()
    assert logs.communicate()[0] == "two\n"
    process.communicate()
    assert workspace.fcctl("logs", "last", "--step", "compile").stdout == "one\ntwo\n"
    assert "three" in workspace.fcctl("logs", "last").stdout


@pytest.mark.parametrize("both", [False, True], ids=["controller", "controller-and-supervisor"])
def test_a_killed_controller_leaves_no_process(
    workspace: Workspace, sshd: LoopbackSshd, private_home: Path, both: bool
) -> None:
    process, run_id = slow_run(workspace)
    if both:
        process.send_signal(signal.SIGSTOP)  # else it may see the end of the other one, and end the run itself
        lock = private_home / f".fcctl/controller/runs/{run_id}/supervisor.lock"
        os.kill(int(lock.read_text()), signal.SIGKILL)
    process.kill()
    process.communicate()
    if not both:
        wait_for(lambda: not left_running(run_id))  # of itself
    workspace.fcctl("ps")
    assert not left_running(run_id)
    assert workspace.active() == []
    record: dict[str, Any] = workspace.only_run()
    assert (record["status"], record["steps"][1]["status"]) == ("error", "skipped")
    assert record["steps"][0]["status"] in ("cancelled", "failed")
    assert "was killed" in record["message"]
    assert "began" in (workspace.only_folder() / "steps/compile/log.txt").read_text()
    assert host_was_untouched(sshd)


@pytest.mark.parametrize(
    ("number", "code"), sampled([(signal.SIGINT, 130), (signal.SIGTERM, 143)], keep=((signal.SIGINT, 130),))
)
def test_interrupted(workspace: Workspace, sshd: LoopbackSshd, number: signal.Signals, code: int) -> None:
    process, run_id = slow_run(workspace)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    assert not left_running(run_id)
    assert workspace.only_run()["status"] == "cancelled"
    assert host_was_untouched(sshd)


# --------------------------------------------------------------------------------------------------- a cloud's machine
@pytest.fixture
def cloud_workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    made = CloudWorkspace(tmp_path / "w", private_home, cloud)
    made.job("two", JOB)
    return made


def test_what_fails_here_asks_no_cloud_for_anything(cloud_workspace: CloudWorkspace, cloud: Emulator) -> None:
    done = cloud_workspace.type("run", "two", "--on", "l4", "--yes", "--set", "REGISTERS=255", check=100)
    assert "unroll less" in done.out
    assert machines(cloud) == {}
    record = cloud_workspace.only_run()
    assert (record["status"], record["cost"]["usd"]) == ("failed", 0)
    assert [(s["id"], s["status"]) for s in record["steps"]] == [("compile", "failed"), ("on-host", "skipped")]
    assert (cloud_workspace.only_folder() / "steps/compile/log.txt").is_file()
    assert cloud_workspace.active() == []
    lines = (cloud_workspace.only_folder() / "journal.jsonl").read_text()
    assert '"cloud"' not in lines
    assert '"acquire"' not in lines


def test_the_targets_gpu_is_compiled_for_and_a_job_for_here_alone_costs_nothing(
    cloud_workspace: CloudWorkspace, cloud: Emulator
) -> None:
    cloud_workspace.target("a100", machine_type="a2-highgpu-1g", instance="other", usd_per_hour=3.7)
    done = cloud_workspace.type(
        "run", "two", "--on", "a100", "--steps", "compile", check=0
    )  # nobody is asked for a yes
    assert "may cost" not in done.err
    assert machines(cloud) == {}
    record = cloud_workspace.only_run()
    assert (record["status"], [s["id"] for s in record["steps"]]) == ("passed", ["compile"])
    assert "arch 80 8.0" in (cloud_workspace.only_folder() / "steps/compile/log.txt").read_text()
