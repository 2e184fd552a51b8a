"""What can go wrong with a machine in a cloud, as data: what happens, what is typed, what is seen, left and paid.

``docs/faults.md`` is made of this table (``python -m tests.integration.faults.page``), and every row of it is played by
``test_fault_table.py``: the real command line and Google's own client, before the emulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RUN = "run noop --on l4 --yes"
WORK = "run work --on l4 --yes"
#: For two minutes, so that its own limit has ended it by the end of the row.
UP = "hosts up l4 --minutes 2 --yes"

Fault = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One scenario.

    ``says`` are pieces of what fcctl prints, ``code`` its exit code, ``status`` the run's own; after ``then`` (more
    commands, each with its exit code) nothing is billed.
    """

    name: str
    what: str
    code: int
    says: tuple[str, ...]
    #: The target's machine when the command is typed.
    machine: Literal["absent", "stopped", "suspended", "running", "stopping"] = "absent"
    command: str = RUN
    scenario: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    #: Settings of the target.
    target: Mapping[str, Any] = field(default_factory=dict)
    #: What happens as soon as the step works on the machine: a function of ``happenings.py``.
    during: str | None = None
    #: How much this computer's clock is ahead of the cloud's, seconds.
    ahead_s: float = 0.0
    #: ``preempted or lost``: whether the host program can say goodbye before the power goes.
    status: str | None = None
    then: tuple[tuple[str, int], ...] = ()
    #: Where the machine is in the end; None: nowhere.
    zone: str | None = "us-west1-c"
    #: All places where there is one, if there are several: the original stays when it is rebuilt elsewhere.
    kept: list[str] | None = None
    #: ``nothing``: no machine was on for a second.
    cost: Literal["nothing", "within the plan"] = "within the plan"

    @property
    def statuses(self) -> tuple[str, ...]:
        return tuple(self.status.split(" or ")) if self.status else ()


def operation(code: str, **more: Any) -> Fault:
    return {"operation": {"code": code, **more}}


def on(action: str, do: Any, nth: Any = 1, **more: Any) -> Fault:
    return {"action": f"instances.{action}", "nth": nth, "do": do, **more}


QUOTA = "Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: 0.0 in region us-west1."
ALL_REGIONS = "Quota 'GPUS_ALL_REGIONS' exceeded.  Limit: 0.0 globally."
FAIL = {"on_stockout": "fail"}
NO_STOCK = {"us-west1-c": 0, "us-west1-a": 0, "us-central1-a": 0}

