"""Flex start and reservations: what Google's own client sends and reads back, and what the emulated cloud does then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.emulator.scenario import Latency, Reservation
from orchestrator.machines.cloud import QUEUED, Operation, Power, Remedy
from orchestrator.providers.gcp import messages
from tests.integration.providers.conftest import ZONE, World, rid
from tests.support.waiting import wait_for

Worlds = Callable[..., World]
NAMED = {ZONE: {"my-l4": Reservation(count=1, specific=True)}}


def asked(here: World, name: str = "vm", **spec: Any) -> Operation:
    """A creation that has ended, well or not."""
    return here.cloud.wait(here.cloud.create(ZONE, here.spec(name, **spec), rid()), 600)


def resource(here: World, name: str = "vm") -> dict[str, Any]:
    return here.emulator.machine(name).resource


# ----------------------------------------------------------------------------------------------------- what is sent
def test_who_asks_for_neither_sends_nothing_of_it(world: Worlds) -> None:
    """Another cloud, an older service: they see what they have always seen."""
    here = world()
    for way in ("on_demand", "spot"):
        sent = messages.instance(here.spec(way=way, flex_wait_s=1800.0), ZONE)
        assert not {"params", "reservation_affinity"} & sent.keys()
    assert here.made().reservation == "any", "the cloud's default"


@pytest.mark.parametrize(
    ("wanted", "sent", "read"),
    [
        ("any", {"consumeReservationType": "ANY_RESERVATION"}, "any"),
        ("none", {"consumeReservationType": "NO_RESERVATION"}, "none"),
        ("my-l4", {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["my-l4"],
                   "key": "compute.googleapis.com/reservation-name"}, "my-l4"),
        ("projects/other-team/reservations/my-l4",
         {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["projects/other-team/reservations/my-l4"],
          "key": "compute.googleapis.com/reservation-name"}, "projects/other-team/reservations/my-l4"),
    ],
)  # fmt: skip
def test_a_reservation_is_asked_for_and_read_back(world: Worlds, wanted: str, sent: dict[str, Any], read: str) -> None:
    here = world(reservations=NAMED)
    machine = here.made(reservation=wanted)
    assert resource(here)["reservationAffinity"] == sent
    assert machine.reservation == read


def test_a_flex_start_machine_is_limited_from_its_start_and_uses_no_reservation(world: Worlds) -> None:
    here = world()
    machine = here.made(way="flex_start", flex_wait_s=1800.0, reservation="my-l4")
    scheduling = resource(here)["scheduling"]
    assert {key: scheduling[key] for key in ("provisioningModel", "onHostMaintenance", "automaticRestart")} == {
        "provisioningModel": "FLEX_START", "onHostMaintenance": "TERMINATE", "automaticRestart": False,
    }  # fmt: skip
    assert resource(here)["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    assert (machine.max_run_s, machine.termination_action, machine.spot) == (3600, "STOP", False)
    assert machine.deadline == pytest.approx((machine.started or 0) + 3600, abs=0.01)


def test_a_machine_of_calendar_mode_is_bound_to_its_reservation(world: Worlds) -> None:
    here = world(reservations=NAMED, stock={ZONE: 0})
    machine = here.made(way="reservation_bound", reservation="my-l4")
    assert resource(here)["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert (machine.reservation, machine.max_run_s) == ("my-l4", 3600)


# ---------------------------------------------------------------------------------------------------------- what is had
def test_reserved_capacity_is_beside_the_stock_and_is_used_up(world: Worlds) -> None:
    here = world(reservations=NAMED, stock={ZONE: 0})
    here.made(reservation="my-l4")
    refused = asked(here, "second", reservation="my-l4").refusal
    assert refused is not None
    assert refused.remedy is Remedy.NEXT_ZONE
    here.ok(here.cloud.stop(here.get(), rid()))
    here.made("second", reservation="my-l4")
    again = here.cloud.wait(here.cloud.start(here.get(), rid()), 600).refusal
    assert again is not None, "what stopped has given it back, and another has it now"


def test_any_reservation_is_one_that_is_open(world: Worlds) -> None:
    here = world(reservations=NAMED, stock={ZONE: 0})
    assert asked(here).refusal is not None, "it wants to be named"
    here.emulator.scenario.reservations[ZONE]["open"] = Reservation()
    here.made(reservation="any")
    assert asked(here, "second", reservation="none").refusal is not None


def test_a_reservation_that_is_not_there_is_no_matter_of_waiting(world: Worlds) -> None:
    here = world()
    refused = asked(here, reservation="my-l5").refusal
    assert refused is not None
    assert refused.remedy is Remedy.FATAL
    assert "my-l5" in refused.message
    assert here.cloud.machine(ZONE, "vm") is None
    assert here.emulator.world.disks == {}, "nothing is left of it"


def test_one_in_the_queue_starts_when_there_is_stock_and_is_not_billed_before(world: Worlds) -> None:
    here = world(stock={ZONE: 0}, latency=Latency())
    operation = here.cloud.create(ZONE, here.spec(way="flex_start", flex_wait_s=1800.0), rid())
    wait_for(lambda: here.get().status == QUEUED)
    here.emulator.advance(600)
    queued = here.get()
    assert (queued.status, queued.power, queued.started) == (QUEUED, Power.STARTING, None)
    here.emulator.scenario.stock[ZONE] = 1
    here.emulator.advance(10)
    here.ok(operation)
    machine = here.get()
    assert machine.power is Power.RUNNING
    assert (machine.started or 0) - (machine.created or 0) > 600
    assert machine.deadline == pytest.approx((machine.started or 0) + 3600, abs=0.01), "from its start"


def test_one_whose_time_in_the_queue_is_over_is_gone(world: Worlds) -> None:
    here = world(stock={ZONE: 0})
    operation = here.cloud.create(ZONE, here.spec(way="flex_start", flex_wait_s=90.0), rid())
    wait_for(lambda: here.get().status == QUEUED)
    here.emulator.advance(80)
    assert here.get().status == QUEUED
    here.emulator.advance(15)
    refused = here.cloud.wait(operation, 600).refusal
    assert refused is not None
    assert refused.remedy is Remedy.NEXT_ZONE
    assert here.cloud.machine(ZONE, "vm") is None
    assert here.emulator.world.disks == {}


def test_one_in_the_queue_cannot_be_stopped_and_can_be_deleted(world: Worlds) -> None:
    here = world(stock={ZONE: 0})
    here.cloud.create(ZONE, here.spec(way="flex_start", flex_wait_s=90.0), rid())
    wait_for(lambda: here.get().status == QUEUED)
    refused = here.cloud.wait(here.cloud.stop(here.get(), rid()), 60).refusal
    assert refused is not None
    here.ok(here.cloud.delete(here.get(), rid()))
    assert here.cloud.machine(ZONE, "vm") is None


def test_without_a_wait_only_what_is_there_at_once_is_given(world: Worlds) -> None:
    here = world(stock={ZONE: 0})
    assert asked(here, way="flex_start").refusal is not None
    here.emulator.scenario.stock[ZONE] = 1
    assert asked(here, way="flex_start").refusal is None


def test_flex_start_counts_against_the_preemptible_quota(world: Worlds) -> None:
    here = world(quotas={"us-central1": {"NVIDIA_L4_GPUS": 0, "PREEMPTIBLE_NVIDIA_L4_GPUS": 1}})
    assert asked(here).refusal is not None
    here.made("flexible", way="flex_start")
    assert asked(here, "second", way="flex_start").refusal is not None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"way": "flex_start", "max_run_s": 599}, "maxRunDuration"),
        ({"way": "flex_start", "max_run_s": 7 * 86400 + 1}, "maxRunDuration"),
        ({"way": "flex_start", "flex_wait_s": 89.0}, "requestValidForDuration"),
        ({"way": "flex_start", "flex_wait_s": 7201.0}, "requestValidForDuration"),
        ({"way": "flex_start", "machine_type": "n1-standard-4"}, "provisioningModel"),
        ({"way": "reservation_bound", "reservation": "any"}, "reservationAffinity"),
    ],
)
def test_what_the_service_does_not_take(world: Worlds, spec: dict[str, Any], words: str) -> None:
    here = world(reservations=NAMED)
    refused = asked(here, **spec).refusal
    assert refused is not None
    assert (refused.remedy, words in refused.message) == (Remedy.FATAL, True)
    assert here.emulator.world.machines == {}


def test_a_flex_start_machine_that_stopped_gets_another_limit_and_starts_again(world: Worlds) -> None:
    here = world()
    machine = here.stopped(way="flex_start", flex_wait_s=90.0)
    here.ok(here.cloud.set_max_run(machine, 1200, rid()))
    assert resource(here)["scheduling"]["provisioningModel"] == "FLEX_START"
    here.ok(here.cloud.start(here.get(), rid()))
    assert here.get().max_run_s == 1200
