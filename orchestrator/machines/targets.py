"""Targets: the machines for runs, as ``[targets.NAME]`` of fcctl.toml describes them; and what a user may say of one in
advance for one run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, Field, PlainValidator, SerializeAsAny, model_validator

from orchestrator.base.models import WRITTEN

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=24)]

SecretName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]


class SecretSource(BaseModel):
    """Where a secret's value is, in ``[secrets]`` of fcctl.toml; without one: this computer's environment."""

    model_config = WRITTEN

    #: A command that prints it.
    command: Annotated[str, Field(min_length=1)] | None = None
    #: ``service`` or ``service/user`` of the system's keyring; the user is else the secret's name.
    keyring: Annotated[str, Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> SecretSource:
        if (self.command is None) == (self.keyring is None):
            raise ValueError("a secret needs exactly one source: `command` or `keyring`")
        return self


def _of_a_user(value: str) -> str:
    if os.path.expanduser(os.path.expandvars(value)).startswith("~"):  # noqa: PTH111 - Path's raises another error
        raise ValueError(f"{value!r} is not a path: no user has that name; for a name with ~, write ./~")
    return value


#: A file or folder of this computer; ``~`` and ``~USER`` are homes.
LocalPath = Annotated[str, AfterValidator(_of_a_user)]


#: Safe as a program's argument: no option, one word.
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_:\[][A-Za-z0-9._:%\[\]-]*$", max_length=255)]


#: A container image, as docker takes it: no option, one word.
Image = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$", max_length=200)]


class IdleGpu(BaseModel):
    """Ends a run with an idle GPU: no GPU of its machine reached ``gpu_below`` % for ``minutes``."""

    model_config = WRITTEN

    gpu_below: Annotated[float, Field(gt=0, le=100)] = 5.0
    #: 0: never.
    minutes: Annotated[float, Field(ge=0, le=7 * 24 * 60)] = 10.0


class TargetBase(BaseModel):
    model_config = WRITTEN

    name: Name
    #: The folder of the host program: runner, trees and runs.
    root: str = "~/.fcctl"
    #: A Python >= 3.8 for the host program; the environment that it is in is active in steps.
    python: str | None = None
    #: A connection that is silent for so long is dead.
    link_timeout_s: Annotated[float, Field(ge=2, le=600)] = 20.0
    #: How long to reconnect before a run is left detached.
    reconnect_s: Annotated[float, Field(ge=0)] = 600.0
    #: Added to every step's environment.
    env: dict[str, str] = {}
    #: Names of environment variables whose values are secret: sent over the connection only, in no file.
    secrets: list[SecretName] = []
    #: The container image that steps run in, with docker.
    container: Image | None = None
    #: Whether fcctl may power the machine off. A dry lease is kept otherwise.
    owned: bool = False
    #: The price of an hour; default ``[budget] usd_per_hour``.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    #: The job's is stronger, ``[budget] idle`` weaker.
    idle: IdleGpu | None = None
    #: The target that runs a job's local steps if they need nvcc and this computer has none.
    builder: Name | None = None

    @property
    def cloud(self) -> CloudTarget | None:
        """The cloud machine behind the target, also the sandbox's, as it is priced; None without one."""
        return None


class LocalTarget(TargetBase):
    """This machine, with the same protocol as over SSH."""

    kind: Literal["local"] = "local"


class SshTarget(TargetBase):
    """A machine reachable over SSH; ``host`` is a name, an address or an alias of ~/.ssh/config."""

    kind: Literal["ssh"] = "ssh"
    host: HostName
    user: Annotated[str, Field(pattern=r"^[^-@\s][^@\s]*$")] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: LocalPath | None = None
    #: ``a`` or ``user@a:port,b``, as ssh's -J; ProxyJump and ProxyCommand of ~/.ssh/config are honoured too.
    proxy_jump: str | None = None
    #: Another file than ~/.ssh/config.
    ssh_config: LocalPath | None = None
    #: Another file than ~/.ssh/known_hosts.
    known_hosts: LocalPath | None = None
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0


#: Names as Compute Engine takes them (RFC 1035 labels).
CloudName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")]
#: Provisioning models: at list price, or as spot.
Provisioning = Literal["on_demand", "spot"]


