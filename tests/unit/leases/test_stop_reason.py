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


def operation(kind: str, refusal: Refusal | None = None, request_id: str = "") -> Operation:
    return Operation("op", "us-west1-c", kind, "vm", "DONE", refusal, 1000.0, 1000.0, request_id=request_id)


PREEMPTED, OFF_BY_ITSELF = operation("compute.instances.preempted"), operation("compute.instances.guestTerminate")
STOP = operation("stop")


@pytest.mark.parametrize(
    ("operations", "more", "how", "status"),
    [
        ([PREEMPTED], {}, "preempted", "preempted"),
        ([operation("setLabels"), PREEMPTED, operation("start"), STOP], {}, "preempted", "preempted"),
        ([operation("stop", Refusal("x", "no", Remedy.FATAL)), PREEMPTED], {}, "preempted", "preempted"),
        ([operation("compute.instances.deferredStop")], {}, "fence", "over_budget"),
        ([operation("compute.instances.hostError")], {}, "host_error", "lost"),
        ([OFF_BY_ITSELF], {}, "guest", "lost"),
        ([OFF_BY_ITSELF], {"timer": 1030.0}, "timer", "over_budget"),
        ([OFF_BY_ITSELF], {"timer": 5000.0}, "guest", "lost"),
        # The host program ends the run by its own clock, idles for a moment and has the machine turned off.
        ([OFF_BY_ITSELF], {"timer": 5000.0, "money_until": 960.0}, "timer", "over_budget"),
        ([OFF_BY_ITSELF], {"timer": 5000.0, "money_until": 1200.0}, "guest", "lost"),
        ([STOP], {"money_until": 960.0}, "console", "lost"),
        ([operation("suspend")], {}, "console", "lost"),
        ([operation("delete")], {}, "console", "lost"),
        ([operation("stop", request_id=new_request_id())], {}, "fcctl", "lost"),
        ([operation("stop", request_id=str(uuid.uuid4()))], {}, "console", "lost"),
        ([STOP], {"our_stop": "op"}, "fcctl", "lost"),
        ([STOP], {"our_stop": "another"}, "console", "lost"),
        ([], {}, "unknown", "lost"),
        ([operation("delete")], {"seen": None}, "deleted", "lost"),
        ([PREEMPTED], {"seen": None}, "preempted", "preempted"),
        ([], {"seen": machine("RUNNING", id="8")}, "replaced", "lost"),
        *(([STOP], {"seen": machine(status)}, None, None)
          for status in ("RUNNING", "STAGING", "PROVISIONING", "REPAIRING", "WHO_KNOWS")),
    ],
)  # fmt: skip
def test_the_newest_word_of_the_cloud_on_a_stop_says_how_the_run_ends(
    operations: list[Operation], more: dict[str, Any], how: str | None, status: str | None
) -> None:
    asked = {"seen": machine(stopped=900.0), "timer": None, **more}
    found = why_stopped("vm", "7", operations=operations, **asked)
    if found is None:
        assert how is None
        return
    assert (found.how, found.status) == (how, status)
    assert found.disk is (asked["seen"] is not None and asked["seen"].id == "7")
    assert found.at == (1000.0 if operations else asked["seen"].stopped)
    assert "vm" in found.message
    by_fcctl = "by fcctl: hosts down, hosts audit --stop, or the end of a run or session"
    assert (by_fcctl in found.message) is (how == "fcctl")


def test_request_ids_of_fcctl_are_uuids_that_no_other_one_is_taken_for() -> None:
    made = {new_request_id() for _ in range(200)}
    assert len(made) == 200
    assert all(str(uuid.UUID(one)) == one and uuid.UUID(one).version == 4 for one in made)
    assert all(is_fcctls(one) and is_fcctls(one.upper()) for one in made)
    assert not any(is_fcctls(str(uuid.uuid4())) for _ in range(200))
    assert not any(map(is_fcctls, ["", "no uuid", "0" * 36, "\u0660" * 32]))
