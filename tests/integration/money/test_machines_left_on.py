"""A command that leaves a machine on says so in its last line, tells ``[notify]``, and its exit code agrees."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace as RealWorkspace
from tests.support.hook import Hook
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, Done, billed, machines
from tests.support.waiting import wait_for

pytest.importorskip("google.cloud.compute_v1")

NAP = "steps:\n  - {id: nap, run: sleep 300, timeout: 10m}\n"
DOWN = "fcctl hosts down l4"
STARTS = {"hosts": ["hosts", "up", "l4"], "session": ["session", "start", "--on", "l4", "--budget", "1"]}
STOPS = {"hosts": ["hosts", "down", "l4"], "session": ["session", "stop"]}


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator, hook: Hook) -> CloudWorkspace:
    return made(tmp_path / "w", private_home, cloud, hook)


def made(folder: Path, home: Path, cloud: Emulator, hook: Hook, **target: Any) -> CloudWorkspace:
    found = CloudWorkspace(folder, home, cloud, **target)
    found.job("nap", NAP)
    with (found.root / "fcctl.toml").open("a") as file:
        file.write(f'\n[budget]\nper_run_usd = 9\nper_session_usd = 9\n[notify]\nwebhook = "{hook.url}"\n')
    return found


def line(stop: str) -> str:
    return f"l4 ({INSTANCE}) stays on at $0.71/h; to stop it: {stop}"


def check(done: Done, stop: str, hook: Hook | None) -> None:
    """The last line names the machine, its price and ``stop``; if ``hook``, it was told the same."""
    assert done.err.splitlines()[-1] == line(stop)
    told = [] if hook is None else [body for _, body in hook.got if body["event"] == "left_running"]
    assert [body["text"] for body in told] == ([] if hook is None else [f"left running: {line(stop)}"])
    assert all(body["usd_per_hour"] == pytest.approx(0.706832) for body in told)


def refuse_to_stop(cloud: Emulator) -> None:
    said = {"status": 403, "reason": "forbidden", "message": "Required 'compute.instances.stop' permission"}
    cloud.faults.add(action="instances.stop", do={"http": said})


PROTECTED = "Resource cannot be deleted if it's protected against deletion."


@pytest.mark.parametrize(
    "refusal",
    [
        {"http": {"status": 412, "reason": "conditionNotMet", "message": PROTECTED}},
        {"http": {"status": 400, "reason": "invalidResourceUsage", "message": PROTECTED}},
        {"operation": {"code": "CONDITION_NOT_MET", "http": 412, "message": PROTECTED}},
    ],
    ids=["412", "400", "operation"],
)
def test_a_machine_that_is_protected_against_deletion_is_stopped(
    refusal: dict[str, Any], tmp_path: Path, private_home: Path, cloud: Emulator, hook: Hook
) -> None:
    workspace = made(tmp_path / "w", private_home, cloud, hook, release="delete")
    workspace.type(*STARTS["session"], check=0)
    cloud.faults.add(action="instances.delete", do=refusal)
    before = cloud.clock.now()
    done = workspace.type(*STOPS["session"], check=0)
    assert (billed(cloud), len(machines(cloud))) == ([], 1)
    assert cloud.clock.now() - before < 120
    assert f"fcctl stops {INSTANCE} instead of deleting it" in done.err


UNKNOWN_ZONE = {
    "status": 404,
    "reason": "notFound",
    "message": "The resource 'projects/p/zones/us-west1-a' was not found",
}


@pytest.mark.parametrize(
    "other",
    [
        {"action": "zoneOperations.list", "do": {"http": 503}},
        {"action": "instances.get", "path": "zones/us-west1-a/*", "do": {"http": 503}},
        {"action": "instances.get", "path": "zones/us-west1-a/*", "do": {"http": UNKNOWN_ZONE}},
    ],
    ids=["operations", "another zone", "no such zone"],
)
def test_a_stop_needs_no_answer_about_anything_else(
    other: dict[str, Any], workspace: CloudWorkspace, cloud: Emulator
) -> None:
    for who, start in STARTS.items():
        workspace.type(*start, check=0)
        cloud.faults.add(**other)
        workspace.type(*STOPS[who])
        assert billed(cloud) == []
        cloud.faults.clear()


def test_detached_then_cancelled(workspace: CloudWorkspace, cloud: Emulator, hook: Hook) -> None:
    done = workspace.type("run", "nap", "--on", "l4", "-d", check=0)
    run_id = done.out.strip()
    check(done, f"fcctl cancel {run_id}", hook)
    assert "stays on" not in workspace.type("ps", check=0).err, "it changes nothing"
    done = workspace.type("cancel", run_id, "--grace", "0", check=0)
    assert (billed(cloud), "stays on" in done.said) == ([], False)


def test_kept_by_its_target(tmp_path: Path, private_home: Path, cloud: Emulator, hook: Hook) -> None:
    workspace = made(tmp_path / "w", private_home, cloud, hook, release="keep")
    check(workspace.type("run", "noop", "--on", "l4", check=0), DOWN, hook)
    found = workspace.type("--json", "run", "noop", "--on", "l4", check=0)
    assert found.err == ""
    assert [(one["stop"], one["name"], one["not_stopped"]) for one in found.json["left_on"]] == [
        (DOWN, INSTANCE, False)
    ]
    assert workspace.type("--json", "hosts", "down", "l4", check=0).json["left_on"] == []


def test_by_hand_and_under_a_run(workspace: CloudWorkspace, hook: Hook) -> None:
    check(workspace.type("hosts", "up", "l4", "--minutes", "60", check=0), DOWN, hook)
    hook.got.clear()
    check(workspace.type("run", "noop", "--on", "l4", check=0), DOWN, None)
    assert hook.got == [], "the run leaves it as it was"


def test_by_a_session(workspace: CloudWorkspace, hook: Hook) -> None:
    stop = "fcctl session stop"
    check(workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0), stop, hook)
    hook.got.clear()
    check(workspace.type("run", "noop", "--on", "l4", check=0), stop, None)
    done = workspace.type("session", "stop", check=0)
    assert "stays on" not in done.said


def test_a_run_whose_machine_cannot_be_stopped(workspace: CloudWorkspace, cloud: Emulator, hook: Hook) -> None:
    refuse_to_stop(cloud)
    done = workspace.type("run", "noop", "--on", "l4", check=6)
    check(done, DOWN, hook)
    assert "could not be stopped" in done.err
    assert workspace.only_run()["status"] == "passed", "the results are here all the same"
    assert [len(machine.timers) for machine in machines(cloud).values()] == [1], "it turns itself off"
    assert "may still be on" in workspace.type("ps", check=0).err, "and it is not tried again so soon"
    hook.got.clear()
    check(workspace.type("pull-results", check=6), DOWN, hook)
    found = workspace.type("--json", "pull-results", check=6).json["left_on"]
    assert [(one["stop"], one["not_stopped"]) for one in found] == [(DOWN, True)]
    cloud.faults.clear()
    done = workspace.type("pull-results", check=0)
    assert (billed(cloud), "stays on" in done.said, "is now off" in done.err) == ([], False, True)
    assert workspace.type("ps", check=0).err == ""


@pytest.mark.parametrize(("kept_by", "stop"), [("hosts", DOWN), ("session", "fcctl session stop")])
def test_a_stop_by_hand_that_fails(
    kept_by: str, stop: str, workspace: CloudWorkspace, cloud: Emulator, hook: Hook
) -> None:
    workspace.type(*STARTS[kept_by], check=0)
    refuse_to_stop(cloud)
    hook.got.clear()
    check(workspace.type(*STOPS[kept_by], check=4), stop, hook)
    found = json.loads(workspace.type("--json", *STOPS[kept_by], check=4).err)
    assert [(one["stop"], one["not_stopped"]) for one in found["left_on"]] == [(stop, True)]
    cloud.faults.clear()
    done = workspace.type(*STOPS[kept_by], check=0)
    assert (billed(cloud), "stays on" in done.said) == ([], False)


@pytest.mark.parametrize("kept_by", ["hosts", "session"])
def test_after_a_stop_by_hand_that_fails_it_turns_itself_off(
    kept_by: str, workspace: CloudWorkspace, cloud: Emulator
) -> None:
    workspace.type(*STARTS[kept_by], check=0)
    refuse_to_stop(cloud)
    done = workspace.type(*STOPS[kept_by], check=4)
    assert f"{INSTANCE} turns itself off in 2 minutes" in done.err
    assert billed(cloud) != []
    cloud.advance(130)
    wait_for(lambda: billed(cloud) == [])
    cloud.faults.clear()
    workspace.type(*STOPS[kept_by])
    workspace.type("ps", check=0)
    assert workspace.type("--json", "cost", "budget", check=0).json["reserved_usd"] == 0


def test_a_hook_that_fails_is_said_before_the_machine(workspace: CloudWorkspace, hook: Hook) -> None:
    hook.status = 500
    done = workspace.type("hosts", "up", "l4", check=0)
    assert done.err.splitlines()[-1] == line(DOWN)
    assert done.err.splitlines()[-2].endswith("HTTP status 500")
    assert "SECRET" not in done.err


@pytest.mark.full
def test_ctrl_c_leaves_the_run_and_says_what_it_costs(tmp_path: Path, private_home: Path) -> None:
    with Emulator() as cloud:
        workspace = RealWorkspace(tmp_path / "w", private_home, cloud)
        workspace.job("nap", NAP)
        process = workspace.start("run", "nap", "--on", "l4")
        wait_for(lambda: [e for e in workspace.active() if "submitted" in str(workspace.journal(e))])
        (run_id,) = workspace.active()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130
        assert err.splitlines()[-1] == f"l4 (vm) stays on at $0.71/h; to stop it: fcctl cancel {run_id}"
        followed = workspace.start("--json", "attach", run_id)
        wait_for(lambda: workspace.json("ps", "--offline")["runs"][0]["state"] == "followed")
        followed.send_signal(signal.SIGINT)
        error = json.loads(followed.communicate()[1])
        assert followed.returncode == 130
        assert [one["stop"] for one in error["left_on"]] == [f"fcctl cancel {run_id}"]
        workspace.fcctl("cancel", run_id, "--grace", "0")
        assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