ByHand = Literal["stop", "delete", "ssh", "console"]


class CloudTarget(TargetBase):
    """A cloud machine that fcctl finds, starts or creates, and stops; a provider's kind adds its own keys."""

    kind: str
    project: str
    instance: CloudName
    #: The zones to search, and to create in, in this order.
    zones: Annotated[list[str], Field(min_length=1)]

    # --- the machine, if it must be made
    create: bool = True
    machine_type: CloudName
    #: GPUs of a machine type without its own, ``{"nvidia-tesla-t4": 1}``; a g2 includes its L4s.
    accelerators: dict[str, Annotated[int, Field(ge=1, le=16)]] = {}
    disk_gb: Annotated[int, Field(ge=10, le=65536)] = 100
    disk_type: str
    provisioning: str = "on_demand"
    labels: dict[str, str] = {}

    # --- getting in
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_.-]*$", max_length=32)] | None = None  # None: this user's name
    identity_file: LocalPath | None = None  # None: a key that fcctl makes once, for all its machines
    connect_timeout_s: Annotated[float, Field(gt=0, le=300)] = 15.0
    #: From the request to start until a command runs there.
    wake_timeout_s: Annotated[float, Field(ge=30, le=3600)] = 600.0

    # --- release
    release: Literal["stop", "keep", "delete"] = "stop"
    #: With ``keep``: how long it stays on for the next run.
    keep_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15.0

    # --- no stock
    #: After a stockout: wait, create a copy from its disk in another zone, or fail.
    on_stockout: Literal["wait", "rebuild", "fail"] = "wait"
    stockout_wait_minutes: Annotated[float, Field(ge=0, le=24 * 60)] = 30.0

    # --- what is billed with the machine on or off; the list price where a key is absent
    #: The price of a GiB of its disks for a month, dollars; needed for a hyperdisk, which the list does not have.
    disk_usd_per_gib_month: Annotated[float, Field(ge=0)] | None = None
    snapshot_usd_per_gib_month: Annotated[float, Field(ge=0)] | None = None
    #: What an hour of its static address costs.
    address_usd_per_hour: Annotated[float, Field(ge=0)] | None = None

    #: The upper limit of the max run duration.
    max_run_minutes: Annotated[float, Field(ge=1, le=120 * 24 * 60)] = 240.0
    #: Another API endpoint, for instance an emulator's; no credentials are sent to loopback.
    api_endpoint: str | None = None
    owned: bool = True

    @property
    def cloud(self) -> CloudTarget:
        return self

    @property
    def ways(self) -> tuple[Provisioning, ...]:
        """The provisioning models to request, in order."""
        return ("on_demand",)

    @property
    def os_login(self) -> bool:
        """Whether the cloud manages login keys, and keys in the machine's metadata have no effect."""
        return False

    @property
    def has_address(self) -> bool:
        """Whether a created machine gets an external address."""
        return True

    def proxy_command(self, name: str, zone: str) -> tuple[str, ...]:
        """A program whose standard input and output are the connection to a machine; empty: none is needed."""
        del name, zone
        return ()

    def by_hand(self, what: ByHand, name: str, zone: str) -> str:
        """The command that a person types for an action without fcctl."""
        return f"{what} {name} in {zone}, in the cloud's web console"


