"""The settings of an emulated cloud: latencies, stock, quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from orchestrator.base.errors import ConfigError, did_you_mean
from orchestrator.emulator.core import catalog
from orchestrator.emulator.core.faults import FaultSyntax, parse


@dataclass(frozen=True)
class Latency:
    """Emulated seconds that each stage takes. Short by default; :data:`REALISTIC` is what Compute Engine needs."""

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


#: The key by which an instance names its reservation.
RESERVATION_KEY = "compute.googleapis.com/reservation-name"


@dataclass(frozen=True)
class Reservation:
    """Reserved capacity in a zone, beside its stock."""

    count: int = 1
    machine_type: str = "g2-standard-4"
    #: Only for instances that name it.
    specific: bool = False


@dataclass
class Scenario:
    """The cloud around the instances. Mutable: tests change it while the emulator runs."""

    latency: Latency = field(default_factory=Latency)
    zones: tuple[str, ...] = catalog.ZONES
    #: Zone -> its GPUs; unlimited if not named.
    stock: dict[str, int] = field(default_factory=dict)
    #: Zone -> name -> reservation.
    reservations: dict[str, dict[str, Reservation]] = field(default_factory=dict)
    #: Region -> metric -> limit; "global" has GPUS_ALL_REGIONS. Not named: :data:`DEFAULT_QUOTA`.
    quotas: dict[str, dict[str, float]] = field(default_factory=dict)
    #: Projects that exist; None for any.
    projects: tuple[str, ...] | None = None
    #: Whether a firewall rule lets Identity-Aware Proxy in on port 22.
    iap_firewall: bool = True
    #: Actions the caller may not do, with * as wildcard: ("instances.insert",).
    denied: tuple[str, ...] = ()
    #: Zones that aggregated lists report as unreachable.
    unreachable: tuple[str, ...] = ()
    #: Requests per minute before rateLimitExceeded; None for no limit.
    requests_per_minute: int | None = None
    #: Emulated seconds a call of ``wait`` may take.
    wait_limit_s: float = 120.0
    speed: float = 1.0
    #: Folders in front of ``PATH`` inside the instances: programs that their image brings.
    guest_path: tuple[str, ...] = ()
    faults: list[dict[str, Any]] = field(default_factory=list)

    def quota(self, metric: str, region: str | None) -> float:
        """The limit granted."""
        return float(self.quotas.get(region or "global", {}).get(metric, DEFAULT_QUOTA[metric]))


_EXAMPLE = "docs/emulator.md shows one"
DEFAULT_QUOTA = {"NVIDIA_L4_GPUS": 8.0, "PREEMPTIBLE_NVIDIA_L4_GPUS": 8.0, "GPUS_ALL_REGIONS": 16.0, "CPUS": 200.0}


def load(path: Path) -> Scenario:
    """Read a scenario from YAML: any of the fields above, and ``faults``; ``latency: realistic`` or its fields. Raises
    ConfigError: not readable, or something in it is unknown."""
    import yaml

    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"cannot read the scenario {path}", cause=str(error), hint=_EXAMPLE) from None
    return from_mapping({"faults": given} if isinstance(given, list) else given, str(path))


def from_mapping(given: Any, source: str) -> Scenario:
    """The same from plain values; ``source`` is for messages."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{source}: a scenario is a mapping, or a list of faults", hint=_EXAMPLE)
    _check_keys(given, Scenario, "key '{}'", source)
    values = dict(given)
    if "latency" in values:
        values["latency"] = _latency(values["latency"], source)
    if "reservations" in values:
        values["reservations"] = _reservations(values["reservations"], source)
    for key in ("zones", "projects", "denied", "unreachable", "guest_path"):
        if values.get(key) is not None:
            values[key] = tuple(values[key])
    for number, entry in enumerate(values.get("faults", []), 1):
        try:
            parse(entry)
        except (FaultSyntax, AttributeError, TypeError) as error:
            raise ConfigError(f"{source}: fault {number}: {error}", hint="docs/emulator.md lists the faults") from None
    return Scenario(**values)


def _check_keys(given: Mapping[Any, Any], kind: type[Any], what: str, source: str) -> None:
    known = [field.name for field in fields(kind)]
    for key in given:
        if key not in known:
            raise ConfigError(f"{source}: unknown {what.format(key)}", hint=did_you_mean(str(key), known))


def _latency(value: Any, source: str) -> Latency:
    if value == "realistic":
        return REALISTIC
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: latency is 'realistic' or a mapping of seconds")
    _check_keys(value, Latency, "latency '{}'", source)
    return replace(Latency(), **{str(key): float(seconds) for key, seconds in value.items()})


def _reservations(value: Any, source: str) -> dict[str, dict[str, Reservation]]:
    """``{us-west1-c: {my-l4: {count: 1, specific: true}}}``; all keys of a reservation optional."""
    reservations: dict[str, dict[str, Reservation]] = {}
    try:
        for zone, by_name in value.items():
            for name, given in by_name.items():
                _check_keys(given or {}, Reservation, f"key '{{}}' of reservation {name}", source)
                reservations.setdefault(zone, {})[name] = Reservation(**(given or {}))
    except (AttributeError, TypeError):
        wrong = f"{source}: reservations are a mapping of zones, names and what is reserved"
        raise ConfigError(wrong, hint=_EXAMPLE) from None
    return reservations
