"""Why a machine does not run any more, and what that makes of the run."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from orchestrator.machines.cloud import Machine, Operation, Refusal, Remedy
from orchestrator.machines.power_history import why_stopped
from orchestrator.machines.provision.ready import is_fcctls, new_request_id


def machine(status: str = "TERMINATED", **changes: Any) -> Machine:
    return Machine("proj", "us-west1-c", "vm", **{"id": "7", "status": status, **changes})


def operation(kind: str, at: float = 100.0, refusal: Refusal | None = None, request_id: str = "") -> Operation:
    return Operation("op", "us-west1-c", kind, "vm", "DONE", refusal, at, at, request_id=request_id)


@pytest.mark.parametrize(
    ("kind", "how", "status"),
    [
        ("compute.instances.preempted", "preempted", "preempted"),
        ("compute.instances.deferredStop", "fence", "over_budget"),
        ("compute.instances.hostError", "host_error", "lost"),
        ("compute.instances.guestTerminate", "guest", "lost"),
        ("stop", "console", "lost"),
        ("suspend", "console", "lost"),
    ],
)
def test_the_newest_word_of_the_cloud(kind: str, how: str, status: str) -> None:
    found = why_stopped("vm", "7", machine(), [operation("setLabels"), operation(kind), operation("start")], None)
    assert found is not None
    assert (found.how, found.status, found.disk) == (how, status, True)
    assert "vm" in found.message


def test_its_own_timer_is_a_budget() -> None:
    ended = [operation("compute.instances.guestTerminate", at=1000.0)]
    timer = why_stopped("vm", "7", machine(), ended, timer=1030.0)
    early = why_stopped("vm", "7", machine(), ended, timer=5000.0)
    assert timer is not None
    assert early is not None
    assert (timer.how, early.how) == ("timer", "guest")


def test_off_once_the_money_was_spent_is_a_budget_too() -> None:
    """The host program ends the run by its own clock, idles for a moment and has the machine turned off."""
    ended = [operation("compute.instances.guestTerminate", at=1000.0)]
    spent = why_stopped("vm", "7", machine(), ended, timer=5000.0, money_until=960.0)
    early = why_stopped("vm", "7", machine(), ended, timer=5000.0, money_until=1200.0)
    by_hand = why_stopped("vm", "7", machine(), [operation("stop", at=1000.0)], timer=None, money_until=960.0)
    assert [(one.how, one.status) for one in (spent, early, by_hand) if one is not None] == [
        ("timer", "over_budget"), ("guest", "lost"), ("console", "lost"),
    ]  # fmt: skip


def test_a_stop_by_fcctl_is_known_by_its_request_or_by_the_operation_that_was_remembered() -> None:
    by_request = why_stopped("vm", "7", machine(), [operation("stop", request_id=new_request_id())], None)
    remembered = why_stopped("vm", "7", machine(), [operation("stop")], None, our_stop="op")
    assert remembered is not None
    assert remembered.message.endswith("hosts down, hosts audit --stop, or the end of a run or session")
    by_others = [
        why_stopped("vm", "7", machine(), [operation("stop", request_id=str(uuid.uuid4()))], None),
        why_stopped("vm", "7", machine(), [operation("stop")], None, our_stop="another"),
        why_stopped("vm", "7", machine(), [operation("delete")], None),
    ]
    assert [one.how for one in (by_request, remembered, *by_others) if one is not None] == [
        "fcctl", "fcctl", "console", "console", "console",
    ]  # fmt: skip


def test_request_ids_of_fcctl_are_uuids_that_no_other_one_is_taken_for() -> None:
    made = {new_request_id() for _ in range(200)}
    assert len(made) == 200
    assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4 for one in made)
    assert all(is_fcctls(one) and is_fcctls(one.upper()) for one in made)
    assert not any(is_fcctls(str(uuid.uuid4())) for _ in range(200))
    assert not any(map(is_fcctls, ["", "no uuid", "0" * 36, "\u0660" * 32]))


def test_a_refused_stop_stopped_nothing() -> None:
    refused = operation("stop", refusal=Refusal("x", "no", Remedy.FATAL))
    found = why_stopped("vm", "7", machine(), [refused, operation("compute.instances.preempted")], None)
    assert found is not None
    assert found.how == "preempted"


@pytest.mark.parametrize("status", ["RUNNING", "STAGING", "PROVISIONING", "REPAIRING", "WHO_KNOWS"])
def test_one_that_runs_or_comes_back_is_not_stopped(status: str) -> None:
    assert why_stopped("vm", "7", machine(status), [operation("stop")], None) is None


def test_gone_with_its_disk() -> None:
    deleted = why_stopped("vm", "7", None, [operation("delete")], None)
    preempted = why_stopped("vm", "7", None, [operation("compute.instances.preempted")], None)
    another = why_stopped("vm", "7", machine("RUNNING", id="8"), [], None)
    assert deleted is not None
    assert preempted is not None
    assert another is not None
    assert (deleted.how, preempted.how, another.how) == ("deleted", "preempted", "replaced")
    assert (deleted.status, preempted.status, another.status) == ("lost", "preempted", "lost")
    assert [deleted.disk, preempted.disk, another.disk] == [False] * 3


def test_a_cloud_that_does_not_say() -> None:
    found = why_stopped("vm", "7", machine(), [], None)
    assert found is not None
    assert (found.how, found.status) == ("unknown", "lost")
