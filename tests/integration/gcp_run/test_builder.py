"""A computer without nvcc: the local steps run on a builder, a machine without a GPU, before the GPU machine starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.views.figures import usd
from tests.support import forked
from tests.support.cloud_workspace import PROJECT, ZONES, CloudWorkspace
from tests.support.tiers import sampled
from tests.support.waiting import wait_for
from tests.support.workspace import table

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="the emulated machine has this computer's nvcc")
#: The wmma kernels' two steps, short: the second has a gate on what the first compiled.
JOB = """
env: {SOURCE: main.cu}
steps:
  - id: compile
    where: controller
    activity: build
    timeout: 1m
    needs: {tools: [nvcc]}
    run: nvcc -arch="sm_$FCCTL_CUDA_ARCH" -Xptxas=-v -cubin -o "$FCCTL_ARTIFACTS/k.cubin" "$SOURCE" 2>&1 | tee build.log
    collect: [{reader: ptxas, file: build.log}]
  - id: registers
    where: controller
    timeout: 1m
    run: echo "boot ${FCCTL_EMULATOR_BOOT_ID:-none}"
    gates: ["max(steps.compile.build.kernels[*].registers) <= 120"]
  - id: there
    timeout: 1m
    run: 'true'
    gates: ["max(steps.compile.build.kernels[*].registers) <= 120"]
"""
#: The same without a compiler, which takes seconds.
QUICK = """
steps:
  - {id: compile, where: controller, timeout: 1m, needs: {tools: [nvcc]}, run: 'sleep ${NAP:-0}; echo "$FCCTL_HOST"'}
  - {id: there, timeout: 1m, run: 'true'}
