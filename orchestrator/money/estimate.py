"""What a run would cost, estimated before anything starts: by activity, by zone and price model, and at the worst."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fcctl_remote import wire
from orchestrator.base.json_text import pick, rounded
from orchestrator.machines.cloud import region_of
from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.money.caps import (
    FENCE_LATENESS_S,
    MINIMUM_BILLED_S,
    TRANSFER_MARGIN_S,
    Budget,
    fence_s,
    run_caps,
    worst_case_minutes,
)
from orchestrator.money.prices import rates
from orchestrator.money.prices.machine import SpotPreview, machine_price, monthly, spot_preview
from orchestrator.money.prices.table import Model, Price

#: Seconds by activity of one earlier run, its ledger line.
Past = Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """One activity: how long it took in earlier runs, and how long it can take. None: no earlier run."""

    activity: str
    expected_s: float | None
    worst_s: float


@dataclass(frozen=True)
class Choice:
    """One way a start may end: the zone, the price model, and what the run costs there."""

    zone: str | None  # None: a machine that is simply there
    model: Model | None
    price: Price
    #: What an hour of the disks and the external address costs beside that.
    rest_usd_per_hour: float
    expected_usd: float | None
    worst_usd: float


@dataclass(frozen=True)
class StandingCost:
    """A cost while the machine is stopped."""

    what: str
    usd_per_month: float | None  # None: the table has no price
    certain: bool  # whether the target has it for sure


@dataclass(frozen=True)
class CostPlan:
    job: str
    target: str
    emulated: bool
    lines: tuple[Line, ...]
    choices: tuple[Choice, ...]  # the one tried first is the first
    fence_s: int | None
    runs_before: int
    standing: tuple[StandingCost, ...]
    caps: Mapping[str, float]
    #: For fetching as much as earlier runs left; part of the worst case.
    egress_usd: float = 0.0
    spot: SpotPreview | None = None
    #: Whether the machine is priced as it was seen; else as the target describes it.
    seen: bool = False
    #: The plan of the target that compiles for it; part of the worst case.
    builder: CostPlan | None = None

    @property
    def expected_usd(self) -> float | None:
        return self.choices[0].expected_usd

    @property
    def worst_usd(self) -> float:
        """In the dearest of the choices, with its builder."""
        built = self.builder.worst_usd if self.builder is not None else 0.0
        return max(choice.worst_usd for choice in self.choices) + self.egress_usd + built

    @property
    def refused_by(self) -> list[str]:
        """The caps that such a run could break, and that would refuse it."""
        return [name for name, usd in self.caps.items() if self.worst_usd > usd]

    def as_json(self) -> dict[str, Any]:
        rate = self.choices[0].price.usd / 3600
        return {
            **pick(self, "job target emulated fence_s runs_before refused_by"),
            "expected_usd": rounded(self.expected_usd),
            "worst_usd": rounded(self.worst_usd),
            "activities": [
                {
                    **asdict(line),
                    "expected_usd": rounded(None if line.expected_s is None else line.expected_s * rate),
                    "worst_usd": rounded(line.worst_s * rate),
                }
                for line in self.lines
            ],
            "choices": [
                {**asdict(c), "expected_usd": rounded(c.expected_usd), "worst_usd": rounded(c.worst_usd)}
                for c in self.choices
            ],
            "egress_usd": rounded(self.egress_usd),
            "priced_as_seen": self.seen,
            "standing": [asdict(one) for one in self.standing],
            "caps": dict(self.caps),
            "spot": self.spot.as_json() if self.spot is not None else None,
            "builder": self.builder.as_json() if self.builder is not None else None,
        }


def cost_plan(
    job: str,
    target: Target,
    budget: Budget,
    steps: Sequence[tuple[str, wire.StepSpec]],
    *,
    max_minutes: float | None,
    job_cap_usd: float | None = None,
    past: Sequence[Past] = (),
    egress_usd: float = 0.0,
    builder: CostPlan | None = None,
) -> CostPlan:
    """Returns the plan of one run. ``steps`` are (activity, step) on the machine, ``past`` earlier passed runs of them,
    ``egress_usd`` is the cost of fetching results, ``builder`` the plan of what compiles for it. Raises ConfigError
    without a price or if the steps exceed the target's limit."""
    machine = target.cloud
    lines = _lines(steps, max_minutes, machine, past)
    expected = [line.expected_s for line in lines if line.expected_s is not None]
    expected_s, worst_s = (sum(expected) if past else None), sum(line.worst_s for line in lines)
    choices = tuple(
        Choice(zone, model, price, rest_usd, None if expected_s is None else expected_s / 3600 * price.usd,
               worst_s / 3600 * (price.usd + rest_usd))
        for zone, model, price, rest_usd in _prices(target, machine, budget)
    )  # fmt: skip
    minutes = worst_case_minutes([spec for _, spec in steps], max_minutes)
    return CostPlan(
        job=job,
        target=target.name,
        emulated=target.kind == "sandbox",
        lines=tuple(lines),
        choices=choices,
        fence_s=None if machine is None else fence_s(minutes, machine),
        runs_before=len(past),
        standing=() if machine is None else tuple(_standing(machine, budget)),
        caps={cap.name: cap.usd for cap in run_caps(job, budget, job_cap_usd)},
        egress_usd=0.0 if machine is None else egress_usd,
        spot=None if machine is None else spot_preview(machine, budget.prices),
        seen=machine is not None and bool(budget.seen(machine)),
        builder=builder,
    )


