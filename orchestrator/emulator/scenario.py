"""Scripted faults: which request meets one, and what happens to it.

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from orchestrator.base import models
from orchestrator.base.errors import ConfigError
from orchestrator.base.models import WRITTEN
from orchestrator.emulator import catalog
from orchestrator.emulator.refusals import REASONS, ApiError, OperationError

KINDS = ("http", "operation", "stockout", "quota", "drop", "delay", "never_finish")
_CONDITIONS = ("action", "method", "path", "nth", "for", "do")
#: The reason for a bare status.
_REASON_OF = {
    400: "badRequest",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    503: "backendError",
}


class FaultSyntax(ValueError):
    """An invalid fault."""


@dataclass
class Fault:
    """One scripted fault; ``seen`` counts the requests its conditions matched."""

    kind: str
    value: Any
    action: str = "*"
    method: str = "*"
    path: str = "*"
    nth: tuple[tuple[int, int | None], ...] = ((1, None),)
    window_s: float | None = None
    seen: int = 0
    first: float | None = field(default=None, repr=False)

    def meets(self, action: str, method: str, path: str, now: float) -> bool:
        """Counts the request if the conditions match; whether the fault applies to it."""
        if not (fnmatchcase(action, self.action) and fnmatchcase(method, self.method) and fnmatchcase(path, self.path)):
            return False
        self.seen += 1
        self.first = now if self.first is None else self.first
        if self.window_s is not None and now > self.first + self.window_s:
            return False
        return any(low <= self.seen and (high is None or self.seen <= high) for low, high in self.nth)

    def http_error(self) -> ApiError | None:
        """The error to answer with instead of serving the request, for kind ``http``."""
        if self.kind != "http":
            return None
        given = self.value if isinstance(self.value, Mapping) else {"status": self.value}
        reason = given.get("reason")
        status = int(given.get("status") or REASONS.get(str(reason), (400,))[0])
        reason = str(reason or _REASON_OF.get(status, "backendError"))
        return ApiError(reason, str(given.get("message") or f"scripted fault: {reason}"), status=status)

    def operation_error(self) -> OperationError | None:
        """The error the operation ends with, for kind ``operation``."""
        if self.kind != "operation":
            return None
        given = self.value
        code = str(given["code"])
        http = given.get("http", 400)
        message = str(given.get("message") or f"scripted fault: {code}")
        return OperationError(code, message, None if http is None else int(http), list(given.get("details", [])))

    @property
    def applied(self) -> bool:
        """Whether an operation that ends with an error has taken effect."""
        return self.kind == "operation" and bool(self.value.get("applied"))


class Faults:
    """The scripted faults. The first fault that matches a request applies."""

    def __init__(self, script: Iterable[Mapping[str, Any]] = ()) -> None:
        self._lock = threading.Lock()
        self._faults = [parse(entry) for entry in script]

    def add(self, **entry: Any) -> Fault:
        """``add(action="instances.start", nth=1, do={"http": 503})``; ``for`` is spelt ``for_s`` here. Raises
        FaultSyntax: an unknown condition or fault."""
        fault = parse({"for" if key == "for_s" else key: value for key, value in entry.items()})
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


def parse(entry: Mapping[str, Any]) -> Fault:
    """One entry of the script. Raises FaultSyntax: an unknown key or value."""
    unknown = set(entry) - set(_CONDITIONS)
    if unknown:
        raise FaultSyntax(f"unknown key '{min(unknown)}'; known: {', '.join(_CONDITIONS)}")
    do = entry.get("do")
    do = {do: True} if isinstance(do, str) else do
    if not isinstance(do, Mapping) or len(do) != 1 or next(iter(do)) not in KINDS:
        raise FaultSyntax(f"'do' needs exactly one of: {', '.join(KINDS)}")
    kind, value = next(iter(do.items()))
    fits, wrong = _VALUES.get(kind, (lambda _: True, ""))
    if not fits(value):
        raise FaultSyntax(wrong)
    return Fault(
        kind=kind,
        value=value,
        action=str(entry.get("action", "*")),
        method=str(entry.get("method", "*")).upper(),
        path=str(entry.get("path", "*")),
        nth=_nth(entry.get("nth")),
        window_s=None if entry.get("for") is None else float(entry["for"]),
    )


#: Which values a kind takes, and what to say of others.
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "operation": (
        lambda value: isinstance(value, Mapping) and bool(value.get("code")),
        "'operation' needs a code: {code: QUOTA_EXCEEDED, http: 403}",
    ),
    "drop": (
        lambda value: value in ("before", "after"),
        "'drop' must be before (the request has no effect) or after (only the reply is lost)",
    ),
    "delay": (lambda value: isinstance(value, int | float) and value >= 0, "'delay' must be a number of seconds"),
    "quota": (
        lambda value: isinstance(value, str),
        "'quota' must be a metric: NVIDIA_L4_GPUS, PREEMPTIBLE_NVIDIA_L4_GPUS or GPUS_ALL_REGIONS",
    ),
    "http": (lambda value: isinstance(value, int | Mapping), "'http' must be a status, or {status, reason, message}"),
}


def _nth(value: Any) -> tuple[tuple[int, int | None], ...]:
    if value is None:
        return ((1, None),)
    parts = value if isinstance(value, list) else [value]
    return tuple(_range(str(part)) for part in parts)


def _range(text: str) -> tuple[int, int | None]:
    try:
        if text.endswith("+"):
            return int(text[:-1]), None
        low, _, high = text.partition("-")
        return int(low), int(high or low)
    except ValueError:
        raise FaultSyntax(f"'nth' must be such as 2, [1, 3], 2-4 or 3+, not '{text}'") from None


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


def _checked_faults(script: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for number, entry in enumerate(script, 1):
        try:
            parse(entry)
        except (FaultSyntax, AttributeError, TypeError) as error:
            raise ValueError(f"fault {number}: {error}") from None
    return script


class Scenario(BaseModel):
    """The cloud around the instances. Mutable: tests change it while the emulator runs."""

    model_config = ConfigDict(extra="forbid")

    #: In a file also ``realistic``.
    latency: Annotated[Latency, BeforeValidator(lambda value: REALISTIC if value == "realistic" else value)] = Latency()
    zones: tuple[str, ...] = catalog.ZONES
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
    #: Requests per minute before rateLimitExceeded; None for no limit.
    requests_per_minute: int | None = None
    #: Emulated seconds a call of ``wait`` may take.
    wait_limit_s: float = 120.0
    speed: float = 1.0
    #: Folders in front of ``PATH`` inside the instances: programs that their image brings.
    guest_path: tuple[str, ...] = ()
    faults: Annotated[list[dict[str, Any]], AfterValidator(_checked_faults)] = []

    def quota(self, metric: str, region: str | None) -> float:
        """The limit granted."""
        return float(self.quotas.get(region or "global", {}).get(metric, DEFAULT_QUOTA[metric]))


_EXAMPLE = "see an example in docs/emulator.md"
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
