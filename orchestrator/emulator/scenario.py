"""The emulated cloud: its regions, zones, machine types, accelerators and images, a subset of the real ones; latencies,
stock and quotas; and scripted faults: which request meets one, and what happens to it.

One fault is a mapping of the conditions of a request and what to ``do``::

    - action: instances.start       # the API's method, with * as wildcard
      method: POST                  # and/or the HTTP method
      path: zones/us-west1-*/*      # and/or the path below projects/P/
      nth: 2-4                      # which of the matching requests: 1, [1, 3], 2-4, 3+; all, if left out
      for: 30                       # only within so many seconds of the first matching request
      do: {http: 503}

``do`` is exactly one of: ``http``, ``operation``, ``stockout``, ``quota``, ``drop``, ``delay``, ``never_finish``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from orchestrator.base import models
from orchestrator.base.errors import ConfigError
from orchestrator.base.models import WRITTEN
from orchestrator.emulator.refusals import REASONS, ApiError, OperationError

GPU = "nvidia-l4"
ZONES: tuple[str, ...] = (
    "us-central1-a", "us-central1-b", "us-central1-c", "us-west1-a", "us-west1-b", "us-west1-c", "us-west4-a",
    "us-east1-b", "us-east1-c", "us-east1-d", "us-east4-a", "europe-west1-b", "europe-west4-a", "europe-west4-b",
    "asia-southeast1-b",
)  # fmt: skip
#: vCPUs -> GPUs of the G2 family; memory is 4 GiB per vCPU.
_G2 = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
_OTHERS = {
    "e2-small": (2, 2048), "e2-medium": (2, 4096), "e2-standard-4": (4, 16384), "n1-standard-1": (1, 3840),
    "n1-standard-4": (4, 15360),
}  # fmt: skip
_GIB_ON_IMAGE = {"deeplearning-platform-release": 100}
_FAMILIES = {
    "deeplearning-platform-release": (
        "common-cu129-ubuntu-2204-nvidia-580",
        "common-cu129-ubuntu-2404-nvidia-580",
        "pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
    ),
    "debian-cloud": ("debian-12", "debian-11"),
    "ubuntu-os-cloud": ("ubuntu-2204-lts", "ubuntu-2404-lts-amd64"),
}
_IMAGE_VERSION = "v20261101"


def region_of(zone: str) -> str:
    return zone.rsplit("-", 1)[0]


def regions(zones: tuple[str, ...]) -> list[str]:
    return sorted({region_of(zone) for zone in zones})


def machine_types() -> dict[str, dict[str, Any]]:
    """By name, without the fields that depend on the zone."""
    types: dict[str, dict[str, Any]] = {}
    for cpus, gpus in _G2.items():
        types[f"g2-standard-{cpus}"] = {
            **_shape(cpus, cpus * 4096),
            "accelerators": [{"guestAcceleratorType": GPU, "guestAcceleratorCount": gpus}],
        }
    types.update({name: _shape(cpus, memory) for name, (cpus, memory) in _OTHERS.items()})
    return types


def _shape(cpus: int, memory_mb: int) -> dict[str, Any]:
    return {
        "guestCpus": cpus,
        "memoryMb": memory_mb,
        "description": f"{cpus} vCPUs, {memory_mb / 1024:g} GB RAM",
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        "isSharedCpu": False,
        "architecture": "X86_64",
    }


def accelerator_types() -> dict[str, dict[str, Any]]:
    return {
        GPU: {"description": "NVIDIA L4", "maximumCardsPerInstance": 8},
        "nvidia-tesla-t4": {"description": "NVIDIA T4", "maximumCardsPerInstance": 4},
    }


def gpus_of(machine_type: str) -> int:
    """The number of GPUs that a machine type includes, such as 1 for g2-standard-4; 0 if none or unknown."""
    return sum(a["guestAcceleratorCount"] for a in machine_types().get(machine_type, {}).get("accelerators", []))


def image(project: str, *, family: str | None = None, name: str | None = None) -> dict[str, Any] | None:
    """The newest image of a family, or one by name; None if there is none."""
    return next((one for one in images(project) if family == one["family"] or name == one["name"]), None)


def images(project: str) -> list[dict[str, Any]]:
    """The images of a project, one for each family."""
    size = str(_GIB_ON_IMAGE.get(project, 10))
    return [
        {"name": f"{family}-{_IMAGE_VERSION}", "family": family, "status": "READY", "diskSizeGb": size}
        for family in _FAMILIES.get(project, ())
    ]


Nth = tuple[tuple[int, int | None], ...]


class HttpFault(BaseModel):
    """The answer to the request, which is not served."""

    model_config = WRITTEN

    status: int | None = None
    reason: str | None = None
    message: str | None = None

    def error(self) -> ApiError:
        status = self.status or REASONS.get(self.reason or "", (400,))[0]
        usual = (name for name, (of_it, *_) in REASONS.items() if of_it == status)
        reason = self.reason or next(usual, "rateLimitExceeded" if status == 429 else "backendError")
        return ApiError(reason, self.message or f"scripted fault: {reason}", status=status)


class OperationFault(BaseModel):
    """The error that the operation ends with; ``applied``: after it has taken effect."""

    model_config = WRITTEN

    code: Annotated[str, Field(min_length=1)]
    http: int | None = 400
    message: str | None = None
    details: list[dict[str, Any]] = []
    applied: bool = False

    def error(self) -> OperationError:
        return OperationError(self.code, self.message or f"scripted fault: {self.code}", self.http, list(self.details))


class StockoutFault(BaseModel):
    model_config = WRITTEN

    #: Those to recommend; None: those of the region with stock.
    zones: list[str] | None = None
    detailed: bool = True


class Effect(BaseModel):
    """The fault that is applied to a request: exactly one of the fields is set."""

    model_config = WRITTEN

    http: Annotated[HttpFault | None, BeforeValidator(lambda v: {"status": v} if isinstance(v, int) else v)] = None
    operation: OperationFault | None = None
    stockout: Annotated[StockoutFault | None, BeforeValidator(lambda v: {} if v is True else v)] = None
    #: NVIDIA_L4_GPUS, PREEMPTIBLE_NVIDIA_L4_GPUS or GPUS_ALL_REGIONS.
    quota: str | None = None
    #: ``before``: the request has no effect; ``after``: only the reply is lost.
    drop: Literal["before", "after"] | None = None
    #: Emulated seconds.
    delay: Annotated[float, Field(ge=0)] | None = None
    never_finish: bool = False

    @model_validator(mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        value = {value: True} if isinstance(value, str) else value
        if isinstance(value, Mapping) and len(value) != 1:
            raise ValueError(f"exactly one of: {', '.join(cls.model_fields)}")
        return value


def _ranges(value: Any) -> Nth:
    """``2``, ``[1, 3]``, ``2-4`` or ``3+``; None: all."""
    if value is None:
        return ((1, None),)
    try:
        return tuple(_range(str(part)) for part in (value if isinstance(value, list) else [value]))
    except ValueError:
        raise ValueError(f"must be such as 2, [1, 3], 2-4 or 3+, not '{value}'") from None


def _range(text: str) -> tuple[int, int | None]:
    if text.endswith("+"):
        return int(text[:-1]), None
    low, _, high = text.partition("-")
    return int(low), int(high or low)


class Fault(BaseModel):
    """One scripted fault."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    action: str = "*"
    method: str = "*"
    path: str = "*"
    nth: Annotated[Nth, BeforeValidator(_ranges)] = ((1, None),)
    for_s: float | None = Field(None, alias="for")
    do: Effect
    #: Of the requests that its conditions matched: how many, and when the first came.
    _seen: int = PrivateAttr(0)
    _first: float = PrivateAttr(0.0)

    def meets(self, action: str, method: str, path: str, now: float) -> bool:
        """Counts the request if the conditions match; whether the fault applies to it."""
        pairs = ((action, self.action), (method, self.method.upper()), (path, self.path))
        if not all(fnmatchcase(value, pattern) for value, pattern in pairs):
            return False
        self._seen += 1
        self._first = now if self._seen == 1 else self._first
        if self.for_s is not None and now > self._first + self.for_s:
            return False
        return any(low <= self._seen and (high is None or self._seen <= high) for low, high in self.nth)


