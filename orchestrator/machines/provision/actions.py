"""What is wanted of a machine, what was tried, and the moves there are; see ``machines.provision.decide``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.machines.cloud import Machine, Refusal
from orchestrator.machines.targets import GcpTarget, Provisioning

Action = Literal["fence", "start", "stop", "resume", "create", "delete", "snapshot"]
Problem = Literal["capacity", "quota", "budget", "conflict", "not_found", "denied", "config", "timeout", "preempted"]

#: Between two looks at a machine that is changing its state by itself, seconds.
POLL_S = 2.0


@dataclass(frozen=True)
class PlannedPrice:
    """What an hour of a machine was planned to cost at most, dollars."""

    #: With its GPUs.
    usd: float
    #: Its disks and its external address; None: not planned.
    rest_usd: float | None = None


@dataclass(frozen=True)
class MachineRequest:
    """What the machine is wanted for."""

    #: Fence 1 of a machine that is started now, seconds from its entry into RUNNING.
    max_run_s: int
    #: How long a machine that runs already must still be allowed to, seconds.
    need_s: float
    #: Stop a machine that runs already and start it anew, so that it gets a limit of its own.
    restart: bool = False
    #: Be content with a machine that runs without a limit of the cloud's: its own shutdown timer is the only fence.
    allow_unfenced: bool = False
    #: Make the machine if there is none.
    create: bool = True
    #: Start it if it is off; else it is of use only while it runs.
    start: bool = True
    #: None: nobody pays for the machine.
    planned: PlannedPrice | None = None


@dataclass(frozen=True)
class Policy:
    """A target and a wish, as far as decisions depend on them."""

    project: str
    name: str
    zones: tuple[str, ...]
    ways: tuple[Provisioning, ...]  # in the order of preference
    on_stockout: Literal["wait", "rebuild", "fail"]
    stockout_wait_s: float
    wake_timeout_s: float
    wish: MachineRequest
    #: Who a machine that is made is made for, as its label says.
    label: str = ""
    #: How long a request may wait in the cloud's queue in each zone.
    flex_wait_s: float = 0.0
    #: Whose reserved capacity the machine is to use; None: no matter.
    reservation: str | None = None

    @property
    def limit_s(self) -> float:
        """When everything ends, counted from the beginning."""
        return 2 * self.wake_timeout_s + self.stockout_wait_s + self.flex_wait_s * len(self.zones)


def policy(target: GcpTarget, wish: MachineRequest, label: str = "") -> Policy:
    """What ``target`` says about having its machine for whoever ``label`` names."""
    return Policy(
        project=target.project,
        name=target.instance,
        zones=tuple(dict.fromkeys(target.zones)),
        ways=target.ways,
        on_stockout=target.on_stockout,
        stockout_wait_s=target.stockout_wait_minutes * 60,
        wake_timeout_s=target.wake_timeout_s,
        wish=replace(wish, create=wish.create and target.create),
        label=label,
        flex_wait_s=target.flex_wait_s,
        reservation=target.reservation,
    )


@dataclass(frozen=True)
class Attempt:
    """A change that was asked for, and what came of it."""

    action: Action
    zone: str
    at: float
    way: Provisioning = "on_demand"
    refusal: Refusal | None = None
    #: False: the cloud took it, and has not said how it ended.
    done: bool = True

    @property
    def worked(self) -> bool:
        return self.done and self.refusal is None


@dataclass(frozen=True)
class History:
    """What was tried since ``began``, oldest first. All times are the controller's, epoch seconds."""

    began: float
    attempts: tuple[Attempt, ...] = ()

    def with_(self, attempt: Attempt) -> History:
        return replace(self, attempts=(*self.attempts, attempt))

    def of(self, action: Action, zone: str | None = None) -> list[Attempt]:
        return [a for a in self.attempts if a.action == action and zone in (None, a.zone)]


# ------------------------------------------------------------------------------------------------------------- moves
@dataclass(frozen=True)
class _OfOne:
    machine: Machine


class UseMachine(_OfOne):
    """It runs, and may run for long enough."""


class Start(_OfOne):
    """It is off, and has its limit."""


class Stop(_OfOne):
    """To give it a limit of its own."""


class Resume(_OfOne):
    """Wake a suspended machine, only to stop it: a limit can be set on a stopped one alone."""


@dataclass(frozen=True)
class DeleteCreated(_OfOne):
    """Delete what was made here: ``first`` has its name, and was made before it."""

    first: Machine


@dataclass(frozen=True)
class Wait:
    seconds: float
    why: str


@dataclass(frozen=True)
class SetDeadline:
    machine: Machine
    seconds: int


@dataclass(frozen=True)
class Snapshot:
    machine: Machine
    name: str


@dataclass(frozen=True)
class Create:
    zone: str
    way: Provisioning
    snapshot: str | None = None


@dataclass(frozen=True)
class Fail:
    problem: Problem
    message: str
    cause: str | None = None
    hint: str | None = None
    #: The cloud's own words, if it was the cloud that refused.
    refusal: Refusal | None = None


Move = UseMachine | Wait | SetDeadline | Start | Stop | Resume | Snapshot | Create | DeleteCreated | Fail