def _prices(
    target: Target, machine: CloudTarget | None, budget: Budget
) -> Iterator[tuple[str | None, Model | None, Price, float]]:
    """Zone, price model, price of the machine and of the rest, of each way that a start may end."""
    if machine is None:
        rate = rates.usd_per_hour(target, budget)
        yield None, None, Price(rate, "hour", "configured", _source(target, budget)), 0.0
        return
    for hardware in rates.machine_choices(machine, budget):
        price = machine_price(hardware, budget, machine)
        yield hardware.zone, "spot" if hardware.spot else "on_demand", price.machine, price.rest_usd


def _lines(
    steps: Sequence[tuple[str, wire.StepSpec]],
    max_minutes: float | None,
    machine: CloudTarget | None,
    past: Sequence[Past],
) -> list[Line]:
    worst: dict[str, float] = {}
    if machine is not None:
        worst["boot"] = machine.wake_timeout_s
    for activity, step in steps:
        worst[activity] = worst.get(activity, 0.0) + step.timeout_s * (step.retries + 1)
    total = sum(worst.values()) - worst.get("boot", 0.0)
    limited = total if max_minutes is None else min(total, max_minutes * 60)
    if limited < total:
        worst["limit of the job"] = limited - total
    if machine is not None:
        worst["margin for transfers"] = TRANSFER_MARGIN_S
        longest = fence_s(limited / 60, machine)
        if (over := longest - sum(worst.values())) < 0:
            worst["limit of the target"] = over
        worst["late-stop allowance"] = FENCE_LATENESS_S
        worst["minimum"] = MINIMUM_BILLED_S
    before = _medians(past)
    for activity in before:
        worst.setdefault(activity, 0.0)
    return [Line(activity, before.get(activity), seconds) for activity, seconds in worst.items()]


def _medians(past: Sequence[Past]) -> dict[str, float]:
    """Of each activity, the median over the runs; a run that has none of it counts as 0 s."""
    names = dict.fromkeys(name for run in past for name in run)
    return {name: statistics.median(run.get(name, 0.0) for run in past) for name in names}


def _standing(machine: CloudTarget, budget: Budget) -> Iterator[StandingCost]:
    first = rates.machine_choices(machine, budget)[0]
    region = region_of(first.zone)
    for kind, gib in first.disks:
        usd = monthly("disk", kind or machine.disk_type, gib, region, True, budget.prices, machine)
        yield StandingCost(f"{gib} GB {kind or machine.disk_type}", rounded(usd), certain=True)
    usd = monthly("address", "", 0, region, True, budget.prices, machine)
    yield StandingCost("a static address", rounded(usd), certain=False)


def _source(target: Target, budget: Budget) -> str:
    if target.usd_per_hour is not None:
        return f"usd_per_hour of [targets.{target.name}]"
    return "usd_per_hour of [budget]" if target.kind == "ssh" and budget.usd_per_hour is not None else "no price given"