env: {NAP: ""}
"""


class Laptop(CloudWorkspace):
    """A workspace whose commands find no nvcc, and whose target ``l4`` has the target ``builder``."""

    imports = (*forked.CLOUD, "tests.support.without_nvcc")

    def __init__(self, folder: Path, home: Path, cloud: Emulator, instance: str, **builder: Any) -> None:
        super().__init__(folder, home, cloud, instance=instance, builder="builder")
        values = {
            "kind": "gcp", "project": PROJECT, "instance": f"{instance}-builder", "zones": list(ZONES),
            "machine_type": "e2-standard-4", "provisioning": "spot", "api_endpoint": cloud.url, **builder,
        }  # fmt: skip
        with (folder / "fcctl.toml").open("a") as stream:
            stream.write(f"\n{table('targets.builder', values)}")
        self.job("quick", QUICK)
        (folder / "main.cu").write_text("__global__ void k(float *x) { x[threadIdx.x] *= 2; }\n")

    def env(self, **more: str) -> dict[str, str]:
        without = [p for p in os.environ["PATH"].split(":") if not Path(p, "nvcc").exists()]
        return super().env(PATH=":".join(without), CUDA_HOME="", CUDA_PATH="", **more)

    def on(self) -> dict[str, str]:
        """The states of the machines that were ever made, by name."""
        with self.cloud.world.lock:
            found = {m.path.rsplit("/", 1)[-1]: m.status for m in self.cloud.world.machines.values()}
        return {name.removeprefix(self.instance): s for name, s in found.items() if name.startswith(self.instance)}

    def record(self, target: str) -> dict[str, Any]:
        (found,) = [record for record in self.runs().values() if record["target"] == target]
        return found


@pytest.fixture
def laptop(
    shared_cloud: Emulator, tmp_path: Path, private_home: Path, request: pytest.FixtureRequest
) -> Callable[..., Laptop]:
    name = f"b{abs(hash(request.node.nodeid)) % 10**8}"
    return lambda **builder: Laptop(tmp_path / "w", private_home, shared_cloud, name, **builder)


@pytest.mark.full
def test_the_local_steps_run_there_and_the_machine_with_the_gpu_sees_their_figures(
    laptop: Callable[..., Laptop],
) -> None:
    workspace = laptop(release="keep")
    workspace.job("build", JOB)
    plan = workspace.json("run", "build", "--on", "l4", "--dry-run")
    assert 0 < plan["worst_case"]["builder_usd"] < plan["worst_case"]["usd"]
    assert (
        "(on builder, before the machine starts)" in workspace.fcctl("run", "build", "--on", "l4", "--dry-run").stdout
    )
    workspace.fcctl("run", "build", "--on", "l4")
    run, built = workspace.record("l4"), workspace.record("builder")
    assert [(s["id"], s["status"]) for s in run["steps"]] == [
        ("compile", "passed"), ("registers", "passed"), ("there", "passed"),
    ]  # fmt: skip
    assert all(gate["verdict"] == "pass" for step in run["steps"] for gate in step["gates"])
    folder = workspace.root / "results/runs" / run["run_id"]
    assert "ptxas info" in (folder / "steps/compile/log.txt").read_text()
    assert "boot none" not in (folder / "steps/registers/log.txt").read_text()
    assert (folder / "artifacts/k.cubin").stat().st_size > 0
    assert workspace.on() == {"-builder": "RUNNING", "": "TERMINATED"}  # it is kept for the next compile
    assert 0 < built["cost"]["usd"] <= plan["worst_case"]["builder_usd"]
    assert built["machine"]["began"] < run["machine"]["began"]
    lines = workspace.json("cost", "ledger", "--lines")["lines"]
    assert sum(one["usd"] for one in lines if one.get("run_id") == built["run_id"]) > 0
    assert workspace.json("results", "show", "last")["run"]["run_id"] == run["run_id"]
    second = workspace.fcctl("run", "quick", "--on", "l4").stderr
    assert "builder stays on" in second
    assert workspace.operations().count("insert") == 1


def test_a_compile_error_costs_no_second_of_a_gpu(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    workspace.job("build", JOB)
    (workspace.root / "main.cu").write_text("__global__ void k(float *x) { nonsense }\n")
    workspace.fcctl("run", "build", "--on", "l4", check=100)
    assert workspace.on() == {"-builder": "TERMINATED"}
    record = workspace.record("l4")
    assert (record["status"], record["cost"]["usd"]) == ("failed", 0)
    assert [s["status"] for s in record["steps"]] == ["failed", "skipped", "skipped"]


def test_its_worst_case_counts_against_the_caps(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    plan = workspace.json("run", "quick", "--on", "l4", "--dry-run")["worst_case"]
    costs = workspace.json("cost", "plan", "quick", "--on", "l4")
    assert costs["builder"]["worst_usd"] == pytest.approx(plan["builder_usd"], rel=1e-4)
    assert costs["worst_usd"] == pytest.approx(plan["total_usd"], rel=1e-4)
    assert plan["total_usd"] == pytest.approx(plan["usd"] + plan["builder_usd"])
    shown = workspace.fcctl("cost", "plan", "quick", "--on", "l4").stdout
    assert f"It costs at most {usd(plan['total_usd'])}: " in shown
    assert f"Of that, {usd(plan['builder_usd'])} is for builder, at $0." in shown
    assert (
        f"total       {usd(plan['total_usd'])} at most"
        in workspace.fcctl("run", "quick", "--on", "l4", "--dry-run").stdout
    )
    alone = str(round(plan["usd"] + plan["builder_usd"] / 2, 4))
    refused = workspace.fcctl("run", "quick", "--on", "l4", "--budget", alone, check=5)
    assert "builder, which compiles for it, may cost $" in refused.stderr
    assert workspace.on() == {}


def test_in_a_session_it_counts_against_the_rest_of_the_session_and_the_caps(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    workspace.fcctl("session", "start", "--on", "l4", "--budget", "0.1")
    refused = workspace.fcctl("run", "quick", "--on", "l4", check=5).stderr
    assert "(the rest of session " in refused
    assert "builder, which compiles for it, may cost $" in refused
    workspace.fcctl("session", "stop")
    workspace.fcctl("session", "start", "--on", "l4", "--budget", "1")
    day = {"FCCTL_BUDGET_PER_DAY_USD": "100"}
    plan = workspace.json("run", "quick", "--on", "l4", "--dry-run")["worst_case"]
    caps = json.loads(workspace.fcctl("cost", "budget", "--json", env=day).stdout)["caps"]
    free = next(cap["free_usd"] for cap in caps if cap["usd"] == 100)
    day = {"FCCTL_BUDGET_PER_DAY_USD": str(100 - free + plan["builder_usd"] / 2)}
    assert "of the day's cap of" in workspace.fcctl("run", "quick", "--on", "l4", env=day, check=5).stderr
    assert workspace.on() == {"": "RUNNING"}
    workspace.fcctl("session", "stop")


@pytest.mark.full
def test_a_builder_without_stock_is_said_and_the_steps_run_here(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop(zones=["us-east4-a"], on_stockout="fail")
    workspace.cloud.faults.add(action="instances.insert", path="zones/us-east4-a/*", do={"stockout": {}})
    done = workspace.fcctl("run", "quick", "--on", "l4")
    assert "builder could not be used to compile: " in done.stderr, done.stderr
    assert workspace.on() == {"": "TERMINATED"}
    assert [r["status"] for r in workspace.runs().values() if r["target"] == "l4"] == ["passed"]


def test_it_is_left_alone_where_nvcc_is(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    workspace.fcctl("run", "quick", "--on", "l4", "--steps", "compile", env={"PATH": os.environ["PATH"]})
    assert workspace.on() == {}


#: Lines of both journals: the builder is asked for, has the steps, has ended them, and is to be stopped.
@pytest.mark.parametrize("line", sampled((5, 11, 12, 15), keep=[12]))
def test_a_killed_controller_leaves_none_on(line: int, laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    assert workspace.killed("after", line, "run", "quick", "--on", "l4") == -signal.SIGKILL
    with workspace.cloud.world.lock:
        scheduling = [m.resource["scheduling"] for m in workspace.cloud.world.machines.values()
                      if m.path.endswith(f"/{workspace.instance}-builder")]  # fmt: skip
    assert all(one["maxRunDuration"] and one["instanceTerminationAction"] == "STOP" for one in scheduling)
    if "RUNNING" in workspace.on().values():
        assert f"{workspace.instance}-builder" in workspace.fcctl("hosts", "audit", check=None).stdout
    wait_for(lambda: not workspace.active() or not workspace.fcctl("ps"))
    assert set(workspace.on().values()) <= {"TERMINATED"}
    assert workspace.record("l4")["status"] == "error"
    assert workspace.json("cost", "budget")["reserved_usd"] == 0


@pytest.mark.full
def test_ctrl_c_ends_the_build(laptop: Callable[..., Laptop]) -> None:
    workspace = laptop()
    process = workspace.start("run", "quick", "--on", "l4", "--set", "NAP=300")
    journals = workspace.root / "results/active"
    wait_for(lambda: [j for j in journals.glob("*-builder-*/journal.jsonl") if '"submitted"' in j.read_text()])
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert workspace.on() == {"-builder": "TERMINATED"}
    assert {r["target"]: r["status"] for r in workspace.runs().values()} == {"l4": "cancelled", "builder": "cancelled"}
