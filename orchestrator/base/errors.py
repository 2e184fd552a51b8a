"""Every error a user can meet.

::

    FcctlError                    1    unexpected
    ├── DiskError                 1    this computer's own disk
    ├── UsageError                2    the command line
    ├── ConfigError               3    fcctl.toml
    │   └── JobError              3    a job file
    ├── AuthError                 4    credentials
    ├── BudgetError               5    capacity, quota or budget
    ├── HostError                 6    the machine at the other end
    │   ├── HostUnreachable       6    never got in: name, port, key or login
    │   ├── LinkLost              6    was in, and the link broke: worth another try
    │   ├── HostUnusable          6    is in, but the machine lacks something
    │   └── HostFault             6    the host program answered with an error, or with nonsense
    ├── NotFoundError             7
    ├── ConflictError             8    locked, or exists already
    ├── RegressionFound           9
    ├── DoctorFailed             10
    ├── MachineStopped          100    the machine was stopped under the run; what it has is on its disk
    │                             5    the same, because the money for it was spent
    ├── RunNotFinished          101
    ├── RunNotFound             102
    └── RunCancelled            103

A run that is ``incomplete`` (a gate without a value) ends with 104, one that left its GPU ``idle`` with 5; there is no
error of them.

An error says what happened (``message``), why (``cause``) and what to type next (``hint``). Exceptions of other
libraries are translated once, in the adapter that called them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, Literal


class FcctlError(Exception):
    """Base of all errors shown to a user without a traceback."""

    exit_code: int = 1
    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint

    @property
    def one_line(self) -> str:
        return f"{self.message}: {self.cause}" if self.cause else self.message

    def as_json(self) -> dict[str, Any]:
        """The one object printed on stderr in ``--json`` mode."""
        names = ("code", "exit_code", "message", "cause", "hint")
        return {"error": {name: getattr(self, name) for name in names}}


class DiskError(FcctlError):
    """This computer's own disk is full, or cannot be written."""

    code = "disk"


class UsageError(FcctlError):
    exit_code = 2
    code = "usage"


class ConfigError(FcctlError):
    exit_code = 3
    code = "config"


class JobError(ConfigError):
    code = "job"


class AuthError(FcctlError):
    exit_code = 4
    code = "auth"


class BudgetError(FcctlError):
    exit_code = 5
    code = "budget"


class CapacityError(BudgetError):
    """No machine available: no stock in any zone, or a quota."""

    code = "capacity"


class CloudError(FcctlError):
    """The cloud's interface refused, or did not answer in time."""

    exit_code = 6
    code = "cloud"


class HostError(FcctlError):
    exit_code = 6
    code = "host"


UnreachableReason = Literal["name", "port", "key", "login", "proxy", "timeout", "config"]


class HostUnreachable(HostError):
    """No session was established. ``reason`` says which of name, port, host key or login failed."""

    code = "host_unreachable"

    def __init__(
        self, message: str, *, reason: UnreachableReason, cause: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, cause=cause, hint=hint)
        self.reason = reason


class LinkLost(HostError):
    code = "link_lost"


class HostUnusable(HostError):
    code = "host_unusable"


class HostFault(HostError):
    """The host program refused a call. ``fault`` is the wire's stable code (``tree_mismatch``, ``not_found``, ...)."""

    code = "host_fault"

    def __init__(
        self, message: str, *, fault: str = "internal", data: dict[str, Any] | None = None, cause: str | None = None,
        hint: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, cause=cause, hint=hint)
        self.fault = fault
        self.data = data or {}


class NotFoundError(FcctlError):
    exit_code = 7
    code = "not_found"


class ConflictError(FcctlError):
    exit_code = 8
    code = "conflict"


class RegressionFound(FcctlError):
    exit_code = 9
    code = "regression"


class DoctorFailed(FcctlError):
    exit_code = 10
    code = "doctor"


class MachineStopped(FcctlError):
    """The cloud machine of a run is off, and the run is not collected. ``how``: preempted, fence, timer, guest,
    console, host_error, deleted, replaced, unknown; ``status``: preempted, over_budget, lost; ``at``: epoch seconds of
    the cloud's clock; ``disk``: whether its disk still exists."""

    exit_code = 100
    code = "machine_stopped"

    def __init__(
        self, message: str, *, how: str, status: str, at: float | None = None, disk: bool = True,
        cause: str | None = None, hint: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message, cause=cause, hint=hint)
        self.how, self.status, self.at, self.disk = how, status, at, disk
        if status == "over_budget":
            self.exit_code = BudgetError.exit_code


class RunNotFinished(FcctlError):
    exit_code = 101
    code = "run_not_finished"


class RunNotFound(FcctlError):
    exit_code = 102
    code = "run_not_found"


class RunCancelled(FcctlError):
    exit_code = 103
    code = "run_cancelled"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, if one is near enough to suggest."""
    names = sorted(known)
    near = set(difflib.get_close_matches(name, names, n=5, cutoff=0.6))
    distances = {other: edits(name, other) for other in names if abs(len(other) - len(name)) <= 2 or other in near}
    close = {other for other, edits in distances.items() if edits <= max(1, len(name) // 4) and edits < len(name)}
    return min(near | close, key=lambda other: (distances[other], other), default=None)


def edits(one: str, other: str) -> int:
    """How many letters to add, drop, replace or swap with their neighbour to turn one name into the other."""
    one, other = one[:64], other[:64]
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest valid one, else the list of valid ones."""
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"did you mean '{near}'?"
    return f"known: {', '.join(names)}" if names else "none exist"


def plural(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``, ``2 searches``, ``2 copies``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith(("s", "x", "ch", "sh")):
        return f"{count} {noun}es"
    return f"{count} {noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeou" else f"{count} {noun}s"
