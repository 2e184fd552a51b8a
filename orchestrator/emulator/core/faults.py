"""Scripted faults: which request meets one, and what happens to it.

One fault is a mapping of the conditions of a request and what to ``do``::

    - action: instances.start       # the API's method, with * as wildcard
      method: POST                  # and/or the HTTP method
      path: zones/us-west1-*/*      # and/or the path below projects/P/
      nth: 2-4                      # which of the matching requests: 1, [1, 3], 2-4, 3+; all, if left out
      for: 30                       # only within so many seconds of the first matching request
      do: {http: 503}

``do`` is exactly one of: ``http``, ``operation``, ``stockout``, ``quota``, ``drop``, ``delay``, ``never_finish``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.emulator.core.refusals import REASONS, ApiError, OperationError

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
        "'drop' is before (nothing was done) or after (it was done, the reply is lost)",
    ),
    "delay": (lambda value: isinstance(value, int | float) and value >= 0, "'delay' is a number of seconds"),
    "quota": (
        lambda value: isinstance(value, str),
        "'quota' names a metric: NVIDIA_L4_GPUS, PREEMPTIBLE_NVIDIA_L4_GPUS or GPUS_ALL_REGIONS",
    ),
    "http": (lambda value: isinstance(value, int | Mapping), "'http' is a status, or {status, reason, message}"),
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
        raise FaultSyntax(f"'nth' is 2, [1, 3], 2-4 or 3+, not '{text}'") from None
