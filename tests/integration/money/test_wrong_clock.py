"""A computer whose clock is wrong starts no machine: by that clock a day's cap would be a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.support.virtual_cloud import CloudWorkspace, billed, emulated, machine_by_hand, machines

pytest.importorskip("google.cloud.compute_v1")

DAY_S = 86400.0


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as made:
        yield made


@pytest.fixture
def workspace(cloud: Emulator, tmp_path: Path, private_home: Path) -> CloudWorkspace:
    return CloudWorkspace(tmp_path / "w", private_home, cloud)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(("ahead_s", "how"), [(-DAY_S - 1, "1d ahead of"), (900.0, "15m behind")])
def test_no_machine_is_started(
    workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch, there: bool, ahead_s: float, how: str
) -> None:
    if there:
        machine_by_hand(cloud, "stopped")
    before = len(cloud.world.operations)
    monkeypatch.setattr(GcpCloud, "ahead_s", lambda _: ahead_s)
    for command in (("run", "noop", "--on", "l4"), ("hosts", "up", "l4")):
        done = workspace.type("--yes", *command, check=3)
        assert f"error: this computer's clock is {how} the cloud's: fcctl starts no machine" in done.err
        assert "caps of the day and the month" in done.err
        assert "hint:  set this computer's clock: sudo " in done.err
    kinds = [op.resource["operationType"] for op in cloud.world.operations.values()]
    assert (billed(cloud), len(machines(cloud))) == ([], int(there))
    assert set(kinds[before:]) <= {"setLabels"}
    assert workspace.type("ps", check=0).out.count("running") == 0


def test_an_answer_that_waited_while_the_computer_slept_proves_nothing(
    workspace: CloudWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([-7 * 3600.0])
    monkeypatch.setattr(GcpCloud, "ahead_s", lambda _: next(answers, 0.0))
    workspace.type("--yes", "hosts", "up", "l4", check=0)


def test_what_is_on_is_stopped_by_any_clock(
    workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.type("--yes", "hosts", "up", "l4", check=0)
    monkeypatch.setattr(GcpCloud, "ahead_s", lambda _: DAY_S)
    assert len(billed(cloud)) == 1
    workspace.type("--yes", "hosts", "down", "l4", check=0)
    assert billed(cloud) == []
