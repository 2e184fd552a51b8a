"""Costs before anything is started: with what earlier runs of the job took, and the price of the target's machine."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError, FcctlError, UsageError
from orchestrator.base.json_text import pick, rounded
from orchestrator.machines.cloud import Hardware, region_of
from orchestrator.machines.provision.ready import find_machines, with_disk_types
from orchestrator.machines.targets import AcceptedPrices, CloudTarget, Target
from orchestrator.money.caps import (
    EGRESS_USD_PER_GIB,
    FENCE_LATENESS_S,
    MINIMUM_BILLED_S,
    TRANSFER_MARGIN_S,
    Budget,
    fence_s,
    run_caps,
    worst_case_minutes,
)
from orchestrator.money.prices import rates
from orchestrator.money.prices.machine import SpotPreview, list_price, machine_price, monthly, spot_preview
from orchestrator.money.prices.rates import hourly_plan, machine_choices, old_prices
from orchestrator.money.prices.table import Model, Price
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import slice_steps
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


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


def plan_of_steps(
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


#: Earlier runs that count, the newest first.
RUNS_BEFORE = 10
#: Earlier runs whose size counts for egress, the newest first.
EGRESS_RUNS = 5


def cost_plan(
    store: FileStore, job: Job, target: Target, budget: Budget, steps_range: str | None = None,
    builder: Target | None = None, where: Literal["host", "controller"] = "host",
) -> CostPlan:  # fmt: skip
    """Returns the cost plan of ``job`` on ``target``, and of its local steps on ``builder``; asks no machine and no
    cloud. Raises UsageError for an unknown step, ConfigError without a price or if the steps exceed the target's
    limit."""
    steps = [step for step in slice_steps(job.steps, steps_range) if step.where == where]
    if not steps:
        raise UsageError(f"no step of '{job.job}' runs on the machine", hint=f"fcctl jobs show {job.job}")
    wanted = {step.id for step in steps}
    return plan_of_steps(
        job.job,
        target,
        budget,
        [(step.activity, step.spec()) for step in steps],
        max_minutes=job.budget.minutes if where == "host" else None,
        job_cap_usd=job.budget.usd,
        past=list(_past(store, job.job, target.name, wanted)),
        egress_usd=known_egress_usd(store, job.job),
        builder=cost_plan(store, job, builder, budget, steps_range, where="controller") if builder else None,
    )


def _past(store: FileStore, job: str, target: str, steps: set[str]) -> Iterator[Past]:
    """What runs of these steps took that passed; a run of other steps says nothing about these."""
    for row in store.rows(limit=RUNS_BEFORE, job=job, target=target, status="passed"):
        record = store.get(row.run_id)
        if {step.id for step in record.steps} >= steps and record.cost.breakdown:
            yield {line.activity: line.seconds for line in record.cost.breakdown}


def known_egress_usd(store: FileStore, job: str) -> float:
    """Dollars for fetching as much as the largest of the last runs of ``job`` left here; 0 where none is known."""
    largest = 0
    for row in store.rows(limit=EGRESS_RUNS, job=job):
        with suppress(FcctlError, OSError):  # just pruned
            largest = max(largest, store.size(row.run_id))
    return largest / 1024**3 * EGRESS_USD_PER_GIB


_SLIGHT_USD = 1e-6


def with_own_rates(services: Services, saved: SavedPlan, budget: Budget, accepted: AcceptedPrices) -> SavedPlan:
    """Returns ``saved`` with the current price of its machine, which is off and will be started. Raises as
    :func:`with_own_price`."""
    if not isinstance(saved.target, CloudTarget):
        return saved
    own = with_own_price(services, saved.target, budget, accepted, planned_usd=saved.worst_machine_rate)
    return saved.model_copy(update=hourly_plan(saved.target, own).model_dump())


def with_own_price(
    services: Services, target: Target, budget: Budget, accepted: AcceptedPrices, planned_usd: float | None = None
) -> Budget:
    """Returns ``budget`` with the machine that the cloud shows for ``target``; one known to be on is priced as
    remembered. ``planned_usd`` is the planned price per hour of a machine that is started again. Raises BudgetError if
    it costs more than planned and that was not accepted, ConfigError without a price or with list prices over a year
    old."""
    if not isinstance(target, CloudTarget):
        return budget
    found = _remembered(services, target) if planned_usd is None and not accepted.own else ()
    found = found or _shown(services, target, must=accepted.own)
    if found and not accepted.own:
        _refuse_if_dearer(target, budget, found, planned_usd or 0.0)
    own = budget.with_seen(target, found)
    age = old_prices(target, own, services.clock.now(), accepted=accepted.old)
    for line in [*_remarks(target, own), *([age] if age is not None else [])]:
        services.observer.note(line)
    return own


def as_last_seen(services: Services, target: Target, budget: Budget) -> Budget:
    """Returns ``budget`` with the target's machine as remembered here; asks no cloud."""
    if not isinstance(target, CloudTarget):
        return budget
    known = services.book.known(target.project, target.instance)
    return budget.with_seen(target, [known.hardware]) if known is not None and known.hardware is not None else budget


