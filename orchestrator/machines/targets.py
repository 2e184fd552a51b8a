"""Targets: the machines a run can go to, as ``[targets.NAME]`` of fcctl.toml describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from orchestrator.base.models import WRITTEN

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=24)]

#: Never taken for an option by a program that gets it as an argument, and never more than one word.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:\[][A-Za-z0-9._:%\[\]-]*$", max_length=255)]


class IdleGpu(BaseModel):
    """When a run is ended for an idle GPU: no GPU of its machine reached ``gpu_below`` % for ``minutes``."""

    model_config = WRITTEN

    gpu_below: Annotated[float, Field(gt=0, le=100)] = 5.0
    #: 0: never.
    minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = 10.0


class _TargetBase(BaseModel):
    model_config = WRITTEN

    name: Name
    #: Where the host program keeps its runner, trees and runs.
    root: str = "~/.fcctl"
    #: A Python >= 3.8 for the host program, where ``python3`` is not one.
    python: str | None = None
    #: Silence on the link for this long means it is dead.
    link_timeout_s: Annotated[float, Field(ge=2, le=600)] = 20.0
    #: How long to go on reconnecting before a run is left detached.
    reconnect_s: Annotated[float, Field(ge=0)] = 600.0
    #: Added to every step's environment.
    env: dict[str, str] = {}
    #: Whether fcctl may power the machine off (fence 2). A dry lease is kept otherwise.
    owned: bool = False
    #: What an hour of the machine costs; ``[budget] usd_per_hour`` stands in where a billed machine names none.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    #: The job's is stronger, ``[budget] idle`` weaker.
    idle: IdleGpu | None = None


class LocalTarget(_TargetBase):
    """This machine: the same path as over SSH, without the SSH."""

    kind: Literal["local"] = "local"


class SshTarget(_TargetBase):
    """A machine reachable over SSH; ``host`` is a name, an address or an alias of ~/.ssh/config."""

    kind: Literal["ssh"] = "ssh"
    host: HostName
    user: Annotated[str, Field(pattern=r"^[^-@\s][^@\s]*$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: str | None = None
    #: ``a`` or ``user@a:port,b``, as ssh's -J; ProxyJump and ProxyCommand of ~/.ssh/config are honoured too.
    proxy_jump: str | None = None
    #: Another file than ~/.ssh/config.
    ssh_config: str | None = None
    #: Another file than ~/.ssh/known_hosts.
    known_hosts: str | None = None
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0


#: Names as Compute Engine takes them (RFC 1035 labels).
CloudName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
#: ``any``, ``none``, a reservation of the project, or one that another project shares.
Reservation = Annotated[
    str, Field(pattern=r"^(projects/[a-z0-9.:-]{6,63}/reservations/)?[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
]
#: How the cloud is asked for a machine: at its list price, as spot, queued until there is stock (the Dynamic Workload
#: Scheduler's flex start), or in a reservation of a future time (its calendar mode).
Provisioning = Literal["on_demand", "spot", "flex_start", "reservation_bound"]
#: What the cloud takes as the time limit of a flex-start machine, and as the time that its request waits.
#: https://cloud.google.com/compute/docs/instances/create-flex-start-vm
FLEX_RUN_MINUTES = (10.0, 7 * 24 * 60.0)
FLEX_WAIT_MINUTES = (1.5, 120.0)


class GcpTarget(_TargetBase):
    """A Compute Engine instance that fcctl finds, wakes or creates, and stops again."""

    kind: Literal["gcp"] = "gcp"
    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")]
    instance: CloudName
    #: Where to look, and where to create, in this order.
    zones: Annotated[list[Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]], Field(min_length=1)]

    # --- the machine, if it must be made
    create: bool = True
    machine_type: CloudName = "g2-standard-4"
    #: GPUs of a machine type that brings none, ``{"nvidia-tesla-t4": 1}``; a g2's L4s are part of it.
    accelerators: dict[str, Annotated[int, Field(ge=1, le=16)]] = {}
    image_project: str = "deeplearning-platform-release"
    image_family: str = "common-cu129-ubuntu-2204-nvidia-580"
    disk_gb: Annotated[int, Field(ge=10, le=65536)] = 100
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"] = "pd-balanced"
    provisioning: Literal[
        "on_demand", "spot", "spot_then_on_demand", "on_demand_then_spot",
        "flex_start", "on_demand_then_flex_start", "spot_then_flex_start", "reservation_bound",
    ] = "on_demand"  # fmt: skip
    #: With flex start: how long a request waits in each zone for stock; 0: only for what is there at once.
    flex_start_wait_minutes: Annotated[float, Field(ge=0, le=FLEX_WAIT_MINUTES[1])] = 30.0
    #: Whose reserved capacity an on-demand machine uses; None: the cloud's default, any that is open to it.
    reservation: Reservation | None = None
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None  # none: the machine holds no credentials
    labels: dict[str, str] = {}

    # --- getting in
    #: Log in through Identity-Aware Proxy; a machine made for it has no public address.
    iap: bool = False
    login: Literal["metadata", "os_login"] = "metadata"
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_.-]*$", max_length=32)] | None = None  # None: this user's name
    identity_file: str | None = None  # None: a key that fcctl makes once, for all its machines
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0
    #: From the request to start until a command runs there.
    wake_timeout_s: Annotated[float, Field(ge=30, le=3600)] = 600.0

    # --- letting go
    release: Literal["stop", "keep", "delete"] = "stop"
    #: With ``keep``: how long it stays on for the next run before it stops itself.
    keep_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15.0

    # --- no stock
    #: For a stopped machine whose zone has none: wait, make a copy from its disk in another zone, or give up.
    on_stockout: Literal["wait", "rebuild", "fail"] = "wait"
    stockout_wait_minutes: Annotated[float, Field(ge=0, le=24 * 60)] = 30.0

    # --- what stands, machine on or off; the list price where a key is absent
    #: What a GiB of its disks costs a month, dollars: a hyperdisk, of which the list has no price, needs it.
    disk_usd_per_gib_month: Annotated[float, Field(ge=0)] | None = None
    snapshot_usd_per_gib_month: Annotated[float, Field(ge=0)] | None = None
    #: What an hour of its static address costs.
    address_usd_per_hour: Annotated[float, Field(ge=0)] | None = None

    #: The longest a start may last, whatever a job asks for (fence 1).
    max_run_minutes: Annotated[float, Field(ge=1, le=120 * 24 * 60)] = 240.0
    #: Another API endpoint, for instance an emulator's; without credentials if it is on loopback.
    api_endpoint: str | None = None
    owned: bool = True

    @property
    def ways(self) -> tuple[Provisioning, ...]:
        """How a machine is asked for, in the order in which it is tried."""
        return _WAYS[self.provisioning]

    @property
    def flex_wait_s(self) -> float:
        """How long a request may wait in the cloud's queue; 0 if none does."""
        return self.flex_start_wait_minutes * 60 if "flex_start" in self.ways else 0.0

    @model_validator(mode="after")
    def _can_be_had(self) -> GcpTarget:
        named = self.reservation not in (None, "any", "none")
        if "reservation_bound" in self.ways and not named:
            raise ValueError('provisioning = "reservation_bound" needs the name of a reservation: reservation = ...')
        if self.reservation is not None and not {"on_demand", "reservation_bound"} & set(self.ways):
            raise ValueError(f'provisioning = "{self.provisioning}" can use no reservation: leave reservation out')
        if "flex_start" not in self.ways:
            return self
        least, most = FLEX_RUN_MINUTES
        if not least <= self.max_run_minutes <= most:
            raise ValueError(f"with flex start max_run_minutes is between {least:g} and {most:g} (7 days)")
        if 0 < self.flex_start_wait_minutes < FLEX_WAIT_MINUTES[0]:
            raise ValueError(f"flex_start_wait_minutes is 0, or between {FLEX_WAIT_MINUTES[0]} and 120")
        return self


_WAYS: dict[str, tuple[Provisioning, ...]] = {
    "on_demand": ("on_demand",),
    "spot": ("spot",),
    "spot_then_on_demand": ("spot", "on_demand"),
    "on_demand_then_spot": ("on_demand", "spot"),
    "flex_start": ("flex_start",),
    "on_demand_then_flex_start": ("on_demand", "flex_start"),
    "spot_then_flex_start": ("spot", "flex_start"),
    "reservation_bound": ("reservation_bound",),
}


class SandboxTarget(_TargetBase):
    """The built-in emulator with one stopped L4-like machine; :mod:`orchestrator.machines.sandbox_target` says which.

    What it is not asked to be different in, it has in common with a gcp target: these keys mean the same there.
    """

    kind: Literal["sandbox"] = "sandbox"
    provisioning: Literal["on_demand", "spot", "spot_then_on_demand", "on_demand_then_spot"] = "on_demand"
    release: Literal["stop", "keep", "delete"] = "stop"
    keep_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15.0
    max_run_minutes: Annotated[float, Field(ge=1, le=120 * 24 * 60)] = 240.0
    owned: bool = True


Target = Annotated[LocalTarget | SshTarget | GcpTarget | SandboxTarget, Field(discriminator="kind")]
