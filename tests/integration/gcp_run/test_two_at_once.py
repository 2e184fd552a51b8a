"""Two fcctls that want the same machine at the same moment, when there is none: they end up with one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.server import Service
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
        whole = path.read_text().rpartition("\n")[0]  # without the line that is just being written
        lines = [json.loads(line) for line in whole.splitlines()]
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