def _remembered(services: Services, target: CloudTarget) -> tuple[Hardware, ...]:
    """The machine, if this computer knows that it is on."""
    known = services.book.known(target.project, target.instance)
    if known is None or known.hardware is None or known.deadline is None or known.deadline < services.clock.now():
        return ()
    return (known.hardware,)


def _shown(services: Services, target: CloudTarget, *, must: bool) -> tuple[Hardware, ...]:
    """All machines of the target's name, as the cloud shows them; if it does not answer, as they were seen last."""
    try:
        cloud = services.clouds.open(target)
        return tuple(with_disk_types(cloud, machine).hardware for machine in find_machines(cloud, target))
    except FcctlError as error:
        if must:
            raise
        last = as_last_seen(services, target, Budget()).seen(target)
        how = "as this computer last saw it" if last else f"as [targets.{target.name}] describes it"
        services.observer.note(f"the price of {target.instance} is computed {how}: {error.message}")
        return last


def _refuse_if_dearer(target: CloudTarget, budget: Budget, found: tuple[Hardware, ...], planned_usd: float) -> None:
    named = machine_choices(target, budget)[0]
    planned = max(planned_usd, hourly_plan(target, budget).worst_machine_rate)
    price, dearest = max(((machine_price(one, budget, target).usd, one) for one in found), key=lambda pair: pair[0])
    if price <= planned + _SLIGHT_USD:
        return
    raise BudgetError(
        f"{target.instance} in {dearest.zone} costs more than [targets.{target.name}] allows: it is a {dearest.text}"
        f" at ${price:.2f} an hour; configured is a {named.text} at ${planned:.2f} at most",
        cause="the cloud bills the existing machine, not the configured one",
        hint="add --accept-price to compute with its price, within the caps; or set machine_type, accelerators and"
        f" provisioning of [targets.{target.name}] to those of this machine",
    )


def _remarks(target: CloudTarget, budget: Budget) -> Iterator[str]:
    """What is not simply the list's price of what the target names."""
    named = {(one.machine_type, one.spot) for one in machine_choices(target, budget.with_seen(target, ()))}
    for one in budget.seen(target):
        price, listed = machine_price(one, budget, target).machine, list_price(one, budget.prices)
        dearer = listed is not None and listed.usd > price.usd + _SLIGHT_USD
        if listed is not None and dearer and (one.machine_type, one.spot) not in named:
            yield (
                f"{target.instance} is a {one.text} with a list price of ${listed.usd:.2f} an hour; fcctl uses"
                f" ${price.usd:.2f} from {price.source}"
            )
    for kind in {
        kind for one in machine_choices(target, budget) for kind in machine_price(one, budget, target).guessed
    }:
        yield (
            f"no price is known for a {kind} disk, so fcctl uses the most expensive disk price; to set it:"
            f" disk_usd_per_gib_month of [targets.{target.name}]"
        )