INSERT = (
    Row("insert-stockout", "the first zone has no stock", 0, ("creating cudadent42-l4-dev in us-west1-a",),
        faults=(on("insert", "stockout"),), status="passed", zone="us-west1-a"),
    Row("insert-stockout-plain", "ZONE_RESOURCE_POOL_EXHAUSTED without details", 0, ("us-west1-a",),
        faults=(on("insert", operation("ZONE_RESOURCE_POOL_EXHAUSTED", http=503)),), status="passed",
        zone="us-west1-a"),
    Row("insert-insufficient", "insufficientCapacity in the answer", 0, ("us-west1-a",),
        faults=(on("insert", {"http": {"status": 503, "reason": "insufficientCapacity"}}),), command=UP,
        zone="us-west1-a"),
    Row("insert-stockout-everywhere", "no zone has stock, and the target does not wait", 5, ("us-west1-c",),
        scenario={"stock": NO_STOCK}, target=FAIL, status="error", zone=None, cost="nothing"),
    Row("insert-stockout-waited", "no zone has stock for half an hour", 5, ("no zone has a free",),
        scenario={"stock": NO_STOCK}, target={"stockout_wait_minutes": 5}, status="error", zone=None, cost="nothing"),
    Row("insert-quota", "QUOTA_EXCEEDED of the region", 0, ("us-central1-a",),
        faults=(on("insert", operation("QUOTA_EXCEEDED", http=403, message=QUOTA), path="zones/us-west1-*/*",
                   nth="1+"),),
        status="passed", zone="us-central1-a"),
    Row("insert-quota-answer", "quotaExceeded of the region in the answer", 0, ("us-central1-a",),
        faults=(on("insert", {"http": {"status": 403, "reason": "quotaExceeded", "message": QUOTA}}, nth="1"),),
        command=UP, zone="us-central1-a"),
    Row("insert-quota-project", "GPUS_ALL_REGIONS is 0", 5, ("GPUS_ALL_REGIONS", "iam-admin/quotas"),
        faults=(on("insert", operation("QUOTA_EXCEEDED", http=403, message=ALL_REGIONS), nth="1+"),),
        status="error", zone=None, cost="nothing"),
    Row("insert-unsupported", "UNSUPPORTED_OPERATION: preempted during creation", 0, ("us-west1-a",),
        faults=(on("insert", operation("UNSUPPORTED_OPERATION", http=400)),), status="passed", zone="us-west1-a"),
    Row("insert-spot-quota", "no quota for Spot; on-demand is the target's second choice", 0, ("(spot)",),
        scenario={"quotas": {"us-west1": {"PREEMPTIBLE_NVIDIA_L4_GPUS": 0},
                             "us-central1": {"PREEMPTIBLE_NVIDIA_L4_GPUS": 0}}},
        target={"provisioning": "spot_then_on_demand"}, command=UP),
    Row("insert-on-demand-quota", "no quota on demand; Spot is the target's second choice", 0, ("(spot)",),
        scenario={"quotas": {"us-west1": {"NVIDIA_L4_GPUS": 0}, "us-central1": {"NVIDIA_L4_GPUS": 0}}},
        target={"provisioning": "on_demand_then_spot"}, command=UP),
    Row("insert-preempted", "a Spot machine is preempted while it boots", 5, ("was stopped during its start",),
        scenario={"latency": {"boot": 99}}, target={"provisioning": "spot"}, during="waking_preempted", status="error"),
    Row("insert-not-ready", "RESOURCE_NOT_READY, once", 0, (),
        faults=(on("insert", operation("RESOURCE_NOT_READY", http=400)),), command=UP),
    Row("insert-operation-rate", "RESOURCE_OPERATION_RATE_EXCEEDED, twice", 0, (),
        faults=(on("insert", operation("RESOURCE_OPERATION_RATE_EXCEEDED", http=429), nth="1-2"),), command=UP),
    Row("insert-rate-limit", "403 rateLimitExceeded, three times", 0, (),
        faults=(on("insert", {"http": {"status": 403, "reason": "rateLimitExceeded"}}, nth="1-3"),), command=UP),
    Row("insert-429-storm", "429 to every request for 40 seconds", 0, (),
        faults=({"action": "*", "nth": "1+", "for": 40, "do": {"http": 429}},), command=UP),
    Row("insert-503-storm", "503 to every request for 60 seconds", 0, (),
        faults=({"action": "*", "nth": "1+", "for": 60, "do": {"http": 503}},), status="passed"),
    Row("insert-503-for-ever", "503 to every request, for ever", 6, ("503",),
        faults=({"action": "*", "nth": "1+", "do": {"http": 503}},), status="error", zone=None, cost="nothing"),
    Row("insert-invalid", "invalid: a field has a wrong value", 3, ("invalid",),
        faults=(on("insert", {"http": {"status": 400, "reason": "invalid", "message": "Invalid value for field"}}),),
        status="error", zone=None, cost="nothing"),
    Row("insert-iam", "IAM_PERMISSION_DENIED in the operation", 4, ("IAM_PERMISSION_DENIED",),
        faults=(on("insert", operation("IAM_PERMISSION_DENIED", http=403,
                   message="Required 'compute.subnetworks.use' permission for 'subnet'")),),
        status="error", zone=None, cost="nothing"),
    Row("insert-vpc", "VPC_NOT_FOUND", 3, ("VPC_NOT_FOUND",),
        faults=(on("insert", operation("VPC_NOT_FOUND", http=400, message="The network 'default' was not found")),),
        status="error", zone=None, cost="nothing"),
    Row("insert-no-http-status", "the operation fails without an HTTP status", 0, (),
        faults=(on("insert", operation("INTERNAL_ERROR", http=None)),), command=UP),
    Row("insert-failed-but-there", "the operation reports a failure, but the machine exists", 0, (),
        faults=(on("insert", operation("INTERNAL_ERROR", http=None, applied=True)),), status="passed"),
    Row("insert-lost-before", "the connection breaks before the request is served", 0, (),
        faults=(on("insert", {"drop": "before"}, nth="1-2"),), command=UP),
    Row("insert-lost-after", "the machine is created, and the reply is lost", 0, (),
        faults=(on("insert", {"drop": "after"}),), status="passed"),
    Row("insert-never-finishes", "the operation never ends", 6, ("cudadent42-l4-dev",),
        faults=(on("insert", "never_finish"),), target={"wake_timeout_s": 60}, status="error"),
)  # fmt: skip

