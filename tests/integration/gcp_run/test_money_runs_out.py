"""A run on a machine of a cloud whose money ends: by whoever follows it, or by the fences while nobody looks.

fcctl runs in this process, in the emulated cloud's time, so that an hour and a half of a run takes seconds.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.emulator import processes
from orchestrator.emulator.clock import parse_timestamp
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.guest import Guest
from orchestrator.runs.cost.budget_guard import Guard
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, Meter, billed, emulated, machine_by_hand, machines
from tests.support.waiting import wait_for

RATE = 0.706832  # dollars an hour of g2-standard-4 in us-west1
#: The same with its 100 GiB of pd-standard and its external address.
WHOLE = RATE + 100 * 0.04 / 730 + 0.005
#: One dollar lasts for 5018 s; the cloud's lateness and its minimum taken off, that is the limit of the machine.
LIMIT_S = 4928
LONG = """
steps:
  - id: quick
    timeout: 60
    run: |
      echo '{"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}' > "$FCCTL_OUT/m.json"
  - id: long
    timeout: 3h
    run: |
      trap 'echo noticed; exit 1' TERM
      touch "$HOME/at-work"
      while :; do echo tick; sleep 0.1; done
"""
RUN = ("run", "long", "--on", "l4", "--budget", "1", "--stop-at-budget", "--yes")


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as made:
        machine_by_hand(made, "stopped")
        yield made


@pytest.fixture
def workspace(cloud: Emulator, tmp_path: Path, private_home: Path) -> CloudWorkspace:
    made = CloudWorkspace(tmp_path / "w", private_home, cloud)
    made.job("long", LONG)
    return made


@contextmanager
def meanwhile(what: Callable[[], None]) -> Iterator[None]:
    """``what`` in a thread; its failure is the test's."""
    failed: list[BaseException] = []

    def act() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=act, name="meanwhile")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert failed == []


def advance_to(cloud: Emulator, seconds: float) -> None:
    """So long after the machine's last start."""
    (machine,) = machines(cloud).values()
    started = parse_timestamp(machine.resource["lastStartTimestamp"])
    cloud.advance(started + seconds - cloud.clock.now())


def at_work(cloud: Emulator) -> bool:
    return (cloud.home(INSTANCE) / "at-work").exists()


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes without the guard: it would see the money gone, and end the run, before the machine is off."""
    monkeypatch.setattr(Guard, "look", lambda _: None)


def check_home(workspace: CloudWorkspace) -> None:
    record = workspace.only_run()
    assert (record["status"], record["exit_code"]) == ("over_budget", 5)
    assert record["steps"][0]["status"] == "passed"
    assert 0 < record["cost"]["usd"] <= 1
    assert (workspace.only_folder() / "steps/quick/out/m.json").is_file(), "partial results are home"


def test_followed_it_warns_gives_notice_collects_and_stops(cloud: Emulator, workspace: CloudWorkspace) -> None:
    def time_passes() -> None:
        wait_for(lambda: at_work(cloud))
        advance_to(cloud, 0.83 * 3600 / WHOLE)
        wait_for(lambda: "of the cap of $1.00 (--budget) are spent" in sys.stderr.getvalue())  # type: ignore[attr-defined]
        advance_to(cloud, 0.97 * 3600 / WHOLE)

    with Meter(cloud) as meter, meanwhile(time_passes):
        done = workspace.type(*RUN)
    assert done.code == 5, done.said
    assert "are spent: fcctl stops the run" in done.err
    assert [m.status for m in machines(cloud).values()] == ["TERMINATED"]
    check_home(workspace)
    assert workspace.only_run()["steps"][1]["status"] == "cancelled"
    assert "noticed" in (workspace.only_folder() / "steps/long/log.txt").read_text()
    assert 0.9 < meter.usd(RATE) <= 1


@pytest.mark.parametrize(("fence", "says"), [(1, "reached its time limit"), (2, "the end of its shutdown timer")])
@pytest.mark.usefixtures("asleep")
def test_a_fence_while_the_laptop_sleeps(fence: int, says: str, cloud: Emulator, workspace: CloudWorkspace) -> None:
    def time_passes() -> None:
        wait_for(lambda: at_work(cloud))
        if fence == 1:
            for machine in machines(cloud).values():
                machine.timers.clear()
        advance_to(cloud, LIMIT_S + 60)

    told = workspace.root / "told.jsonl"
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write(f'\n[notify]\ncommand = ["sh", "-c", "cat >> {told}; echo >> {told}"]\n')
    with Meter(cloud) as meter, meanwhile(time_passes):
        done = workspace.type(*RUN)
    assert done.code == 5, done.said
    assert says in done.err
    (notice,) = map(json.loads, told.read_text().splitlines())
    assert (notice["event"], notice["run"]["status"]) == ("over_budget", "over_budget")
    assert "pull-results --wake" in notice["text"]
    assert billed(cloud) == []
    assert meter.usd(RATE) <= 1
    (state,) = workspace.type("ps", "--json", check=0).json["runs"]
    assert (state["state"], state["detail"].partition(":")[0]) == ("waiting", "over_budget")
    assert "--wake" in workspace.type("pull-results", check=5).err
    workspace.type("pull-results", "--wake", "--yes", check=0)
    check_home(workspace)
    assert billed(cloud) == []


@pytest.mark.usefixtures("asleep")
def test_what_the_host_says_as_it_goes_down_comes_home_before_its_link_breaks(
    cloud: Emulator, workspace: CloudWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it was told to stop. That this was the run's time limit is the cloud's to say."""

    def sessions_stay(guest: Guest) -> None:
        processes.send_all(processes.of_home(guest.home) - guest._tree(), signal.SIGTERM)

    def time_passes() -> None:
        wait_for(lambda: at_work(cloud))
        for machine in machines(cloud).values():
            machine.timers.clear()
        advance_to(cloud, LIMIT_S + 60)
        (journal,) = workspace.root.glob("results/active/*/journal.jsonl")
        wait_for(lambda: '"collected"' in journal.read_text())
        cloud.advance(slow.stop)

    slow = cloud.world.scenario.latency.model_copy(update={"stop": 600.0})
    monkeypatch.setattr(cloud.world.scenario, "latency", slow)
    monkeypatch.setattr(Guest, "shut_down", sessions_stay)
    with meanwhile(time_passes):
        done = workspace.type(*RUN)
    assert done.code == 5, done.said
    assert "reached its time limit, and the cloud stopped it" in done.said
    assert billed(cloud) == []
    assert workspace.only_run()["status"] == "over_budget"


@pytest.mark.usefixtures("asleep")
def test_the_machines_own_timer_once_the_money_was_spent(cloud: Emulator, workspace: CloudWorkspace) -> None:
    """On a machine that was on already, whose fence is not the run's: the host program ends it, and idles shortly."""

    def time_passes() -> None:
        wait_for(lambda: at_work(cloud))
        (cloud.home(INSTANCE) / "at-work").unlink()
        cloud.advance(0.99 * 3600 / RATE)
        cloud.control.happen(INSTANCE, "guestTerminate")

    workspace.type("hosts", "up", "l4", "--minutes", "240", "--yes", check=0)
    with meanwhile(time_passes):
        done = workspace.type(*RUN)
    assert done.code == 5, done.said
    assert "the run's budget was spent" in done.err
    assert billed(cloud) == []
    workspace.type("pull-results", "--wake", "--yes", check=0)
    assert workspace.only_run()["status"] == "over_budget"