class GcpTarget(CloudTarget):
    """A Compute Engine instance."""

    kind: Literal["gcp"] = "gcp"
    project: Annotated[str, Field(pattern=r"^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$")]
    zones: Annotated[list[Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+-[a-z]$")]], Field(min_length=1)]
    machine_type: CloudName = "g2-standard-4"
    image_project: str = "deeplearning-platform-release"
    image_family: str = "common-cu129-ubuntu-2204-nvidia-580"
    disk_type: Literal["pd-standard", "pd-balanced", "pd-ssd", "hyperdisk-balanced"] = "pd-balanced"
    provisioning: Literal["on_demand", "spot", "spot_then_on_demand", "on_demand_then_spot"] = "on_demand"
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None  # none: the machine holds no credentials
    #: Log in through Identity-Aware Proxy; a machine made for it has no public address.
    iap: bool = False
    login: Literal["metadata", "os_login"] = "metadata"

    @property
    def ways(self) -> tuple[Provisioning, ...]:
        return _WAYS[self.provisioning]

    @property
    def os_login(self) -> bool:
        return self.login == "os_login"

    @property
    def has_address(self) -> bool:
        return not self.iap

    def proxy_command(self, name: str, zone: str) -> tuple[str, ...]:
        """The tunnel through Identity-Aware Proxy, if the target uses it."""
        if not self.iap:
            return ()
        return (
            "gcloud", "compute", "start-iap-tunnel", name, "22", "--listen-on-stdin", f"--project={self.project}",
            f"--zone={zone}", "--verbosity=error",
        )  # fmt: skip

    def by_hand(self, what: ByHand, name: str, zone: str) -> str:
        words = {"ssh": "ssh", "console": "instances get-serial-port-output"}.get(what, f"instances {what}")
        return f"gcloud compute {words} {name} --zone {zone} --project {self.project}"


_WAYS: dict[str, tuple[Provisioning, ...]] = {
    "on_demand": ("on_demand",),
    "spot": ("spot",),
    "spot_then_on_demand": ("spot", "on_demand"),
    "on_demand_then_spot": ("on_demand", "spot"),
}


SANDBOX_PROJECT, SANDBOX_INSTANCE, SANDBOX_MACHINE_TYPE = "fcctl-sandbox", "sandbox-l4", "g2-standard-4"
#: The zone of the machine in a new sandbox, and the zones in which it may be created after a deletion.
SANDBOX_ZONES = ("us-west1-c", "us-west1-a", "us-central1-a")
SANDBOX_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"


class SandboxTarget(TargetBase):
    """The built-in emulator with one stopped L4 machine. Its keys mean the same as those of a gcp target."""

    kind: Literal["sandbox"] = "sandbox"
    provisioning: Literal["on_demand", "spot", "spot_then_on_demand", "on_demand_then_spot"] = "on_demand"
    release: Literal["stop", "keep", "delete"] = "stop"
    keep_minutes: Annotated[float, Field(gt=0, le=24 * 60)] = 15.0
    max_run_minutes: Annotated[float, Field(ge=1, le=120 * 24 * 60)] = 240.0
    owned: bool = True

    @property
    def cloud(self) -> GcpTarget:
        return self.at(None)

    def at(self, api_endpoint: str | None) -> GcpTarget:
        """The sandbox's machine as a Compute Engine target; without ``api_endpoint`` only for prices."""
        common = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        return GcpTarget(
            **common, project=SANDBOX_PROJECT, instance=SANDBOX_INSTANCE, zones=list(SANDBOX_ZONES),
            machine_type=SANDBOX_MACHINE_TYPE, wake_timeout_s=120.0, api_endpoint=api_endpoint,
        )  # fmt: skip


#: The kinds of targets, by ``kind`` of fcctl.toml. Another provider adds its own.
KINDS: dict[str, type[TargetBase]] = {
    "gcp": GcpTarget, "ssh": SshTarget, "local": LocalTarget, "sandbox": SandboxTarget,
}  # fmt: skip


def read_target(value: Any) -> Target:
    """A target of its kind. Raises ValueError: there is no such kind, or the value does not fit it."""
    if isinstance(value, TargetBase):
        return cast("Target", value)
    kind = KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
    if kind is None:
        raise ValueError(f"the target's kind is not one of: {', '.join(KINDS)}")
    return cast("Target", kind.model_validate(value))


Target = Annotated[SerializeAsAny[LocalTarget | SshTarget | CloudTarget | SandboxTarget], PlainValidator(read_target)]


@dataclass(frozen=True)
class StartOptions:
    """Two options for a running machine whose time limit does not suit the run; off by default."""

    #: Restart it to set its max run duration.
    restart: bool = False
    #: Use it although the cloud never stops it: only its shutdown timer does.
    allow_unfenced: bool = False


@dataclass(frozen=True)
class AcceptedPrices:
    """Prices that a plan uses only if the user accepts them; off by default."""

    #: The price of the existing machine, if it costs more than the target's.
    own: bool = False
    #: List prices older than a year.
    old: bool = False
