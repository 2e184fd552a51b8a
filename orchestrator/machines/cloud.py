"""Types of machines, operations and refusals of any cloud. Pure: providers fill them in, workflows decide on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

if TYPE_CHECKING:
    from orchestrator.machines.targets import CloudTarget, Provisioning

#: Every machine fcctl makes carries these labels; ``fcctl hosts audit`` finds machines by the first, in all zones.
MANAGED_LABEL = "fcctl"
WORKSPACE_LABEL = "fcctl-workspace"
SNAPSHOT_LABEL = "fcctl-rebuild"  # a snapshot for a rebuild in another zone
RUN_LABEL = "fcctl-run"  # the run or session that the machine was last started for


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("a control character")
    return text


#: Types of a file that may have been changed since this computer wrote it.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._:%-]{0,252}$")]
Count = Annotated[int, Field(ge=0, lt=1_000_000)]
Printable = Annotated[str, Field(min_length=1), AfterValidator(_printable)]
Moment = Annotated[float, Field(ge=0, lt=1e11)]


class Power(StrEnum):
    """What a machine's status means for its use."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    REPAIRING = "repairing"
    UNKNOWN = "unknown"  # a status this version does not know


_POWER = {
    "PENDING": Power.STARTING, "PROVISIONING": Power.STARTING, "STAGING": Power.STARTING, "RUNNING": Power.RUNNING,
    "STOPPING": Power.STOPPING, "PENDING_STOP": Power.STOPPING, "TERMINATED": Power.STOPPED, "STOPPED": Power.STOPPED,
    "SUSPENDING": Power.SUSPENDING, "SUSPENDED": Power.SUSPENDED, "REPAIRING": Power.REPAIRING,
}  # fmt: skip

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
    #: ``pd-balanced``, ``local-ssd``, ...; empty: only in the disk's own entry.
    type: str = ""


@dataclass(frozen=True)
class Hardware:
    """The parts of a machine that its price depends on."""

    zone: Word
    machine_type: Word | Literal[""]
    spot: bool
    #: (type, count), the GPUs that are part of the machine type among them.
    accelerators: tuple[tuple[Word, Count], ...] = ()
    #: (type, GiB); the type may be unknown (empty).
    disks: tuple[tuple[Word | Literal[""], Count], ...] = ()
    #: Whether it has an external address while it is on.
    address: bool = False

    @property
    def text(self) -> str:
        """``g2-standard-96 (spot)``; GPUs are named where the type does not imply them."""
        extra = "".join(f" with {count} x {kind}" for kind, count in self.accelerators if kind != "nvidia-l4")
        return f"{self.machine_type or 'unknown machine type'}{extra} ({'spot' if self.spot else 'on demand'})"


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
    internal_ip: str | None = None
    external_ip: str | None = None
    #: Whether it has an external address, or gets one when it starts.
    external: bool = False
    disks: tuple[Disk, ...] = ()
    created: float | None = None
    started: float | None = None
    stopped: float | None = None
    #: The max run duration, seconds from the last entry into RUNNING, and the cloud's action at its end.
    max_run_s: int | None = None
    termination_action: str | None = None  # STOP, DELETE
    deadline: float | None = None  # of a running machine

    @property
    def power(self) -> Power:
        return power(self.status)

    @property
    def billed(self) -> bool:
        return self.power in BILLED

    @property
    def hardware(self) -> Hardware:
        """What its price depends on, as far as the machine's own entry has it."""
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


Kind = Literal["disk", "snapshot", "address"]


@dataclass(frozen=True)
class BillableResource:
    """A disk, snapshot or address that is billed by the month, whether or not a machine uses it."""

    kind: Kind
    project: str
    #: A disk's zone, an address's region or ``global``, the first place a snapshot is stored in.
    place: str
    name: str
    gb: int = 0  # of a snapshot: the stored size, at least 1
    type: str = ""  # of a disk: pd-balanced, ...
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Names of the machines that use it.
    users: tuple[str, ...] = ()
    #: The disk of a snapshot; the snapshot of a disk that was created from one.
    source: str = ""
    created: float | None = None

    @property
    def region(self) -> str:
        return region_of(self.place) if self.kind == "disk" else self.place


