"""Costs before anything is started: with what earlier runs of the job took, and the price of the target's machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from orchestrator.base.errors import BudgetError, FcctlError, UsageError
from orchestrator.machines.cloud import Hardware
from orchestrator.machines.provision.find import find_machines, with_disk_types
from orchestrator.machines.targets import AcceptedPrices, CloudTarget, Target
from orchestrator.money import estimate as costs
from orchestrator.money.caps import EGRESS_USD_PER_GIB, Budget
from orchestrator.money.estimate import CostPlan, Past
from orchestrator.money.prices.machine import list_price, machine_price
from orchestrator.money.prices.rates import hourly_plan, machine_choices, old_prices
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import slice_steps
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

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
    return costs.cost_plan(
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
        f" provisioning of [targets.{target.name}] to what it is",
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
