"""Machines of a cloud and what its refusals mean. Pure: adapters fill these in, workflows decide on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from orchestrator.machines.targets import Provisioning

#: Every machine fcctl makes carries these labels; ``fcctl hosts audit`` finds machines by the first, in all zones.
MANAGED_LABEL = "fcctl"
WORKSPACE_LABEL = "fcctl-workspace"
SNAPSHOT_LABEL = "fcctl-rebuild"  # a snapshot that was made to have its machine in another zone
RUN_LABEL = "fcctl-run"  # the run or session that the machine was last started for


class Power(StrEnum):
    """What a machine's status means for someone who wants to use or to stop it."""

    STARTING = "starting"  # PENDING, PROVISIONING, STAGING
    RUNNING = "running"
    STOPPING = "stopping"  # STOPPING, PENDING_STOP
    STOPPED = "stopped"  # TERMINATED, STOPPED
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    REPAIRING = "repairing"
    UNKNOWN = "unknown"  # a status this version does not know


#: The status of a flex-start machine whose request waits in the cloud's queue: nothing of it runs or is billed.
QUEUED = "PENDING"

_POWER = {
    QUEUED: Power.STARTING,
    "PROVISIONING": Power.STARTING,
    "STAGING": Power.STARTING,
    "RUNNING": Power.RUNNING,
    "STOPPING": Power.STOPPING,
    "PENDING_STOP": Power.STOPPING,
    "TERMINATED": Power.STOPPED,
    "STOPPED": Power.STOPPED,
    "SUSPENDING": Power.SUSPENDING,
    "SUSPENDED": Power.SUSPENDED,
    "REPAIRING": Power.REPAIRING,
}

#: A machine in these states costs its hourly price.
BILLED = frozenset({Power.STARTING, Power.RUNNING, Power.STOPPING, Power.SUSPENDING, Power.REPAIRING, Power.UNKNOWN})


def power(status: str) -> Power:
    """The meaning of Compute Engine's ``Instance.status``."""
    return _POWER.get(status, Power.UNKNOWN)


@dataclass(frozen=True)
class Disk:
    name: str
    device: str
    boot: bool
    gb: int
    auto_delete: bool
    #: ``pd-balanced``, ``local-ssd``, ...; empty: only the disk's own entry tells.
    type: str = ""


@dataclass(frozen=True)
class Hardware:
    """What of a machine costs something while it is on."""

    zone: str
    machine_type: str
    spot: bool
    #: (type, count), the GPUs that are part of the machine type among them.
    accelerators: tuple[tuple[str, int], ...] = ()
    #: (type, GiB); the type is empty where the cloud did not say it.
    disks: tuple[tuple[str, int], ...] = ()
    #: Whether it has an external address while it is on.
    address: bool = False

    @property
    def text(self) -> str:
        """``g2-standard-96 (spot)``; GPUs are named where the type does not imply them."""
        extra = "".join(f" with {count} x {kind}" for kind, count in self.accelerators if kind != "nvidia-l4")
        return f"{self.machine_type or 'a machine of unknown type'}{extra} ({'spot' if self.spot else 'on demand'})"


@dataclass(frozen=True)
class Machine:
    """One instance, as the cloud describes it. Times are epoch seconds of the cloud's clock."""

    project: str
    zone: str
    name: str
    id: str
    status: str
    machine_type: str = ""
    accelerators: Mapping[str, int] = field(default_factory=dict)  # type -> count
    labels: Mapping[str, str] = field(default_factory=dict)
    label_fingerprint: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    metadata_fingerprint: str = ""
    spot: bool = False
    #: Whose reserved capacity it uses: ``any``, ``none``, or a reservation as a target names it.
    reservation: str = "any"
    internal_ip: str | None = None
    external_ip: str | None = None
    #: Whether it has an external address, or gets one when it starts.
    external: bool = False
    disks: tuple[Disk, ...] = ()
    created: float | None = None
    started: float | None = None
    stopped: float | None = None
    #: Fence 1: seconds from the last entry into RUNNING after which the cloud itself acts, and how.
    max_run_s: int | None = None
    termination_action: str | None = None  # STOP, DELETE
    deadline: float | None = None  # when it will, for a machine that runs

    @property
    def power(self) -> Power:
        return power(self.status)

    @property
    def billed(self) -> bool:
        return self.power in BILLED

    @property
    def hardware(self) -> Hardware:
        """What its price depends on, as far as the machine's own entry says it."""
        return Hardware(
            self.zone, self.machine_type, self.spot, tuple(sorted(self.accelerators.items())),
            tuple((disk.type, disk.gb) for disk in self.disks), self.external or self.external_ip is not None,
        )  # fmt: skip


