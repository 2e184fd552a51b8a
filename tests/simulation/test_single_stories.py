"""Single stories: requests that arrive late, records that are deleted, reads that are behind."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.base.errors import CloudError
from orchestrator.base.journal import JournalEntry
from orchestrator.emulator.clock import parse_timestamp
from orchestrator.hosts.audit import audit
from orchestrator.hosts.hosts import down
from orchestrator.leases.machine_lease import MachineLease
from orchestrator.machines.cloud import IN_FLIGHT_S, Endpoint, Power
from orchestrator.machines.provision.actions import Purpose
from orchestrator.machines.provision.release import ReleaseRequest, release
from orchestrator.runs.cost.spending import lines, reservations
from orchestrator.runs.services import Services
from tests.simulation.accounts import RATE
from tests.simulation.cloud import LATENCY, Instance
from tests.simulation.commands import carry_out
from tests.simulation.episode import ZONES, Episode
from tests.simulation.judge import outcome
from tests.simulation.schedule import Command, Schedule
from tests.simulation.world import Actor, Fault

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


@pytest.mark.parametrize("at", [20, 60, 150, 165], ids=["starting", "running", "collecting", "stopping"])
def test_its_machine_goes_off_and_its_results_are_whole(at: int, tmp_path: Path) -> None:
    played = Episode(Schedule(1, (Fault(at, "other"),), ("run",)), tmp_path)
    deleted: list[Path] = []

    def delete() -> None:
        deleted.extend((played.here.root / "results/active").glob("2*"))
        for folder in deleted:
            shutil.rmtree(folder)

    played.world.on["other"] = delete
    assert played.command("run", "fcctl") == "ended"
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]
    services = played.services(Actor("next"))
    (row,) = services.store.rows()
    assert (row.run_id, row.status) == (deleted[0].name, "passed")
    assert [entry.kind for entry in services.store.journal_of(row.run_id)][-1] == "complete"
    assert reservations(services) == []
    booked = sum(line.usd for line in lines(services) if line.what is None)
    assert booked == pytest.approx(played.cloud.spent(RATE), abs=1e-4)


@pytest.mark.parametrize("folder", ["", "active", "runs"])
@pytest.mark.parametrize("at", [20, 54, 148, 158], ids=["starting", "running", "collecting", "stopping"])
def test_a_disk_that_fails_keeps_no_machine_on(at: int, folder: str, tmp_path: Path) -> None:
    """Results that cannot be listed any more, as on a network drive that is gone."""
    played = Episode(Schedule(1, (Fault(at, "other"),), ("run",), day_cap=1.8), tmp_path)
    broken = played.here.root / "results" / folder

    def break_it() -> None:
        shutil.rmtree(broken, ignore_errors=True)
        broken.write_text("whoever lists this folder gets an error of the disk")

    played.world.on["other"] = break_it
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]


def test_a_session_whose_files_are_deleted_while_it_starts_leaves_no_machine_on(tmp_path: Path) -> None:
    played = Episode(Schedule(1, (Fault(30, "other"),), ("session",)), tmp_path)
    played.world.on["other"] = lambda: shutil.rmtree(played.here.root / "results/sessions")
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "session", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["TERMINATED"]


@pytest.mark.parametrize("at", [10, 60, 100])
def test_a_disk_that_fails_stops_no_machine_that_was_on_before(at: int, tmp_path: Path) -> None:
    """``hosts up`` keeps it on, until its own limit."""
    played = Episode(Schedule(1, (), ("up", "run")), tmp_path)
    assert played.command("up", "first") == "ended"
    played.world.faults[played.world.effects + at] = [Fault(at, "other")]

    def break_it() -> None:
        shutil.rmtree(played.here.root / "results/active")
        (played.here.root / "results/active").write_text("whoever lists this folder gets an error of the disk")

    played.world.on["other"] = break_it
    _, ending = played.process("fcctl", played.here, partial(carry_out, played, "run", played.here))
    assert ending.startswith("refused: ")
    assert [instance.status for instance in played.cloud.instances.values()] == ["RUNNING"]


ZONE, STALE_S = ZONES[0], 10.0


@pytest.fixture
def played(tmp_path: Path) -> Episode:
    """The target's machine has just been started by a process that is gone, and reads show it stopped."""
    played = Episode(Schedule(0, (), ("run",)), tmp_path)
    played.world.stale_seconds = STALE_S
    name = played.here.target.instance
    played.cloud.ask("POST", f"zones/{ZONE}/instances/{name}/start", {}, {})
    played.world.advance(LATENCY.staging + 1)
    assert the_machine(played).status == "RUNNING"
    seen = services(played).clouds.open(played.here.target).machine(ZONE, name)
    assert seen is not None
    assert seen.power is Power.STOPPED
    return played