START = (
    Row("start-stockout-wait", "the zone has no stock, twice; then it has", 0, ("us-west1-c has no free",),
        machine="stopped", faults=(on("start", "stockout", nth="1-2"),), status="passed"),
    Row("start-stockout-waited", "the zone has no stock for half an hour", 5, ("us-west1-c has no free", "minutes"),
        machine="stopped", scenario={"stock": {"us-west1-c": 0}}, status="error", cost="nothing"),
    Row("start-stockout-fail", "no stock, and the target does not wait", 5, ("us-west1-c has no free",),
        machine="stopped", scenario={"stock": {"us-west1-c": 0}}, target=FAIL, status="error", cost="nothing"),
    Row("start-stockout-rebuild", "no stock, and the target rebuilds elsewhere from a snapshot", 0,
        ("a snapshot of", "creating cudadent42-l4-dev in us-west1-a"), machine="stopped",
        scenario={"stock": {"us-west1-c": 0}}, target={"on_stockout": "rebuild"}, status="passed", zone="us-west1-a",
        kept=["us-west1-a", "us-west1-c"]),
    Row("start-quota", "QUOTA_EXCEEDED: the region's quota is 0", 5, ("NVIDIA_L4_GPUS", "iam-admin/quotas"),
        machine="stopped", target=FAIL, faults=(on("start", operation("QUOTA_EXCEEDED", http=403, message=QUOTA),
        nth="1+"),), status="error", cost="nothing"),
    Row("start-quota-project", "GPUS_ALL_REGIONS is 0", 5, ("GPUS_ALL_REGIONS", "iam-admin/quotas"),
        machine="stopped", faults=(on("start", operation("QUOTA_EXCEEDED", http=403, message=ALL_REGIONS),
        nth="1+"),), status="error", cost="nothing"),
    Row("start-unsupported", "UNSUPPORTED_OPERATION", 3, ("UNSUPPORTED_OPERATION",), machine="stopped",
        faults=(on("start", operation("UNSUPPORTED_OPERATION", http=400), nth="1+"),), status="error",
        cost="nothing"),
    Row("start-not-ready", "resourceNotReady, twice", 0, (), machine="stopped",
        faults=(on("start", {"http": {"status": 400, "reason": "resourceNotReady"}}, nth="1-2"),), command=UP),
    Row("start-while-stopping", "it is still stopping, for three minutes", 0, ("is STOPPING",), machine="stopping",
        scenario={"latency": {"stop": 180}}, status="passed"),
    Row("start-operation-rate", "RESOURCE_OPERATION_RATE_EXCEEDED", 0, (), machine="stopped",
        faults=(on("start", operation("RESOURCE_OPERATION_RATE_EXCEEDED", http=429)),), command=UP),
    Row("start-429-storm", "429 to every request for 40 seconds", 0, (), machine="stopped",
        faults=({"action": "*", "nth": "1+", "for": 40, "do": {"http": 429}},), command=UP),
    Row("start-503-storm", "503 to every change for 60 seconds", 0, (), machine="stopped",
        faults=({"method": "POST", "nth": "1+", "for": 60, "do": {"http": 503}},), status="passed"),
    Row("start-invalid", "badRequest", 3, ("badRequest",), machine="stopped",
        faults=(on("start", {"http": {"status": 400, "reason": "badRequest"}}, nth="1+"),), status="error",
        cost="nothing"),
    Row("start-iam", "the caller may not start machines", 4, ("compute.instances.start",), machine="stopped",
        scenario={"denied": ("instances.start",)}, status="error", cost="nothing"),
    Row("start-no-http-status", "the operation fails without an HTTP status", 0, (), machine="stopped",
        faults=(on("start", operation("INTERNAL_ERROR", http=None)),), command=UP),
    Row("start-lost-before", "the connection breaks before the start is served", 0, (), machine="stopped",
        faults=(on("start", {"drop": "before"}),), command=UP),
    Row("start-lost-after", "it starts, and the reply is lost", 0, (), machine="stopped",
        faults=(on("start", {"drop": "after"}),), status="passed"),
    Row("start-never-finishes", "the start never ends", 6, ("cudadent42-l4-dev",), machine="stopped",
        faults=(on("start", "never_finish"),), target={"wake_timeout_s": 60}, status="error"),
)  # fmt: skip

