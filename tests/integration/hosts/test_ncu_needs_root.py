"""Profiles on a machine whose driver keeps GPU counters for administrators: an owned one, and somebody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stock_machine import StockMachine, stock_machine
from tests.support.workspace import REPOSITORY, Workspace

_NCU = """
case "$*" in *--import*) exec cat "{csv}" ;; esac
if [ "${{FCCTL_AS_ROOT-}}" != 1 ]; then
  echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
  exit 1
fi
[ "$KEPT" = "by sudo" ] || {{ echo "the environment is lost" >&2; exit 9; }}
printf 'NVR\\0' >"$2"
"""
_STEP = """
  - id: {name}
    run: 'ncu -o "$FCCTL_OUT/{name}.ncu-rep" true || exit 69'
    optional: unavailable
    exit_codes: {{"69": unavailable}}
    collect: [{{reader: ncu, file: "$FCCTL_OUT/{name}.ncu-rep"}}]
    gates: ["len(profile.kernels) >= 1"]
"""
NAMES = ("baseline", "candidate-stage2", "candidate-ws-p1", "candidate-ws-p2")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[StockMachine]:
    with stock_machine(tmp_path / "m") as made:
        made.program("ncu", _NCU.format(csv=REPOSITORY / "tests/fixtures/readers/ncu/h100_raw.csv"))
        yield made


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, machine: StockMachine) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, machine.server)
    made.add_ssh("owned", machine.server, owned=True)
    made.job("profiles", "env: {KEPT: by sudo}\nsteps:\n" + "".join(_STEP.format(name=name) for name in NAMES))
    return made


def only_run(workspace: Workspace) -> tuple[dict[str, Any], Path]:
    ((run_id, record),) = workspace.runs().items()
    return record, workspace.root / "results/runs" / run_id


def test_on_an_owned_machine_every_report_is_made_and_every_gate_decided(
    workspace: Workspace, machine: StockMachine
) -> None:
    workspace.fcctl("run", "profiles", "--on", "owned")
    record, folder = only_run(workspace)
    assert record["status"] == "passed"
    assert [gate["verdict"] for step in record["steps"] for gate in step["gates"]] == ["pass"] * 4
    assert {step["message"] for step in record["steps"]} == {
        "ncu ran through sudo, because only administrators may read GPU performance counters on this machine"
    }
    assert sorted(path.stem for path in folder.rglob("*.ncu-rep")) == sorted(NAMES)
    there = list((machine.server.home / ".fcctl/runs").rglob("*.ncu-rep"))
    assert len(there) == 4
    if os.getuid() == 0:  # else there is only one owner
        assert {path.stat().st_uid for path in there} == {1000}, "whom the machine's `id` names"


@pytest.mark.skipif(os.getuid() != 0, reason="there is only one owner")
@pytest.mark.parametrize("option", ["-o {}", "--export {}", "--export={}"])
def test_a_report_outside_the_runs_folder_is_the_users_and_nothing_else_is(
    workspace: Workspace, machine: StockMachine, tmp_path: Path, option: str
) -> None:
    machine.program("ncu", 'shift $(($# - 2))\n: > "$1.ncu-rep"; : > "$1"\n')
    report = tmp_path / "a report"
    run = f"ncu {option.format(chr(39) + str(report) + chr(39))} '{report}' true"
    workspace.job("profiles", f"steps:\n  - id: one\n    run: |\n      {run}\n")
    workspace.fcctl("run", "profiles", "--on", "owned")
    assert (tmp_path / "a report.ncu-rep").stat().st_uid == 1000
    assert report.stat().st_uid == 0


def test_on_a_machine_of_others_the_run_is_incomplete_with_one_fix(workspace: Workspace) -> None:
    done = workspace.fcctl("run", "profiles", "--on", "box", check=104)
    record, folder = only_run(workspace)
    assert record["status"] == "incomplete"
    assert [gate["verdict"] for step in record["steps"] for gate in step["gates"]] == ["unavailable"] * 4
    assert record["message"].count("fcctl hosts prepare") == 1
    assert "(and 3 more)" in record["message"]
    assert not list(folder.rglob("*.ncu-rep"))
    assert record["message"] in " ".join(done.stderr.split()) + " ".join(done.stdout.split())