@dataclass(frozen=True)
class Quota:
    """One limit of a region, or (region None) of the project."""

    metric: str
    region: str | None
    limit: float
    usage: float


@dataclass(frozen=True)
class BillableResource:
    """A thing that is billed by the month, whether or not a machine uses it."""

    kind: Literal["disk", "snapshot", "address"]
    project: str
    #: A disk's zone, an address's region or ``global``, the first place a snapshot is stored in.
    place: str
    name: str
    gb: int = 0  # of a snapshot: what is stored, at least 1
    type: str = ""  # of a disk: pd-balanced, ...
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Names of the machines that have it.
    users: tuple[str, ...] = ()
    #: Of a snapshot: the disk it was made of; of a disk: the snapshot, if it was made of one.
    source: str = ""
    created: float | None = None

    @property
    def region(self) -> str:
        return region_of(self.place) if self.kind == "disk" else self.place


@dataclass(frozen=True)
class Endpoint:
    """How to log in to a machine that was up when this was written: a warm start need not ask the cloud."""

    project: str
    name: str
    zone: str
    instance_id: str
    address: str
    port: int
    user: str
    identity_file: str
    #: Public host keys that the guest published through the cloud, ``"ssh-ed25519 AAAA..."``; any other is refused.
    host_keys: tuple[str, ...]
    #: Argument list of a program whose pipes are the connection (IAP), with nothing left to be filled in.
    proxy_command: tuple[str, ...] = ()
    #: Fence 1 as the cloud last told it, epoch seconds.
    deadline: float | None = None
    started: float | None = None
    seen: float = 0.0
    #: Which boot answered last; empty: none did since this was written. Another one may have another deadline.
    boot_id: str = ""
    #: What it was made of when it answered; None: written by a version that did not ask.
    hardware: Hardware | None = None
    #: The operation by which an fcctl of this user stopped it last; empty: none did since this was written.
    our_stop: str = ""


class Remedy(StrEnum):
    """What to do about a refusal; ``/docs/gcp.md`` has the table."""

    NEXT_ZONE = "next_zone"
    NEXT_REGION = "next_region"
    NOT_READY = "not_ready"  # still stopping: the same machine, later
    #: Passing trouble. What the cloud would take the same request id for was tried inside the adapter already; one that
    #: comes out in an operation has used its id up, so it is asked again with a new one.
    RETRY = "retry"
    #: The world is not what it was when the request was made: the machine is there already, is gone, or was changed by
    #: somebody else. Read it and decide anew.
    LOOK_AGAIN = "look_again"
    FATAL = "fatal"


@dataclass(frozen=True)
class Refusal:
    """Why the cloud did not do something."""

    code: str  # the operation's error code or the HTTP reason
    message: str
    remedy: Remedy
    http_status: int | None = None
    #: Zones that the cloud itself names as having stock.
    zones_available: tuple[str, ...] = ()


OperationState = Literal["PENDING", "RUNNING", "DONE"]


@dataclass(frozen=True)
class Operation:
    """A change the cloud was asked for. Only ``DONE`` without a refusal means that it happened."""

    name: str
    zone: str | None  # None: a global one
    type: str  # start, stop, insert, compute.instances.preempted, compute.instances.guestTerminate, ...
    target: str  # name of the instance or disk
    state: OperationState
    refusal: Refusal | None = None
    started: float | None = None
    finished: float | None = None
    #: The id of what it was done to, which a name is given anew without; empty: the cloud does not say.
    target_id: str = ""
    #: What kind of thing that is, as the cloud's addresses have it: ``instances``, ``disks``, ...
    collection: str = "instances"
    #: Who asked for it, as the cloud names them; ``system`` for the cloud itself.
    user: str = ""
    #: The id of the request for it; empty: it had none, or the cloud does not say.
    request_id: str = ""

    @property
    def done(self) -> bool:
        return self.state == "DONE"


@dataclass(frozen=True)
class MachineSpec:
    """A machine to be made. The same target gives the same name in every zone, so that none is made twice."""

    name: str
    machine_type: str
    image_project: str
    image_family: str
    disk_gb: int
    disk_type: str
    way: Provisioning
    max_run_s: int
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    accelerators: Mapping[str, int] = field(default_factory=dict)  # for machine types that do not bring their own
    network: str | None = None
    subnetwork: str | None = None
    external_ip: bool = True
    service_account: str | None = None
    tags: tuple[str, ...] = ()
    #: Boot from a copy of this snapshot instead of the image.
    snapshot: str | None = None
    #: Of ``flex_start``: how long the request may wait for stock.
    flex_wait_s: float = 0.0
    reservation: str | None = None

    @property
    def spot(self) -> bool:
        return self.way == "spot"


def region_of(zone: str) -> str:
    """``us-west1`` of ``us-west1-c``."""
    return zone.rpartition("-")[0]
