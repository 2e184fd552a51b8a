"""The demo as `make demo` runs it: the main job on the sandbox, from an empty home to its table, files and bill."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import scratch
from tests.support.forked import FCCTL
from tests.support.sshd import end_processes_of
from tests.support.workspace import REPOSITORY, Workspace

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
Said = subprocess.CompletedProcess[str]
SHAPES = ("mission", "s64", "s128", "s256", "batch2")
#: PyTorch's threads spin while they wait for each other: beside other tests on two processors, most of the time.
ONE_THREAD = '[targets.sandbox]\nenv = {OMP_NUM_THREADS = "1"}\n'
pytestmark = [
    pytest.mark.full,
    pytest.mark.first,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the kernels are compared with PyTorch"),
]


@pytest.fixture
def demo() -> Iterator[tuple[Workspace, Said]]:
    base = Path(tempfile.mkdtemp(prefix="fcd", dir=scratch.folder()))
    (base / "home").mkdir()
    (base / "t").mkdir()
    root = base / "flashcore"
    shutil.copytree(REPOSITORY / "jobs", root / "jobs")
    shutil.copytree(REPOSITORY / "kernels", root / "kernels", ignore=shutil.ignore_patterns("__pycache__", "build"))
    workspace = Workspace(root, base / "home")
    shutil.copy(REPOSITORY / "fcctl.toml", root)
    user = base / "home/.config/fcctl/config.toml"
    user.parent.mkdir(parents=True)
    user.write_text(ONE_THREAD)
    done = workspace.fcctl(
        "run",
        "phase0",
        "--on",
        "sandbox",
        check=None,
        env={"TMUX_TMPDIR": str(base / "t"), "COLUMNS": "80"},
    )
    yield workspace, done
    workspace.fcctl("emulator", "--stop")
    end_processes_of(base / "home")
    shutil.rmtree(base, ignore_errors=True)


def lookup(value: Any, path: str) -> Any:
    """What ``jq PATH`` answers, for paths of plain keys."""
    for key in path.strip(".").split("."):
        value = value[key]
    return value


def it_passes_and_says_so(workspace: Workspace, done: Said) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "phase0 on sandbox  ✓ passed in" in done.stdout
    assert "20/20 cases passed" in done.stdout
    assert "Preflight" in done.stdout
    folder = workspace.only_folder()
    assert f"Results  results/runs/{folder.name}" in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]


def the_machine_was_woken_and_is_off_again(workspace: Workspace, done: Said) -> None:
    told = [line.split(":")[0] for line in done.stderr.splitlines() if not line.startswith("note")]
    order = ["source", "wake", "sync", "step preflight", "step bench", "collect", "release"]
    assert [told.index(phase) for phase in order] == sorted(told.index(phase) for phase in order)
    machine = workspace.only_run()["machine"]
    assert (machine["zone"], machine["released"]) == ("us-west1-c", "stopped")


def it_says_what_it_would_have_cost(workspace: Workspace, done: Said) -> None:
    cost = workspace.only_run()["cost"]
    assert cost["emulated"]
    assert cost["usd_per_hour"] == 0.706832, "the list price of a g2-standard-4 in us-west1"
    assert math.isclose(cost["usd"], cost["billed_s"] / 3600 * 0.706832, abs_tol=1e-5)
    assert math.isclose(cost["usd"], sum(line["usd"] for line in cost["breakdown"]), abs_tol=1e-5)
    assert {"boot", "sync", "bench", "collect", "stop"} <= {line["activity"] for line in cost["breakdown"]}
    assert f"would have cost ${cost['usd']:.4f} (emulated)" in done.stdout
    assert "nothing was spent" in done.stdout


def every_shape_stands_beside_sdpa(workspace: Workspace, done: Said) -> None:
    table = done.stdout[done.stdout.index("\nBenchmark") : done.stdout.index("\nGates")]
    assert "SDPA" in table
    header = next(line for line in table.splitlines() if line.split()[:1] == ["case"])
    assert header.split().count("p50") == 2, "ours and SDPA's"
    assert {"p90", "p99"} <= set(header.split())
    rows = [line.split() for line in table.splitlines() if line.split()[:1] and line.split()[0] in SHAPES]
    assert [row[0] for row in rows] == list(SHAPES)
    for row in rows:
        first = header.split().index("p50")
        p50, p90, p99 = map(float, row[first : first + 3])
        assert 0 < p50 <= p90 <= p99
        assert "as fast" in " ".join(row) or {"faster", "slower"} & set(row)
    assert "null " in table


def the_steps_gates_and_documents_are_recorded(workspace: Workspace, done: Said) -> None:
    record = workspace.only_run()
    assert (record["status"], record["exit_code"]) == ("passed", 0)
    statuses = {step["id"]: step["status"] for step in record["steps"]}
    assert statuses.pop("preflight") in ("passed", "warned")
    assert statuses.pop("resources") == ("passed" if NVCC else "unavailable"), "never passed without a compiler"
    assert statuses == {"build": "passed", "test": "passed", "bench": "passed"}
    judged = [g for step in record["steps"] for g in step["gates"]]
    assert {g["verdict"] for g in judged if g["verdict"] != "not_applicable"} == {"pass"}
    assert len(judged) == (10 if NVCC else 7)
    kinds = {document["kind"] for step in record["steps"] for document in step["documents"]}
    assert kinds >= {"environment", "build", "correctness", "benchmark"}
    (reference,) = (d["path"] for s in record["steps"] for d in s["documents"] if d["kind"] == "correctness")
    correctness = json.loads((workspace.only_folder() / reference).read_text())
    names = [case["name"] for case in correctness["cases"]]
    assert len(names) == 20
    assert sum("/" in name for name in names) == 15, "5 shapes x 3 seeds"


def the_users_scripts_find_their_figures(workspace: Workspace, done: Said) -> None:
    argv = [*FCCTL, "results", "export", "last", "--format", "flashcore"]
    exported = subprocess.run(argv, cwd=workspace.root, env=workspace.env(), capture_output=True, text=True, check=True)
    found = json.loads(exported.stdout)
    for side in ("flashcore", "pytorch"):
        p50, p90, p99 = (lookup(found, f".results.mission.{side}.{key}") for key in ("p50", "p90", "p99"))
        assert 0 < p50 <= p90 <= p99
    assert lookup(found, ".config") == {"B": 1, "H": 8, "S": 512, "D": 64}
    ratio = lookup(found, ".results.mission.pytorch.p50") / lookup(found, ".results.mission.flashcore.p50")
    assert math.isclose(lookup(found, ".speedup"), ratio, rel_tol=1e-6)
    if shutil.which("jq"):
        answer = subprocess.run(
            ["jq", "-e", ".results.mission.flashcore.p50"],
            input=exported.stdout,
            capture_output=True,
            text=True,
            check=True,
        )
        assert float(answer.stdout) == lookup(found, ".results.mission.flashcore.p50")


def it_can_be_shown_again(workspace: Workspace, done: Said) -> None:
    again = workspace.fcctl("results", "show", "last:phase0", env={"COLUMNS": "80"})
    assert again.stdout == done.stdout


def test_the_demo(demo: tuple[Workspace, Said]) -> None:
    """One test, since the run is made once: a minute of a whole processor."""
    for check in (
        it_passes_and_says_so,
        the_machine_was_woken_and_is_off_again,
        it_says_what_it_would_have_cost,
        every_shape_stands_beside_sdpa,
        the_steps_gates_and_documents_are_recorded,
        the_users_scripts_find_their_figures,
        it_can_be_shown_again,
    ):
        check(*demo)
