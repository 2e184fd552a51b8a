"""Every change, whatever becomes of its reply: one change, and its true outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.base.errors import CloudError
from orchestrator.machines.cloud import Machine, Operation, Power, Remedy
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.integration.providers.conftest import ZONE, World, rid
from tests.support.tiers import sampled

Worlds = Callable[..., World]
Act = Callable[[World, Machine, str], Operation]


class Change:
    """One of the port's mutations: what it needs, what the API calls it, how its effect shows."""

    def __init__(self, action: str, kind: str, before: str, act: Act, holds: Callable[[World], bool]) -> None:
        self.action, self.kind, self.before, self.act, self.holds = action, kind, before, act, holds

    def machine(self, world: World) -> Machine:
        if self.before == "absent":
            return Machine(world.cloud.project, ZONE, "vm", "0", "")
        machine = world.made()
        if self.before == "stopped":
            world.ok(world.cloud.stop(machine, rid()))
        return world.get()


def status(wanted: Power) -> Callable[[World], bool]:
    return lambda world: world.get().power is wanted


CHANGES = {
    "create": Change("instances.insert", "insert", "absent",
                     lambda w, m, r: w.cloud.create(ZONE, w.spec(), r), status(Power.RUNNING)),
    "start": Change("instances.start", "start", "stopped", lambda w, m, r: w.cloud.start(m, r), status(Power.RUNNING)),
    "stop": Change("instances.stop", "stop", "running", lambda w, m, r: w.cloud.stop(m, r), status(Power.STOPPED)),
    "delete": Change("instances.delete", "delete", "running", lambda w, m, r: w.cloud.delete(m, r),
                     lambda w: w.cloud.machine(ZONE, "vm") is None),
    "set_max_run": Change("instances.setScheduling", "setScheduling", "stopped",
                          lambda w, m, r: w.cloud.set_max_run(m, 777, r), lambda w: w.get().max_run_s == 777),
    "set_labels": Change("instances.setLabels", "setLabels", "running",
                         lambda w, m, r: w.cloud.set_labels(m, {"fcctl-run": "r"}, r),
                         lambda w: w.get().labels == {"fcctl": "x", "fcctl-workspace": "w", "fcctl-run": "r"}),
    "set_metadata": Change("instances.setMetadata", "setMetadata", "running",
                           lambda w, m, r: w.cloud.set_metadata(m, {"more": "y"}, r),
                           lambda w: {"more", "ssh-keys", "enable-guest-attributes"} <= set(w.get().metadata)),
    "snapshot": Change("disks.createSnapshot", "createSnapshot", "stopped",
                       lambda w, m, r: w.cloud.snapshot(m, "snap", r), lambda w: w.cloud.has_snapshot("snap")),
}  # fmt: skip

