"""What was spent stays spent, whatever becomes of the files that tell of it."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.midday import midday_zone
from tests.support.tiers import sampled

START = ("session", "start", "--on", "l4", "--budget", "1")
_NUMBERS = itertools.count()
_RESULTS = shutil.ignore_patterns("results")
HELLO = "steps:\n  - {id: greet, run: 'true'}\n"


@pytest.fixture(scope="module")
def cloud() -> Iterator[Emulator]:
    with Emulator() as running:
        yield running


@pytest.fixture
def workspace(cloud: Emulator, tmp_path: Path, private_home: Path) -> CloudWorkspace:
    name = f"vm-{next(_NUMBERS)}"
    made = CloudWorkspace(  # nothing is cut here: silence is a busy computer's
        tmp_path / "ws", private_home, cloud, instance=name, disk_usd_per_gib_month=0.0, link_timeout_s=30.0,
        reconnect_s=60.0,
    )  # fmt: skip
    with (made.root / "fcctl.toml").open("a") as config:
        config.write(f'per_day_usd = 3.0\ntimezone = "{midday_zone()}"\n')
    made.job("hello", HELLO)
    return made


def spent(workspace: CloudWorkspace) -> tuple[float, float]:
    """Of today: (spent, what the ledger's lines add up to), dollars."""
    row = next(row for row in workspace.json("cost", "budget")["caps"] if row["cap"] == "today")
    lines = workspace.json("cost", "ledger", "--lines")["lines"]
    return row["spent_usd"], sum(line["usd"] for line in lines)


@pytest.mark.parametrize("how", sampled(["prune", "delete", "move", "checkout"], ["prune", "checkout"]))
def test_what_runs_cost(how: str, workspace: CloudWorkspace, tmp_path: Path) -> None:
    workspace.fcctl("run", "hello", "--on", "l4")
    before = spent(workspace)
    assert before[0] > 0.01
    changes: dict[str, Callable[[], object]] = {
        "prune": lambda: workspace.fcctl(
            "results", "prune", "--max-size", "0GB", "--keep-last", "0", "--keep-best", "0", "--yes"
        ),
        "delete": lambda: shutil.rmtree(workspace.root / "results"),
        "move": lambda: workspace.root.rename(tmp_path / "moved"),
        "checkout": lambda: shutil.copytree(workspace.root, tmp_path / "moved", ignore=_RESULTS),
    }  # fmt: skip
    changes[how]()
    if how in ("move", "checkout"):
        workspace.root = workspace.folder = tmp_path / "moved"
    assert spent(workspace) == pytest.approx(before, abs=1e-4)


def test_a_session_whose_plan_is_damaged_is_not_closed_while_its_machine_is_on(workspace: CloudWorkspace) -> None:
    workspace.fcctl(*START)
    (plan,) = (workspace.root / "results/sessions").glob("2*/session.json")
    plan.write_text("{")
    told = workspace.fcctl("ps")
    assert "is unreadable, and its machine" in told.stderr
    assert "hosts audit" in told.stderr
    assert not (plan.parent / "end.json").exists()
    assert set(workspace.statuses().values()) == {"RUNNING"}
    refused = workspace.fcctl("session", "start", "--on", "l4", "--budget", "2.5", "--restart", "--yes", check=5)
    assert "of the day's cap of $3.00 are left" in refused.stderr, "the damaged session's dollars are reserved still"
    workspace.fcctl("hosts", "down", "l4", "--force")
    workspace.fcctl("ps")
    assert (plan.parent / "end.json").exists()
    assert set(workspace.statuses().values()) == {"TERMINATED"}
