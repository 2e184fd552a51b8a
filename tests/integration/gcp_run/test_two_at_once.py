"""Two fcctls that want the same machine at the same moment, when there is none: they end up with one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace

HERE, THERE = "us-west1-c", "us-west1-a"
#: Long enough that both have looked, and seen nothing, before either machine is there.
INSERT_TAKES_S = 4.0
JOB = "steps:\n  - {id: say, run: echo hello, timeout: 60}\n"


@pytest.fixture
def pair(tmp_path: Path, private_home: Path, start_cloud: Callable[..., Emulator]) -> list[CloudWorkspace]:
    """Workspaces that would make the machine in different zones."""
    cloud = start_cloud(faults=[{"action": "instances.insert", "do": {"delay": INSERT_TAKES_S}}])
    orders = {"one": [HERE, THERE], "two": [THERE, HERE]}
    made = [CloudWorkspace(tmp_path / name, private_home, cloud, zones=zones) for name, zones in orders.items()]
    for workspace in made:
        workspace.job("hello", JOB)
    made[0].fcctl("--version")  # from here on two threads share one server that starts commands
    return made


def both(pair: list[CloudWorkspace], computers: list[dict[str, str]]) -> list[str]:
    """Both run at once; what each said."""
    with ThreadPoolExecutor(2) as threads:
        type_it = [
            threads.submit(w.fcctl, "run", "hello", "--on", "l4", "--yes", env=env)
            for w, env in zip(pair, computers, strict=True)
        ]
        said = [typed.result().stderr for typed in type_it]
    assert [w.only_run()["status"] for w in pair] == ["passed", "passed"]
    return said


def test_on_one_computer_the_second_waits_and_joins_the_first(pair: list[CloudWorkspace]) -> None:
    said = both(pair, [{}, {}])
    assert pair[0].operations("insert") == ["insert"]
    assert list(pair[0].statuses().values()) == ["TERMINATED"]
    assert sum("another fcctl on this computer is turning vm on" in text for text in said) == 1


def test_on_two_computers_the_younger_machine_is_taken_back(pair: list[CloudWorkspace], tmp_path: Path) -> None:
    said = both(pair, [{"XDG_STATE_HOME": str(tmp_path / f"computer-{n}")} for n in (1, 2)])
    assert sorted(pair[0].operations()).count("insert") == 2
    assert pair[0].operations("delete") == ["delete"]
    assert list(pair[0].statuses().values()) == ["TERMINATED"]
    (loser,) = [n for n, text in enumerate(said) if "is deleted again" in text]
    lines = pair[loser].json("cost", "ledger", "--by", "machine")["totals"]
    assert len({line["group"] for line in lines if line["seconds"] > 0}) == 2, (
        "what it cost for a moment is booked, too"
    )
