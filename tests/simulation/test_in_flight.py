"""A request is on its way to the cloud when its controller is killed, and arrives after the next command has looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.base.journal import JournalEntry
from orchestrator.hosts.audit import audit
from orchestrator.hosts.hosts import down
from orchestrator.machines.provision.release import IN_FLIGHT_S
from orchestrator.runs.services import Services
from tests.simulation.episode import Episode
from tests.simulation.judge import outcome
from tests.simulation.schedule import Command, Schedule
from tests.simulation.world import Fault

LATE_S = 15.0
#: With this seed the second command comes 5 s after the first.
SOON = 2
SESSION: tuple[Command, ...] = ("session", "session stop", "ps")


def starts(schedule: Schedule, folder: Path) -> list[int]:
    """The effects at which the cloud is asked to start or create a machine."""
    folder.mkdir()
    played = Episode(schedule, folder)
    played.play()
    lines = [line.split() for line in played.world.trace if ": cloud.start" in line or ": cloud.create" in line]
    return [int(line[1]) for line in lines]


@pytest.mark.parametrize("exists", [True, False], ids=["started", "created"])
@pytest.mark.parametrize("commands", [("run", "ps"), ("detach", "wake"), SESSION], ids=lambda names: names[0])
def test_the_next_command_turns_the_machine_off(commands: tuple[Command, ...], exists: bool, tmp_path: Path) -> None:
    schedule = Schedule(SOON, (), commands, exists=exists)
    requests = starts(schedule, tmp_path / "first")
    assert requests
    killed = [replace(schedule, faults=(Fault(at, "kill_late", LATE_S),)) for at in requests]
    assert list(filter(None, map(outcome, killed))) == []


def _down(played: Episode, services: Services) -> bool:
    return bool(down(services, played.here.target, workspace="sim"))


def _audit(played: Episode, services: Services) -> bool:
    found = audit(services, played.targets, workspace="sim")
    return any(one.machine.billed for one in found.findings)


@pytest.mark.parametrize("what", ["up", "run", "session"])
@pytest.mark.parametrize("sees", [_down, _audit])
def test_no_command_calls_the_machine_off(
    sees: Callable[[Episode, Services], bool], what: Command, tmp_path: Path
) -> None:
    (at, *_) = starts(Schedule(SOON, (), (what,)), tmp_path / "first")
    (tmp_path / "second").mkdir()
    played = Episode(Schedule(SOON, (Fault(at, "kill_late", LATE_S),), (what,)), tmp_path / "second")
    assert played.command(what, "killed") == "killed"
    played.world.advance(5)
    saw: list[bool] = []
    played.process("next", played.here, lambda services, _: saw.append(sees(played, services)))
    assert saw == [True]


def test_a_start_that_was_refused_at_once_is_not_waited_for(tmp_path: Path) -> None:
    """Its refusal is in the journal, for whoever looks."""
    played = Episode(Schedule(SOON, (), ("run",)), tmp_path)
    denied = {"http": {"status": 403, "reason": "forbidden"}}
    played.cloud.faults.add(action="instances.start", do=denied)
    began = played.world.now
    assert played.command("run", "refused").startswith("refused: the cloud refused the request")
    assert played.world.now - began < IN_FLIGHT_S / 2
    kinds = [entry.kind for entry in journal(played)]
    assert "refused" in kinds


def journal(played: Episode) -> list[JournalEntry]:
    store = played.stores()[0]
    (row,) = store.rows()
    return store.journal_of(row.run_id)
