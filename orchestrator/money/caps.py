"""What a run may cost: the caps of ``[budget]``, the rate of a target, and the worst case of a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field, PrivateAttr

from orchestrator.base.errors import ConfigError
from orchestrator.base.models import WRITTEN
from orchestrator.machines.targets import GcpTarget, SandboxTarget, Target

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.machines.cloud import Hardware
    from orchestrator.money.prices import Model, PriceTable

#: Dollars that a person may mean.
Usd = Annotated[float, Field(gt=0, le=1_000_000)]

#: The cloud enforces ``maxRunDuration`` up to this much late, and bills a machine that was on at all for a minute.
#: https://cloud.google.com/compute/docs/instances/limit-vm-runtime, https://cloud.google.com/compute/vm-instance-pricing
FENCE_LATENESS_S = 30.0
MINIMUM_BILLED_S = 60.0
#: Past the boot and the worst case of a run's steps, for sending the source and fetching the results.
TRANSFER_MARGIN_S = 15 * 60.0


class Budget(BaseModel):
    """Caps in dollars; an absent cap does not bind."""

    model_config = WRITTEN

    per_run_usd: Usd | None = None
    per_session_usd: Usd | None = None
    per_day_usd: Usd | None = None
    per_month_usd: Usd | None = None
    project_usd: Usd | None = None
    #: Price of an hour on a billed machine whose target names none.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None
    #: Returns the price list in force; not called for machines that nobody sells.
    _prices: Callable[[], PriceTable] | None = PrivateAttr(default=None)
    #: What the clouds show of targets' machines, by project and instance.
    _seen: Mapping[tuple[str, str], tuple[Hardware, ...]] = PrivateAttr(default_factory=dict)

    def with_prices(self, prices: Callable[[], PriceTable]) -> Budget:
        """The same caps, reckoned with the price list that ``prices`` returns."""
        made = self.model_copy()
        made._prices = prices  # noqa: SLF001 - the copy's, that nobody else has yet
        return made

    def with_seen(self, target: GcpTarget, found: Iterable[Hardware]) -> Budget:
        """The same caps, reckoned with the machines that the cloud shows for ``target``."""
        made = self.model_copy()
        made._seen = {**self._seen, (target.project, target.instance): tuple(found)}  # noqa: SLF001 - as above
        return made

    def seen(self, target: GcpTarget) -> tuple[Hardware, ...]:
        """What :meth:`with_seen` was told; empty: no machine, or nobody asked."""
        return self._seen.get((target.project, target.instance), ())

    @property
    def prices(self) -> PriceTable:
        """The price list in force.

        Raises:
            RuntimeError: :meth:`with_prices` was not called; a workspace's budget has one.
        """
        if self._prices is None:
            raise RuntimeError("the budget was given no price list")
        return self._prices()

    @property
    def holds_over_runs(self) -> bool:
        """Whether a cap reckons with what other runs cost."""
        return any(cap is not None for cap in (self.per_day_usd, self.per_month_usd, self.project_usd))


def dollars(usd: float) -> str:
    """``$2.50``; of less than a cent, what it is and not ``$0.00``."""
    return f"${usd:.2f}" if usd >= 0.01 or usd <= 0 else f"${usd:.2g}"


# ------------------------------------------------------------------------------------------------------------- rates
def models(target: GcpTarget) -> tuple[Model, ...]:
    """The price models a start of ``target`` may end in, in the order in which they are tried."""
    order: dict[str, tuple[Model, ...]] = {
        "on_demand": ("on_demand",),
        "spot": ("spot",),
        "spot_then_on_demand": ("spot", "on_demand"),
        "on_demand_then_spot": ("on_demand", "spot"),
    }
    return order[target.provisioning]


@dataclass(frozen=True)
class HourlyPlan:
    """What an hour of a target is planned to cost, dollars; a run's and a session's plan have fields of these names."""

    #: The machine with its GPUs, in the place that is tried first.
    usd_per_hour: float
    #: The same in each ``zone/model`` that a start may end in, ``us-west1-c/spot``.
    usd_by_place: dict[str, float]
    #: The same in the dearest of them.
    worst_usd_per_hour: float
    #: At most what the disks and the external address cost beside that.
    rest_usd_per_hour: float

    @property
    def most(self) -> float:
        """All of it in the dearest place."""
        return self.worst_usd_per_hour + self.rest_usd_per_hour


def hourly_plan(target: Target, budget: Budget, table: PriceTable | None = None) -> HourlyPlan:
    """What an hour of ``target`` is planned to cost, over all :func:`machine_choices`. ``local`` costs nothing unless it
    says so itself; the sandbox, which nobody pays, what the machine that it plays would.

    Raises:
        ConfigError: a gcp target whose machine has no known price.
    """
    if (machine := as_gcp(target)) is None:
        usd = usd_per_hour(target, budget, table)
        return HourlyPlan(usd, {}, usd, 0.0)
    from orchestrator.money.machine_price import machine_price

    choices = [(one, machine_price(one, budget, machine, table)) for one in machine_choices(machine, budget)]
    by_place: dict[str, float] = {}
    for one, price in choices:
        place = f"{one.zone}/{'spot' if one.spot else 'on_demand'}"
        by_place[place] = max(price.usd, by_place.get(place, 0.0))
    worst = max(by_place.values())
    return HourlyPlan(
        choices[0][1].usd, by_place, worst, max(price.usd + price.rest_usd for _, price in choices) - worst
    )


def machine_choices(target: GcpTarget, budget: Budget) -> list[Hardware]:
    """The machines that a start of ``target`` may end in, the one tried first is the first: what the cloud shows of it,
    as far as ``budget`` was told; and what may be made, in each zone and price model."""
    from orchestrator.machines.provision.spec import hardware

    seen = budget.seen(target)
    if seen and not (target.create and target.on_stockout == "rebuild"):
        return list(seen)
    made = [hardware(target, zone, spot=model == "spot") for model in models(target) for zone in target.zones]
    return [*seen, *made]


def usd_per_hour(target: Target, budget: Budget, table: PriceTable | None = None) -> float:
    """What an hour of ``target`` costs, dollars: its own price, else the budget's, else the list's, else 0.

    A gcp target's is that of the first of :func:`machine_choices`.

    Raises:
        ConfigError: a gcp target whose machine has no known price.
    """
    if (machine := as_gcp(target)) is not None:
        from orchestrator.money.machine_price import machine_price

        return machine_price(machine_choices(machine, budget)[0], budget, machine, table).usd
    if target.usd_per_hour is not None:
        return target.usd_per_hour
    if target.kind == "ssh" and budget.usd_per_hour is not None:
        return budget.usd_per_hour
    return 0.0


def as_gcp(target: Target) -> GcpTarget | None:
    """The machine of a cloud behind a target, to reckon with; None if there is none."""
    if isinstance(target, SandboxTarget):
        from orchestrator.machines.sandbox_target import as_machine

        return as_machine(target)
    return target if isinstance(target, GcpTarget) else None


# ------------------------------------------------------------------------------------------------------- worst cases
def worst_case_minutes(steps: Iterable[wire.StepSpec], max_minutes: float | None = None) -> float:
    """Wall clock of a run in which every step uses its whole timeout in every attempt, cut off at ``max_minutes``."""
    minutes = sum(step.timeout_s * (step.retries + 1) for step in steps) / 60
    return minutes if max_minutes is None else min(minutes, max_minutes)


def fence_s(minutes: float, target: GcpTarget) -> int:
    """Fence 1 of a run whose steps take ``minutes`` at worst: seconds from the machine's entry into RUNNING until the
    cloud stops it. Boot, sending and fetching fit in; the target's own ``max_run_minutes`` is never passed.

    Raises:
        ConfigError: the steps alone may take longer than the target lets a machine run.
    """
    steps_s, longest_s = minutes * 60, target.max_run_minutes * 60
    if steps_s > longest_s:
        raise ConfigError(
            f"the steps may take {minutes:.0f} min, and {target.name} runs {target.max_run_minutes:.0f} min at most",
            hint=f"lower the steps' timeouts or `budget: {{minutes: N}}` of the job, take fewer with --steps, or raise"
            f" max_run_minutes of [targets.{target.name}]",
        )
    return int(min(longest_s, target.wake_timeout_s + steps_s + TRANSFER_MARGIN_S))


def worst_case_usd(minutes: float, rate: float) -> float:
    """Dollars for ``minutes`` at ``rate`` dollars an hour."""
    return minutes / 60 * rate


def fenced_worst_case_usd(fence_s: float, rate: float) -> float:
    """The most a start with fence 1 at ``fence_s`` can cost at ``rate`` dollars an hour, whatever happens to it.

    The cloud may be late with the fence, and bills a minute for a machine that was hardly on.
    """
    return (fence_s + FENCE_LATENESS_S + MINIMUM_BILLED_S) / 3600 * rate