@dataclass(frozen=True)
class Endpoint:
    """How to log in to a machine, as of the last contact; a warm start uses it without querying the cloud."""

    project: str
    name: str
    zone: Word
    instance_id: Word
    address: Word
    port: Annotated[int, Field(gt=0, lt=65536)]
    user: Word
    identity_file: Printable
    #: Public host keys that the guest published through the cloud, ``"ssh-ed25519 AAAA..."``; any other is refused.
    host_keys: tuple[Printable, ...]
    #: Arguments of a program whose pipes are the connection (IAP), without placeholders.
    proxy_command: tuple[Printable, ...] = ()
    #: The cloud's deadline when last read, epoch seconds.
    deadline: Moment | None = None
    started: Moment | None = None
    seen: Moment = 0.0
    #: The boot that answered last; empty: none since this was written. Another boot may have another deadline.
    boot_id: Word | Literal[""] = ""
    #: Its hardware when it answered; None: written by an older version.
    hardware: Hardware | None = None
    #: The operation by which an fcctl of this user stopped it last; empty: none since this was written.
    our_stop: Word | Literal[""] = ""


class Remedy(StrEnum):
    """What to do about a refusal; ``/docs/gcp.md`` has the table."""

    NEXT_ZONE = "next_zone"
    NEXT_REGION = "next_region"
    NOT_READY = "not_ready"  # still stopping: the same machine, later
    #: A transient error. The provider has already repeated the request with the same id; after an error in the
    #: operation the id is used up, and the request is repeated with a new one.
    RETRY = "retry"
    #: The state has changed since the request: the machine exists already, is gone, or was changed by another
    #: process. Read it and decide again.
    LOOK_AGAIN = "look_again"
    FATAL = "fatal"


Problem = Literal["quota", "denied", "config"]


@dataclass(frozen=True)
class Refusal:
    """Why the cloud did not do something."""

    code: str  # the operation's error code or the HTTP reason
    message: str
    remedy: Remedy
    http_status: int | None = None
    #: Zones that the cloud itself names as having stock.
    zones_available: tuple[str, ...] = ()
    #: The provider's hint for the user.
    hint: str | None = None
    #: The kind of a FATAL refusal: a quota, a missing permission, or a wrong request.
    problem: Problem = "config"


OperationState = Literal["PENDING", "RUNNING", "DONE"]


@dataclass(frozen=True)
class Operation:
    """A change that was requested. Only ``DONE`` without a refusal means that it happened."""

    name: str
    zone: str | None  # None: a global one
    type: str  # start, stop, insert, compute.instances.preempted, compute.instances.guestTerminate, ...
    target: str  # name of the instance or disk
    state: OperationState
    refusal: Refusal | None = None
    started: float | None = None
    finished: float | None = None
    #: The id of the target; empty: unknown. A name may be reused.
    target_id: str = ""
    #: The target's kind as in the cloud's URLs: ``instances``, ``disks``, ...
    collection: str = "instances"
    #: Who requested it, as the cloud names them; ``system`` for the cloud itself.
    user: str = ""
    #: The request's id; empty: none, or unknown.
    request_id: str = ""

    @property
    def done(self) -> bool:
        return self.state == "DONE"


#: How long reads of a machine may be behind a change of its power that is DONE, seconds.
STALE_S = 30.0
#: How long after its fcctl was killed a request may be on its way, until the cloud lists it, seconds.
IN_FLIGHT_S = 30.0


def shows(machine: Machine | None, change: Operation) -> bool:
    """Whether a read of the machine is not older than ``change`` of its power, which is DONE: it shows its effect, or
    something later."""
    since = change.started or 0.0
    if change.type == "insert":
        return machine is not None
    if machine is None:
        return True
    if change.type == "delete":
        return machine.id != change.target_id
    if change.type == "stop":
        return machine.power is not Power.RUNNING or (machine.started or 0.0) > since
    was_on_since = max(machine.started or 0.0, machine.stopped or 0.0) > since
    return machine.power is not Power.STOPPED or was_on_since


@dataclass(frozen=True)
class MachineSpec:
    """A machine to create. A target has the same name in every zone, so that none is created twice."""

    target: CloudTarget
    way: Provisioning
    #: The cloud's own limit, counted from the first entry into RUNNING.
    max_run_s: int
    labels: Mapping[str, str]
    metadata: Mapping[str, str]
    #: Boot from a copy of this snapshot instead of the image.
    snapshot: str | None = None

    @property
    def name(self) -> str:
        return self.target.instance


def region_of(zone: str) -> str:
    """``us-west1`` of ``us-west1-c``."""
    return zone.rpartition("-")[0]
