"""``fcctl hosts prepare`` and ``exec``, profiles as root and ``orchestrator.connection``, on a machine with sshd."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stock_machine import StockMachine, stock_machine
from tests.support.workspace import REPOSITORY, Workspace

STEPS = ["packages", "counters", "persistence", "cuda", "swap", "upgrades"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[StockMachine]:
    with stock_machine(tmp_path / "m") as made:
        yield made


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, machine: StockMachine) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, machine.server)
    made.add_ssh("owned", machine.server, owned=True)
    return made


def states(workspace: Workspace, *args: str, check: int = 0) -> list[str]:
    steps = workspace.json("hosts", "prepare", *args, check=check)["steps"]
    assert [step["step"] for step in steps] == STEPS
    return [step["state"] for step in steps]


def test_a_machine_is_made_fit_once(workspace: Workspace, machine: StockMachine) -> None:
    before = machine.files()
    assert states(workspace, "box", "--dry-run") == ["missing"] * 6
    assert machine.files() == before
    done = workspace.fcctl("hosts", "prepare", "owned")  # no question
    assert (
        "GPU performance counters for all users: only administrators may read them; set, and the driver was reloaded"
        in done.stderr
    )
    assert "owned is ready for GPU work" in done.stderr
    assert machine.text("proc/driver/nvidia/params") == "RmProfilingAdminOnly: 0\n"
    assert "RestrictProfilingToAdminUsers=0" in machine.text("etc/modprobe.d/fcctl-nvidia.conf")
    assert machine.text("etc/fstab") == "/swapfile-fcctl none swap sw 0 0\n"
    assert f"{machine.server.home}/.fcctl/locks/queue/" in machine.text("usr/local/lib/fcctl/is-free")
    assert "is-free" in machine.text("etc/systemd/system/apt-daily-upgrade.service.d/fcctl.conf")
    after = machine.files()
    assert states(workspace, "box") == ["fit"] * 6
    assert machine.files() == after, "the second time changes nothing"
    (machine.root / "proc/driver/nvidia/params").unlink()
    without = workspace.fcctl("hosts", "prepare", "owned").stderr
    assert "owned is not ready for GPU work: no NVIDIA driver is loaded; fcctl preflight --on owned" in without


def test_a_machine_of_others_is_changed_after_a_yes(workspace: Workspace, machine: StockMachine) -> None:
    before = machine.files()
    refused = workspace.fcctl("hosts", "prepare", "box", check=2)
    assert (
        "box is not a machine that fcctl owns. fcctl will change these settings there as root: tmux" in refused.stderr
    )
    assert machine.files() == before
    assert states(workspace, "box", "--yes") == ["changed"] * 6


def test_without_root_nothing_changes(workspace: Workspace, machine: StockMachine) -> None:
    (machine.state / "no_sudo").touch()
    before = machine.files()
    refused = workspace.fcctl("hosts", "prepare", "owned", check=10)
    assert "this needs root, and sudo asks for a password on that machine" in refused.stderr
    assert machine.files() == before


@pytest.mark.full
def test_a_driver_in_use_needs_a_reboot(workspace: Workspace, machine: StockMachine) -> None:
    (machine.state / "gpu_in_use").touch()
    done = workspace.fcctl("hosts", "prepare", "owned")
    assert "takes effect after a reboot" in done.stderr
    assert "a reboot is needed: fcctl hosts prepare owned --reboot" in done.stderr
    boots = f'[ "$1" != reboot ] || {{ rm {machine.state}/gpu_in_use; modprobe -r nvidia; modprobe nvidia; }}'
    machine.program("systemctl", boots)
    with_reboot = workspace.json("hosts", "prepare", "owned", "--reboot")
    assert (with_reboot["rebooted"], with_reboot["steps"][1]["state"]) == (True, "fit")


def test_nothing_changes_while_a_run_is_on_it(workspace: Workspace, machine: StockMachine) -> None:
    tickets = machine.server.home / ".fcctl/locks/queue"
    tickets.mkdir(parents=True)
    with (tickets / "000000000001.x.run").open("w") as ticket:
        fcntl.flock(ticket, fcntl.LOCK_EX)
        before = machine.files()
        assert "a run uses owned" in workspace.fcctl("hosts", "prepare", "owned", check=8).stderr
        assert machine.files() == before
        workspace.fcctl("hosts", "prepare", "owned", "--dry-run")
    workspace.fcctl("hosts", "prepare", "owned")
    is_free = ["/bin/sh", str(machine.root / "usr/local/lib/fcctl/is-free")]
    with (tickets / "000000000001.x.run").open("w") as ticket:
        fcntl.flock(ticket, fcntl.LOCK_EX)
        assert subprocess.run(is_free, check=False).returncode == 1, "unattended upgrades wait"
    assert subprocess.run(is_free, check=False).returncode == 0


def test_a_command_on_two_machines(workspace: Workspace, machine: StockMachine) -> None:
    both = ("hosts", "exec", "--on", "box", "--on", "owned")
    rows = workspace.json(*both, "echo", "a  b")["hosts"]
    assert [(row["target"], row["exit_code"], row["stdout"]) for row in rows] == [
        ("box", 0, "a  b\n"), ("owned", 0, "a  b\n"),
    ]  # fmt: skip
    failed = workspace.fcctl(*both, "--", "echo 'out \x1b[31m'; echo err >&2; exit 3", check=100)
    assert (failed.stdout.count("out "), failed.stderr.count("err")) == (2, 2)
    assert "--- box: exit code 3" in failed.stderr
    assert "\x1b" not in failed.stdout
    assert sorted(failed.stdout.splitlines()) == ["box: out ", "owned: out "]
    assert "box: err\n" in failed.stderr
    (shut,) = workspace.json("hosts", "exec", "--on", "local", "true", check=6)["hosts"]
    assert "this computer" in shut["error"]


@pytest.mark.usefixtures("machine")
def test_output_comes_while_the_command_runs(workspace: Workspace, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"printf 'half'; echo ' line'; while [ ! -e {go} ]; do sleep 0.05; done; printf 'no newline'"
    process = workspace.start("hosts", "exec", "--on", "box", "--on", "owned", script)
    assert process.stdout is not None
    assert sorted(process.stdout.readline() for _ in range(2)) == ["box: half line\n", "owned: half line\n"]
    assert process.poll() is None
    go.touch()
    out, err = process.communicate(timeout=60)
    assert sorted(out.splitlines()) == ["box: no newline", "owned: no newline"]
    assert "--- owned: exit code 0" in err


@pytest.mark.usefixtures("machine")
def test_the_fabfile_of_the_docs(workspace: Workspace) -> None:
    text = (REPOSITORY / "docs/prepare.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (workspace.root / "fabfile.py").write_text(example.replace('"l4"', '"box"').replace("nvidia-smi -L", "echo GPU 0"))
    argv = [sys.executable, "-m", "invoke", "-c", "fabfile", "gpu"]
    done = subprocess.run(argv, cwd=workspace.root, env=workspace.env(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "GPU 0\n"), done.stderr


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
def profiles(workspace: Workspace, machine: StockMachine) -> None:
    """The driver keeps GPU counters for administrators, and a job asks ``ncu`` for four profiles."""
    machine.program("ncu", _NCU.format(csv=REPOSITORY / "tests/fixtures/readers/ncu/h100_raw.csv"))
    workspace.job("profiles", "env: {KEPT: by sudo}\nsteps:\n" + "".join(_STEP.format(name=name) for name in NAMES))


@pytest.mark.usefixtures("profiles")
def test_on_an_owned_machine_every_report_is_made_and_every_gate_decided(
    workspace: Workspace, machine: StockMachine
) -> None:
    workspace.fcctl("run", "profiles", "--on", "owned")
    record, folder = workspace.only_run(), workspace.only_folder()
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


@pytest.mark.usefixtures("profiles")
def test_on_a_machine_of_others_the_run_is_incomplete_with_one_fix(workspace: Workspace) -> None:
    done = workspace.fcctl("run", "profiles", "--on", "box", check=104)
    record, folder = workspace.only_run(), workspace.only_folder()
    assert record["status"] == "incomplete"
    assert [gate["verdict"] for step in record["steps"] for gate in step["gates"]] == ["unavailable"] * 4
    assert record["message"].count("fcctl hosts prepare") == 1
    assert "(and 3 more)" in record["message"]
    assert not list(folder.rglob("*.ncu-rep"))
    assert record["message"] in " ".join(done.stderr.split()) + " ".join(done.stdout.split())
