"""Two fcctls that want the same machine at the same moment, when there is none: they end up with one."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.service import Service
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.waiting import wait_for

HERE, THERE = "us-west1-c", "us-west1-a"
JOB = "steps:\n  - {id: say, run: echo hello, timeout: 60}\n"


@pytest.fixture
def pair(tmp_path: Path, private_home: Path, start_cloud: Callable[..., Emulator]) -> list[CloudWorkspace]:
    """Workspaces that would make the machine in different zones; no creation gets through before its time."""
    cloud = start_cloud(faults=[{"action": "instances.insert", "do": {"delay": 1}}])
    orders = {"one": [HERE, THERE], "two": [THERE, HERE]}
    made = [CloudWorkspace(tmp_path / name, private_home, cloud, zones=zones) for name, zones in orders.items()]
    for workspace in made:
        workspace.job("hello", JOB)
    made[0].fcctl("--version")  # from here on two threads share one server that starts commands
    return made


def asked(workspace: CloudWorkspace, kind: str, action: str | None = None) -> bool:
    """Whether the run has come to a line of its journal."""
    for path in (workspace.root / "results").glob("*/*/journal.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if any(line["kind"] == kind and line["data"].get("action") == action for line in lines):
            return True
    return False


def both(pair: list[CloudWorkspace], computers: list[dict[str, str]]) -> list[str]:
    """Both run at once; what each said."""
    with ThreadPoolExecutor(2) as threads:
        type_it = [
            threads.submit(w.fcctl, "run", "hello", "--on", "l4", "--yes", env=env)
            for w, env in zip(pair, computers, strict=True)
        ]
        said = [typed.result().stderr for typed in type_it]
    assert [w.only_run()["status"] for w in pair] == ["passed", "passed"]
    assert list(pair[0].statuses().values()) == ["TERMINATED"]
    return said


def test_on_one_computer_the_second_waits_and_joins_the_first(
    pair: list[CloudWorkspace], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gate(_service: Service, seconds: float) -> None:
        """The first creation: not before the second has begun to look, and has had time to see nothing."""
        wait_for(lambda: all(asked(w, "acquire") for w in pair))
        time.sleep(seconds)

    monkeypatch.setattr(Service, "_sleep", gate)
    both(pair, [{}, {}])
    assert pair[0].operations("insert") == ["insert"]


@pytest.mark.full
def test_one_that_has_found_the_machine_on_may_take_its_time_to_come_to_it(
    pair: list[CloudWorkspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who turned it on leaves it to that run, is home, and looks after what it owes: nor does that stop it."""
    gone, found = threading.Event(), tmp_path / "found"
    until = f"until [ -e {found} ]; do sleep 0.1; done"
    for workspace in pair:
        workspace.job("hello", JOB.replace("echo hello", json.dumps(until)))
    answer, labelled = Service.answer, itertools.count(1)

    def late(service: Service, method: str, path: str, *rest: Any) -> Any:
        told = answer(service, method, path, *rest)
        if path.endswith("/setLabels") and next(labelled) == 2:  # the first one changes nothing, and tells the time
            instance, labels = path.rpartition("/")[0], rest[1]["labels"]
            wait_for(lambda: answer(service, "GET", instance, {}, {})["labels"] == labels)  # a change takes a moment
            found.touch()
            assert gone.wait()
        return told

    def type_it(workspace: CloudWorkspace) -> str:
        done = workspace.fcctl("run", "hello", "--on", "l4", "--yes")
        gone.set()
        return done.stderr

    monkeypatch.setattr(Service, "_sleep", lambda *_: wait_for(lambda: all(asked(w, "acquire") for w in pair)))
    monkeypatch.setattr(Service, "answer", late)
    with ThreadPoolExecutor(2) as threads:
        said = "".join(threads.map(type_it, pair))
    assert [w.only_run()["status"] for w in pair] == ["passed", "passed"]
    assert said.count("vm stays on: ") == 1
    assert pair[0].operations("stop") == ["stop"]
    assert list(pair[0].statuses().values()) == ["TERMINATED"]


def test_on_two_computers_the_younger_machine_is_taken_back(
    pair: list[CloudWorkspace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gate(_service: Service, _seconds: float) -> None:
        """Either creation: not before both have decided on one."""
        wait_for(lambda: all(asked(w, "cloud", "create") for w in pair))

    monkeypatch.setattr(Service, "_sleep", gate)
    computers = [{"XDG_STATE_HOME": str(tmp_path / f"computer-{n}")} for n in (1, 2)]
    said = both(pair, computers)
    assert pair[0].operations("insert") == ["insert", "insert"]
    assert pair[0].operations("delete") == ["delete"]
    (loser,) = [n for n, text in enumerate(said) if "fcctl deletes the second machine" in text]
    ledger = pair[loser].fcctl("cost", "ledger", "--by", "machine", "--json", env=computers[loser]).stdout
    rows = json.loads(ledger)["totals"]
    assert len({row["group"] for row in rows if row["seconds"] > 0}) == 2, "what it cost for a moment is booked, too"


@pytest.mark.full
def test_a_machine_that_others_let_go_before_it_answers_is_turned_on_again(
    tmp_path: Path, private_home: Path, start_cloud: Callable[..., Emulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had it on could not know that somebody is coming."""
    cloud = start_cloud(faults=[{"action": "instances.getGuestAttributes", "do": {"delay": 1}}])
    workspace = CloudWorkspace(tmp_path / "one", private_home, cloud, zones=[HERE])
    workspace.job("hello", JOB)
    workspace.fcctl("hosts", "up", "l4", "--yes")
    stopped: list[str] = []

    def let_go(_service: Service, _seconds: float) -> None:
        if not stopped:
            stopped.append(HERE)
            cloud.control.switch_all_off()

    monkeypatch.setattr(Service, "_sleep", let_go)
    elsewhere = {"XDG_STATE_HOME": str(tmp_path / "another")}  # where nobody knows how to log in
    done = workspace.fcctl("run", "hello", "--on", "l4", "--yes", env=elsewhere)
    assert stopped
    assert "vm was stopped during its start; another owner stopped it" in done.stderr
    assert workspace.operations("start") == ["start"]
    assert workspace.only_run()["status"] == "passed"
    assert workspace.statuses() == {HERE: "TERMINATED"}
