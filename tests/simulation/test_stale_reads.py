"""Reads of a machine that are behind an operation that is DONE, as another process meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.base.journal import JournalEntry
from orchestrator.emulator.clock import parse_timestamp
from orchestrator.leases.machine_lease import MachineLease
from orchestrator.machines.cloud import Power
from orchestrator.machines.provision.actions import Purpose
from orchestrator.machines.provision.release import ReleaseRequest, release
from orchestrator.runs.services import Services
from tests.simulation.cloud import LATENCY, Instance
from tests.simulation.episode import ZONES, Episode
from tests.simulation.schedule import Schedule
from tests.simulation.world import Actor

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