#: What goes wrong with the requests of a change, and how often it is asked for because of that.
TROUBLE: dict[str, list[dict[str, Any]]] = {
    "nothing goes wrong": [],
    "request lost": [{"nth": 1, "do": {"drop": "before"}}],
    "reply lost": [{"nth": 1, "do": {"drop": "after"}}],
    "replies lost, and then the id is refused": [
        {"nth": "1-2", "do": {"drop": "after"}}, {"nth": 3, "do": {"http": {"status": 409, "reason": "conflict"}}},
    ],
    "reply lost, and then the machine is gone": [
        {"nth": 1, "do": {"drop": "after"}}, {"nth": 2, "do": {"http": 404}},
    ],
    "reply lost, and then the fingerprint is another": [
        {"nth": 1, "do": {"drop": "after"}}, {"nth": 2, "do": {"http": 412}},
    ],
    "a storm": [
        {"nth": 1, "do": {"http": 429}}, {"nth": 2, "do": {"http": {"status": 403, "reason": "rateLimitExceeded"}}},
        {"nth": 3, "do": {"http": 503}}, {"nth": 4, "do": {"http": 500}}, {"nth": 5, "do": {"http": 502}},
        {"nth": 6, "do": {"drop": "before"}}, {"nth": 7, "do": {"drop": "after"}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("name", sampled(CHANGES, keep=("create", "start", "stop")))
def test_one_change_comes_of_it(world: Worlds, name: str, trouble: str) -> None:
    here, change = world(), CHANGES[name]
    machine = change.machine(here)
    before = here.requests(change.kind)
    for fault in TROUBLE[trouble]:
        here.emulator.faults.add(action=change.action, **fault)
    operation = change.act(here, machine, rid())
    assert operation.refusal is None
    assert operation.zone == ZONE
    here.ok(operation)
    assert here.requests(change.kind) == before + 1
    assert change.holds(here)


@pytest.mark.parametrize("how", ["denied", "silent"])
def test_a_lost_reply_where_operations_cannot_be_listed_is_a_reason_to_look(world: Worlds, how: str) -> None:
    """Not an error: the machine would be taken for refused, and stay on."""
    here = world(denied=("zoneOperations.list",) if how == "denied" else ())
    here.emulator.faults.add(action="instances.insert", nth=1, do={"drop": "after"})
    here.emulator.faults.add(action="instances.insert", nth=2, do={"http": {"status": 409, "reason": "alreadyExists"}})
    if how == "silent":
        here.emulator.faults.add(action="zoneOperations.list", do={"http": 503})
    refusal = here.cloud.create(ZONE, here.spec(), rid()).refusal
    assert refusal is not None
    assert refusal.remedy is Remedy.LOOK_AGAIN
    assert here.get().power is Power.RUNNING


@pytest.mark.parametrize("name", CHANGES)
def test_a_controller_that_comes_back_with_the_same_id_changes_nothing_more(world: Worlds, name: str) -> None:
    here, change = world(), CHANGES[name]
    machine, request_id = change.machine(here), rid()
    before = here.requests(change.kind)
    first = here.ok(change.act(here, machine, request_id))
    again = change.act(here, machine, request_id)
    assert again.name == first.name
    assert here.requests(change.kind) == before + 1


@pytest.mark.parametrize("name", sampled(CHANGES, keep=("stop",)))
@pytest.mark.parametrize("fault", [{"http": 503}, {"http": 429}, {"drop": "before"}], ids=["503", "429", "cut"])
def test_trouble_that_lasts_is_an_error_in_the_end(world: Worlds, name: str, fault: dict[str, Any]) -> None:
    here, change = world(), CHANGES[name]
    machine = change.machine(here)
    before, began = here.requests(change.kind), here.clock.now()
    here.emulator.faults.add(action=change.action, do=fault)
    with pytest.raises(CloudError, match="did not answer") as error:
        change.act(here, machine, rid())
    assert error.value.cause
    assert error.value.hint
    assert here.requests(change.kind) == before
    assert here.clock.now() - began < 150
    assert len(here.clock.slept) < 40


@pytest.mark.parametrize(
    ("http", "remedy"),
    [
        ({"status": 400, "reason": "invalid"}, Remedy.FATAL),
        ({"status": 400, "reason": "resourceNotReady"}, Remedy.NOT_READY),
        ({"status": 412, "reason": "conditionNotMet"}, Remedy.LOOK_AGAIN),
        ({"status": 403, "reason": "quotaExceeded", "message": "Quota 'NVIDIA_L4_GPUS' exceeded. Limit: 0.0"},
         Remedy.NEXT_REGION),
    ],
    ids=["invalid", "not ready", "changed", "quota"],
)  # fmt: skip
@pytest.mark.parametrize("name", sampled(CHANGES, keep=("create", "start")))
def test_what_is_refused_at_once_does_not_raise(world: Worlds, name: str, http: dict[str, Any], remedy: Remedy) -> None:
    here, change = world(), CHANGES[name]
    machine = change.machine(here)
    before = here.requests(change.kind)
    here.emulator.faults.add(action=change.action, do={"http": http})
    operation = change.act(here, machine, rid())
    assert operation.done
    assert operation.refusal is not None
    assert (operation.refusal.remedy, operation.refusal.http_status) == (remedy, http["status"])
    assert (operation.type, operation.target) == (change.kind, "vm")
    assert here.cloud.wait(operation, 60) is operation
    assert here.requests(change.kind) == before


# ---------------------------------------------------------------------------------------- what the operation ends with
OPERATION_ERRORS: list[tuple[dict[str, Any], Remedy]] = [
    ({"stockout": {"zones": ["us-east1-b"]}}, Remedy.NEXT_ZONE),
    ({"stockout": {"detailed": False}}, Remedy.NEXT_ZONE),
    ({"operation": {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "http": None}}, Remedy.NEXT_ZONE),
    ({"quota": "NVIDIA_L4_GPUS"}, Remedy.NEXT_REGION),
    ({"quota": "GPUS_ALL_REGIONS"}, Remedy.FATAL),
    ({"operation": {"code": "INTERNAL_ERROR", "http": None}}, Remedy.RETRY),
    ({"operation": {"code": "RESOURCE_OPERATION_RATE_EXCEEDED", "http": 403}}, Remedy.RETRY),
    ({"operation": {"code": "RESOURCE_NOT_READY", "http": 400}}, Remedy.NOT_READY),
    ({"operation": {"code": "IAM_PERMISSION_DENIED", "http": 403}}, Remedy.FATAL),
    ({"operation": {"code": "NOBODY_KNOWS_THIS", "http": None}}, Remedy.FATAL),
]


@pytest.mark.parametrize(("fault", "remedy"), OPERATION_ERRORS, ids=[str(fault) for fault, _ in OPERATION_ERRORS])
@pytest.mark.parametrize("name", ["create", "start"])
def test_an_operation_that_fails_says_why(world: Worlds, name: str, fault: dict[str, Any], remedy: Remedy) -> None:
    here, change = world(), CHANGES[name]
    machine = change.machine(here)
    here.emulator.faults.add(action=change.action, do=fault)
    operation = here.cloud.wait(change.act(here, machine, rid()), 600)
    assert operation.done
    assert operation.refusal is not None
    assert operation.refusal.remedy is remedy
    if "zones" in str(fault):
        assert operation.refusal.zones_available == ("us-east1-b",)
    found = here.cloud.machine(ZONE, "vm")
    assert found is None if name == "create" else found is not None and found.power is Power.STOPPED


def test_a_conflict_with_another_controller_s_machine(world: Worlds) -> None:
    """The name is taken, and not by an earlier request of ours: look at what is there."""
    here = world()
    here.made()
    operation = here.cloud.create(ZONE, here.spec(), rid())
    assert operation.refusal is not None
    assert (operation.refusal.code, operation.refusal.remedy) == ("alreadyExists", Remedy.LOOK_AGAIN)


@pytest.mark.parametrize("name", [name for name, change in CHANGES.items() if change.before != "absent"])
def test_a_machine_that_is_gone(world: Worlds, name: str) -> None:
    here, change = world(), CHANGES[name]
    machine = change.machine(here)
    here.ok(here.cloud.delete(machine, rid()))
    operation = change.act(here, machine, rid())
    assert operation.refusal is not None
    assert (operation.refusal.remedy, operation.refusal.http_status) == (Remedy.LOOK_AGAIN, 404)


def test_a_stale_fingerprint_changes_nothing(world: Worlds) -> None:
    here = world()
    stale = here.made()
    here.ok(here.cloud.set_labels(stale, {"theirs": "1"}, rid()))
    here.ok(here.cloud.set_metadata(stale, {"theirs": "1"}, rid()))
    for operation in (
        here.cloud.set_labels(stale, {"ours": "1"}, rid()), here.cloud.set_metadata(stale, {"ours": "1"}, rid()),
    ):  # fmt: skip
        assert operation.refusal is not None
        assert operation.refusal.remedy is Remedy.LOOK_AGAIN
    assert "ours" not in {**here.get().labels, **here.get().metadata}


def test_an_id_that_is_none_is_no_request(world: Worlds) -> None:
    with pytest.raises(ValueError):
        world().cloud.create(ZONE, world().spec(), "not a uuid")


def test_reads_that_are_behind_a_change_that_is_done_are_repeated(world: Worlds) -> None:
    w = world(stale_s=10)
    machine = w.made()
    assert machine.power is Power.RUNNING
    assert w.ok(w.cloud.stop(machine, rid())).done
    assert w.get().power is Power.STOPPED
    w.ok(w.cloud.start(machine, rid()))
    assert w.get().power is Power.RUNNING
    w.ok(w.cloud.delete(machine, rid()))
    assert w.cloud.machine(ZONE, "vm") is None


def test_a_machine_that_is_no_longer_as_it_was_left_is_not_waited_for(world: Worlds) -> None:
    """Preempted at once after a start, started by a person at once after a stop."""
    w = world()
    machine = w.stopped()
    w.ok(w.cloud.start(machine, rid()))
    w.emulator.preempt("vm")
    w.clock.sleep(20)
    w.clock.slept.clear()
    assert w.get().power is Power.STOPPED
    w.ok(w.cloud.start(machine, rid()))
    w.ok(w.cloud.stop(machine, rid()))
    other = GcpCloud(w.cloud.project, w.emulator.url, w.clock)
    w.ok(other.wait(other.start(machine, rid()), 60))
    w.clock.slept.clear()
    assert w.get().power is Power.RUNNING
    assert w.clock.slept == []