class Faults:
    """The scripted faults. The first fault that matches a request applies."""

    def __init__(self, script: Iterable[Fault | Mapping[str, Any]] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = [Fault.model_validate(entry) for entry in script]

    def add(self, **entry: Any) -> Fault:
        """``add(action="instances.start", nth=1, do={"http": 503})``; ``for`` is spelt ``for_s`` here. Raises
        ValueError: an unknown condition or fault."""
        fault = Fault.model_validate(entry)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def for_request(self, action: str, method: str, path: str, now: float) -> Fault | None:
        """Every fault counts the request; returns the first that applies."""
        with self._lock:
            struck = [fault for fault in self._faults if fault.meets(action, method, path, now)]
        return struck[0] if struck else None


class Latency(BaseModel):
    """Emulated seconds that each stage takes. Short by default; :data:`REALISTIC` is what Compute Engine needs."""

    model_config = WRITTEN

    pending: float = 0.02
    """An operation waits before it runs."""
    provisioning: float = 0.05
    staging: float = 0.05
    boot: float = 0.0
    """From RUNNING until sshd listens."""
    login: float = 0.0
    """From then until the guest agent has installed the keys of the metadata: earlier logins are refused."""
    stop: float = 0.1
    suspend: float = 0.1
    resume: float = 0.05
    delete: float = 0.05
    disk: float = 0.05
    """Creating a disk or a snapshot."""
    change: float = 0.02
    """Labels, metadata, scheduling."""
    preemption_notice: float = 0.0
    expiry_lateness: float = 0.0
    """How late maxRunDuration is enforced; the real service says up to 30 s."""


REALISTIC = Latency(
    pending=0.5, provisioning=4, staging=8, boot=15, login=5, stop=45, suspend=60, resume=20, delete=40, disk=30,
    change=2, preemption_notice=30, expiry_lateness=15,
)  # fmt: skip


class Scenario(BaseModel):
    """The cloud around the instances. Mutable: tests change it while the emulator runs."""

    model_config = ConfigDict(extra="forbid")

    #: In a file also ``realistic``.
    latency: Annotated[Latency, BeforeValidator(lambda value: REALISTIC if value == "realistic" else value)] = Latency()
    zones: tuple[str, ...] = ZONES
    #: Zone -> its GPUs; unlimited if not named.
    stock: dict[str, int] = {}
    #: Region -> metric -> limit; "global" has GPUS_ALL_REGIONS. Not named: :data:`DEFAULT_QUOTA`.
    quotas: dict[str, dict[str, float]] = {}
    #: Projects that exist; None for any.
    projects: tuple[str, ...] | None = None
    #: Whether a firewall rule lets Identity-Aware Proxy in on port 22.
    iap_firewall: bool = True
    #: Actions the caller may not do, with * as wildcard: ("instances.insert",).
    denied: tuple[str, ...] = ()
    #: Zones that aggregated lists report as unreachable.
    unreachable: tuple[str, ...] = ()
    #: Names of instances that aggregated lists do not show yet.
    unlisted: tuple[str, ...] = ()
    #: How long reads of an instance show it as it was before an operation that is DONE, seconds.
    stale_s: float = 0.0
    #: Requests per minute before rateLimitExceeded; None for no limit.
    requests_per_minute: int | None = None
    #: Emulated seconds a call of ``wait`` may take.
    wait_limit_s: float = 120.0
    speed: float = 1.0
    #: Folders in front of ``PATH`` inside the instances: programs that their image brings.
    guest_path: tuple[str, ...] = ()
    faults: list[Fault] = []

    def quota(self, metric: str, region: str | None) -> float:
        """The limit granted."""
        return float(self.quotas.get(region or "global", {}).get(metric, DEFAULT_QUOTA[metric]))


_EXAMPLE = "to see an example: fcctl help emulator"
DEFAULT_QUOTA = {"NVIDIA_L4_GPUS": 8.0, "PREEMPTIBLE_NVIDIA_L4_GPUS": 8.0, "GPUS_ALL_REGIONS": 16.0, "CPUS": 200.0}


def load(path: Path) -> Scenario:
    """Read a scenario from YAML, the fields of :class:`Scenario` or a list of ``faults``. Raises ConfigError: not
    readable, or something in it is unknown."""
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"cannot read the scenario {path}", cause=str(error), hint=_EXAMPLE) from None
    try:
        return Scenario.model_validate({"faults": given} if isinstance(given, list) else given)
    except ValidationError as error:
        message, hint = models.summary(models.of_model(Scenario, error, lambda _: str(path)))
        raise ConfigError(message, hint=hint or _EXAMPLE) from None