def the_machine(played: Episode) -> Instance:
    return played.cloud.instances[ZONE, played.here.target.instance]


def services(played: Episode) -> Services:
    return played.services(Actor("another process"))


@pytest.mark.parametrize("is_known", [False, True])
def test_it_is_stopped(played: Episode, is_known: bool) -> None:
    wanted = ReleaseRequest(ZONE, the_machine(played).id if is_known else None)
    (done,) = release(services(played), played.here.target, [wanted], "stop", lambda *_, **__: None)
    assert (done.how, the_machine(played).status) == ("stopped", "TERMINATED")


@pytest.mark.parametrize("times", [1, 3, 4])
def test_a_stop_that_was_accepted_and_then_failed_is_requested_again(played: Episode, times: int) -> None:
    """Whatever the cloud calls it: what is not stopped costs."""
    unknown = {"operation": {"code": "NOBODY_KNOWS_THIS", "http": None}}
    played.cloud.faults.add(action="instances.stop", nth=f"1-{times}", do=unknown)
    began, target, request = played.world.now, played.here.target, ReleaseRequest(ZONE, the_machine(played).id)
    ends = pytest.raises(CloudError, match="NOBODY_KNOWS_THIS") if times > 3 else nullcontext()
    with ends:
        release(services(played), target, [request], "stop", lambda *_, **__: None)
    assert the_machine(played).status == ("RUNNING" if times > 3 else "TERMINATED")
    assert played.world.now - began < 120


def test_nobody_logs_in_to_a_machine_that_is_being_stopped_without_asking_the_cloud(played: Episode) -> None:
    """It still answers for a moment: a run would begin there, and go off with it."""
    here, target, deadlines = services(played), played.here.target, list[float | None]()
    known = Endpoint(
        target.project, target.instance, ZONE, the_machine(played).id, "10.0.0.2", 22, "me", "/key", (), deadline=1e10
    )
    here.book.remember(known)

    def log(kind: str, **data: object) -> None:
        seen = here.book.known(target.project, target.instance)
        deadlines.append(None if seen is None else seen.deadline)

    release(here, target, [ReleaseRequest(ZONE, known.instance_id)], "stop", log)
    after = here.book.known(target.project, target.instance)
    assert (deadlines, after is not None and bool(after.our_stop)) == ([None], True)


def test_its_owner_does_not_take_it_for_stopped(played: Episode) -> None:
    machine = the_machine(played)
    started = parse_timestamp(machine.resource["lastStartTimestamp"])
    facts: dict[str, Any] = {"zone": ZONE, "name": machine.name, "instance_id": machine.id, "started": started}
    entry = JournalEntry(seq=1, time=played.world.now, kind="acquired", data=facts)
    host = cast("Any", None)
    own = services(played)
    lease = MachineLease(own, played.here.target, Purpose("r"), host, lambda: [entry], lambda *_, **__: None)
    assert lease.why_stopped() is None
    played.world.advance(STALE_S)
    played.cloud.preempt(machine)
    played.world.advance(STALE_S + 60)
    stopped = lease.why_stopped()
    assert stopped is not None
    assert stopped.how == "preempted"
