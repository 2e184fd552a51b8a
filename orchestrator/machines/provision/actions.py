"""Types of the decision in ``machines.provision.decide``: the request, the attempts so far, the actions; and the labels
and the hardware of a machine that is started or created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.base.run_id import slug
from orchestrator.machines.cloud import RUN_LABEL, WORKSPACE_LABEL, Hardware, Machine, Power, Problem, Refusal
from orchestrator.machines.interfaces import HourlyPrice
from orchestrator.machines.targets import CloudTarget, Provisioning

ActionName = Literal["fence", "start", "stop", "create", "delete", "snapshot"]
FailedBy = Problem | Literal["capacity", "budget", "conflict", "not_found", "timeout", "preempted"]

#: The interval between two reads of a machine in transition, seconds.
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
    """What a machine is requested for."""

    #: The max run duration of a machine that is started, seconds from its entry into RUNNING.
    max_run_s: int
    #: The least time until the deadline of a running machine, seconds.
    need_s: float
    #: Restart a running machine to set its max run duration.
    restart: bool = False
    #: Accept a running machine without a max run duration: only its shutdown timer stops it.
    allow_unfenced: bool = False
    #: Create the machine if there is none.
    create: bool = True
    #: Start it if it is off.
    start: bool = True
    #: None: nobody pays for the machine.
    planned: PlannedPrice | None = None


@dataclass(frozen=True)
class Policy:
    """The inputs of decisions: the target, the request, and the label of a created machine."""

    target: CloudTarget
    request: MachineRequest
    label: str = ""

    @property
    def name(self) -> str:
        return self.target.instance

    @property
    def may_create(self) -> bool:
        return self.request.create and self.target.create

    @property
    def stockout_wait_s(self) -> float:
        return self.target.stockout_wait_minutes * 60

    @property
    def limit_s(self) -> float:
        """The limit for the whole acquisition, seconds."""
        return 2 * self.target.wake_timeout_s + self.stockout_wait_s


@dataclass(frozen=True)
class Attempt:
    """A change that was requested, and its result."""

    action: ActionName
    zone: str
    at: float
    way: Provisioning = "on_demand"
    refusal: Refusal | None = None
    #: False: accepted, and its end is unknown.
    done: bool = True

    @property
    def worked(self) -> bool:
        return self.done and self.refusal is None


@dataclass(frozen=True)
class History:
    """The attempts since ``began``, oldest first. All times are the controller's, epoch seconds."""

    began: float
    attempts: tuple[Attempt, ...] = ()

    def with_(self, attempt: Attempt) -> History:
        return replace(self, attempts=(*self.attempts, attempt))

    def of(self, action: ActionName, zone: str | None = None) -> list[Attempt]:
        return [a for a in self.attempts if a.action == action and zone in (None, a.zone)]


# ----------------------------------------------------------------------------------------------------------- actions
@dataclass(frozen=True)
class _OfOne:
    machine: Machine


class UseMachine(_OfOne):
    """The machine runs, and its deadline is late enough."""


class Start(_OfOne):
    """The machine is off, and its max run duration is set."""


class Stop(_OfOne):
    """Stop the machine to set its max run duration."""


@dataclass(frozen=True)
class DeleteCreated(_OfOne):
    """Delete the machine that was created here: ``first`` has the same name and was created earlier."""

    first: Machine


@dataclass(frozen=True)
class Wait:
    seconds: float
    why: str


@dataclass(frozen=True)
class SetDeadline(_OfOne):
    seconds: int


@dataclass(frozen=True)
class Snapshot(_OfOne):
    name: str


@dataclass(frozen=True)
class Create:
    zone: str
    way: Provisioning
    snapshot: str | None = None


@dataclass(frozen=True)
class Fail:
    problem: FailedBy
    message: str
    cause: str | None = None
    hint: str | None = None


#: What changes a machine.
Change = SetDeadline | Start | Stop | Snapshot | Create | DeleteCreated
Action = Change | UseMachine | Wait | Fail


#: The rounding error of a sum of prices.
_SLIGHT_USD = 1e-6


def too_dear(name: str, hardware: Hardware, price: HourlyPrice, request: MachineRequest) -> Fail | None:
    """The failure if an hour of the machine costs more than planned; None if it does not, or nobody pays."""
    if request.planned is None:
        return None
    planned_rest = price.rest_usd if request.planned.rest_usd is None else request.planned.rest_usd
    planned, costs = request.planned.usd + planned_rest, price.usd + price.rest_usd
    if costs <= planned + _SLIGHT_USD:
        return None
    gib = sum(size for _, size in hardware.disks)
    rest = f"its disks ({gib} GiB){' and its address' if hardware.address else ''}"
    return Fail(
        "budget",
        f"{name} in {hardware.zone} costs ${costs:.3f} an hour, but the plan allows ${planned:.3f}",
        cause=f"the machine is a {hardware.text}: ${price.usd:.3f}, and ${price.rest_usd:.3f} for {rest}",
        hint="see the machine: fcctl hosts ls; to plan with this price, within the caps: --accept-price",
    )


#: The prefix of the label of a machine started by ``fcctl hosts up``, which its max run duration ends.
UP_PREFIX = "up-"


@dataclass(frozen=True)
class Purpose:
    """Who uses a machine, as its labels say."""

    #: A run's id, or another word of at most 63 characters of [a-z0-9-].
    label: str
    workspace: str = ""

    def labels(self) -> dict[str, str]:
        """The labels of a machine that was started for this purpose."""
        workspace = {WORKSPACE_LABEL: slug(self.workspace)[:63]} if self.workspace else {}
        return {RUN_LABEL: slug(self.label)[:63], **workspace}

    def labels_on(self, present: Mapping[str, str]) -> dict[str, str]:
        """The same for a machine that was already on: one that ``hosts up`` started for longer keeps its labels."""
        labels = self.labels()
        if present.get(RUN_LABEL, "").startswith(UP_PREFIX) and not self.label.startswith(UP_PREFIX):
            del labels[RUN_LABEL]
        return labels


def started_by_hosts_up(machine: Machine, now: float) -> bool:
    """Whether ``fcctl hosts up`` started it, and the cloud will stop it later."""
    if not machine.labels.get(RUN_LABEL, "").startswith(UP_PREFIX):
        return False
    if machine.power is Power.STARTING:
        return machine.max_run_s is not None and machine.termination_action == "STOP"
    return machine.power is Power.RUNNING and (machine.deadline or 0.0) > now


def hardware(target: CloudTarget, zone: str, *, spot: bool) -> Hardware:
    """The hardware of a machine created for ``target`` in ``zone``."""
    accelerators, disks = tuple(sorted(target.accelerators.items())), ((target.disk_type, target.disk_gb),)
    return Hardware(zone, target.machine_type, spot, accelerators, disks, address=target.has_address)