OTHER_CHANGES = (
    Row("fence-lost-before", "the limit's request breaks off", 0, (), machine="stopped",
        faults=(on("setScheduling", {"drop": "before"}),), command=UP),
    Row("fence-lost-after", "the limit is set, and the reply is lost", 0, (), machine="stopped",
        faults=(on("setScheduling", {"drop": "after"}),), status="passed"),
    Row("fence-refused", "the caller may not set a limit", 4, ("setScheduling",), machine="stopped",
        scenario={"denied": ("instances.setScheduling",)}, status="error", cost="nothing"),
    Row("key-lost-before", "the login key's request breaks off", 0, (), machine="stopped",
        faults=(on("setMetadata", {"drop": "before"}),), command=UP),
    Row("key-lost-after", "the key is set, and the reply is lost", 0, (), machine="stopped",
        faults=(on("setMetadata", {"drop": "after"}),), command=UP),
    Row("label-lost-before", "the label's request breaks off", 0, (), machine="stopped",
        faults=(on("setLabels", {"drop": "before"}),), command=UP),
    Row("label-lost-after", "the label is set, and the reply is lost", 0, (), machine="stopped",
        faults=(on("setLabels", {"drop": "after"}),), command=UP),
    Row("snapshot-lost-before", "the snapshot's request breaks off", 0, ("us-west1-a",), machine="stopped",
        scenario={"stock": {"us-west1-c": 0}}, target={"on_stockout": "rebuild"}, command=UP,
        faults=({"action": "disks.createSnapshot", "nth": 1, "do": {"drop": "before"}},), zone="us-west1-a",
        kept=["us-west1-a", "us-west1-c"]),
    Row("snapshot-lost-after", "the snapshot is made, and the reply is lost", 0, ("us-west1-a",), machine="stopped",
        scenario={"stock": {"us-west1-c": 0}}, target={"on_stockout": "rebuild"},
        faults=({"action": "disks.createSnapshot", "nth": 1, "do": {"drop": "after"}},), status="passed",
        zone="us-west1-a", kept=["us-west1-a", "us-west1-c"]),
    Row("stop-lost-before", "the stop's request breaks off", 0, (),
        faults=(on("stop", {"drop": "before"}),), status="passed"),
    Row("stop-lost-after", "it stops, and the reply is lost", 0, (),
        faults=(on("stop", {"drop": "after"}),), status="passed"),
    Row("stop-503-storm", "503 to every stop for a minute", 0, (),
        faults=(on("stop", {"http": 503}, nth="1+", **{"for": 60}),), status="passed"),
    Row("stop-fails", "the stop's operation fails, twice", 0, (),
        faults=(on("stop", operation("INTERNAL_ERROR", http=None), nth="1-2"),), status="passed"),
    Row("stop-takes-long", "it takes three minutes to stop", 0, (), scenario={"latency": {"stop": 180}},
        status="passed"),
    Row("delete-lost-before", "it is deleted as the target says, and the request breaks off", 0, (),
        target={"release": "delete"}, faults=(on("delete", {"drop": "before"}),), status="passed", zone=None),
    Row("delete-lost-after", "it is deleted as the target says, and the reply is lost", 0, (),
        target={"release": "delete"}, faults=(on("delete", {"drop": "after"}),), status="passed", zone=None),
    Row("delete-denied", "it may not be deleted: it is stopped", 0,
        ("stops cudadent42-l4-dev instead of deleting it", "compute.instances.delete"), target={"release": "delete"},
        scenario={"denied": ("instances.delete",)}, status="passed"),
    Row("suspended", "it is suspended", 8, ("is suspended", "stop it yourself"), machine="suspended", status="error",
        cost="nothing"),
    Row("running-unfenced", "it runs already, and nothing ever stops it", 5, ("--restart",), machine="running",
        status="error", then=(("hosts down l4", 0),)),
)  # fmt: skip

RIGHTS = (
    Row("wrong-project", "there is no such project", 4, ("the project 'my-project'", "gcloud projects list"),
        scenario={"projects": ("other-project",)},
        status="error", zone=None, cost="nothing"),
    Row("no-permission", "the caller may not create machines", 4,
        ("the permission compute.instances.insert is missing", "roles/compute.instanceAdmin.v1"),
        scenario={"denied": ("instances.insert",)}, status="error", zone=None, cost="nothing"),
    Row("may-not-look", "the caller may not read instances", 4, ("compute.instances.get",),
        scenario={"denied": ("*",)}, status="error", zone=None, cost="nothing"),
    Row("expired", "the credentials have expired", 4, ("credentials",),
        faults=({"action": "*", "nth": "1+", "do": {"http": 401}},), status="error", zone=None, cost="nothing"),
    Row("api-off", "the Compute Engine API is not enabled", 4, ("gcloud services enable compute.googleapis.com",),
        faults=({"action": "*", "nth": "1+", "do": {"http": {
            "status": 403, "reason": "accessNotConfigured",
            "message": "Compute Engine API has not been used in project my-project before or it is disabled."}}},),
        status="error", zone=None, cost="nothing"),
    Row("host-key", "it answers with another host key", 6, ("HAS CHANGED", "do not log in"), machine="stopped",
        status="error", scenario={"rotate": True}),
)  # fmt: skip

UNDER_A_RUN = (
    Row("preempted", "the cloud takes the machine back", 100, ("preempted",), status="preempted", command=WORK,
        during="preempted", then=(("cancel --all --give-up", 0),)),
    Row("host-error", "the computer under it fails", 100, ("failed",), status="lost", command=WORK, during="host_error",
        then=(("cancel --all --give-up", 0),)),
    Row("stopped-by-hand", "somebody stops it in the console", 100, ("stopped",), status="lost", command=WORK,
        during="stopped", then=(("cancel --all --give-up", 0),)),
    Row("restarted-by-hand", "somebody stops and starts it in the console", 100, (), status="preempted or lost",
        command=WORK, during="restarted", then=(("pull-results --wake last --yes", 0), ("hosts down l4", 0))),
    Row("deleted", "somebody deletes it", 100, ("deleted",), command=WORK, during="deleted", status="lost", zone=None),
    Row("shut-down-inside", "something on it shuts it down", 100, ("shut down",), status="lost", command=WORK,
        during="shut_down", then=(("cancel --all --give-up", 0),)),
    Row("fence", "its time limit comes", 5, ("time limit",), status="over_budget", command=WORK, during="fence",
        then=(("cancel --all --give-up", 0),)),
    Row("api-down-after-wake", "the cloud answers nothing more once the run is on it", 6, ("could not be stopped",),
        command=WORK, during="api_down", status="passed"),
    Row("laptop-ahead", "this computer's clock is an hour ahead", 0, (), ahead_s=3600.0, status="passed"),
    Row("laptop-behind", "this computer's clock is an hour behind", 0, (), ahead_s=-3600.0, status="passed"),
)  # fmt: skip

#: Heading of the page -> its rows.
TABLE: dict[str, tuple[Row, ...]] = {
    "Creating a machine": INSERT,
    "Starting a stopped machine": START,
    "Every other change": OTHER_CHANGES,
    "Rights and keys": RIGHTS,
    "Under a run": UNDER_A_RUN,
}
ROWS = tuple(row for rows in TABLE.values() for row in rows)
