"""Dollars on the terminal: the plan of a run, and the price table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import table, text
from orchestrator.views.tables.cost_section import usd

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from orchestrator.money.estimate import CostPlan
    from orchestrator.money.prices.table import PriceTable


def print_cost_plan(plan: CostPlan, console: Console, *, zones: bool) -> None:
    """The plan by activity; with ``zones`` also what it costs in each zone and price model."""
    first = plan.choices[0]
    head = f"{plan.job} on {plan.target}" + (" (emulated: nobody pays for it)" if plan.emulated else "")
    console.print(text(head, "bold"))
    where = f"{first.zone}, {_model(first.model)}, " if first.zone else ""
    dated = f" of {first.price.date}" if first.price.date else ""
    said = {"list": "list price", "derived": "derived from the list prices"}.get(first.price.how, first.price.source)
    console.print(text(f"{where}{usd(first.price.usd)} an hour ({said}{dated})"))
    console.print(_activities(plan))
    if zones and first.zone:
        console.print()
        console.print(_choices(plan))
    console.print()
    for line in _remarks(plan):
        console.print(text(line))


def _activities(plan: CostPlan) -> object:
    rate = plan.choices[0].price.usd / 3600
    made = table("activity", right=("expected", "", "at worst", " "))
    for line in plan.lines:
        known = line.expected_s is not None
        made.add_row(
            line.activity,
            duration(line.expected_s or 0.0) if known else "-",
            usd((line.expected_s or 0.0) * rate) if known else "",
            ("-" if line.worst_s < 0 else "") + duration(abs(line.worst_s)) if line.worst_s else "",
            usd(line.worst_s * rate) if line.worst_s else "",
        )
    expected = [line.expected_s for line in plan.lines if line.expected_s is not None]
    worst = sum(line.worst_s for line in plan.lines)
    made.add_row(
        text("total", "bold"),
        duration(sum(expected)) if expected else "-",
        usd(plan.expected_usd) if expected else "",
        duration(worst),
        usd(worst * rate),
    )
    return made


def _choices(plan: CostPlan) -> object:
    made = table("zone", "price model", right=("an hour", "expected", "at worst"))
    for choice in plan.choices:
        made.add_row(
            choice.zone or "",
            _model(choice.model),
            usd(choice.price.usd),
            usd(choice.expected_usd),
            usd(choice.worst_usd),
        )
    return made


def _remarks(plan: CostPlan) -> Iterable[str]:
    if plan.fence_s is not None:
        yield f"The cloud stops the machine after {duration(plan.fence_s)}, whatever happens to the run or to fcctl."
        yield f"It costs {usd(plan.worst_usd)} at most: where it is dearest, and with the fence's lateness."
        rest = sum(line.worst_s for line in plan.lines) / 3600 * plan.choices[0].rest_usd_per_hour
        fetching = f", and {usd(plan.egress_usd)} for fetching as much as earlier runs left" if plan.egress_usd else ""
        yield f"Of that, {usd(rest)} is for its disks and its address while it is on{fetching}."
        how = "as it was seen last" if plan.seen else f"as [targets.{plan.target}] describes it"
        yield f"The machine is priced {how}; fcctl run --dry-run asks the cloud."
    runs = f"{plan.runs_before} run{'s' if plan.runs_before > 1 else ''} of it here that passed"
    yield f"Expected: the median of {runs}." if plan.runs_before else "Expected: unknown, no run of it here has passed."
    if plan.spot is not None:
        yield f"In {plan.spot.zone}: {plan.spot.text}."
    for note in plan.capacity:
        yield f"{note[:1].upper()}{note[1:]}."
    for one in plan.standing:
        if one.usd_per_month is not None:
            also = "Stopped, it still costs" if one.certain else "and, if it has one,"
            yield f"{also} {usd(one.usd_per_month)} a month for {one.what}"
    for cap in plan.refused_by:
        yield f"REFUSED as it stands: it could cost more than {usd(plan.caps[cap])}, {cap}."


def _model(model: str | None) -> str:
    return {"on_demand": "on demand", "spot": "spot"}.get(model or "", "")


def print_prices(prices: PriceTable, regions: Iterable[str], console: Console) -> None:
    """Machines, disks, snapshots and addresses of some regions."""
    console.print(text(f"List prices of {prices.date}, US dollars, without tax and discounts", "bold"))
    console.print(text(f"source: {prices.source}", "dim"))
    machines = table("region", "machine", right=("on demand, hour", "spot, hour", ""))
    others = table(
        "region", right=("pd-balanced", "pd-ssd", "pd-standard", "snapshot, GiB-month", "unused address, hour")
    )
    for region in regions:
        for name, on_demand, spot in prices.machines(region):
            machines.add_row(region, name, usd(on_demand.usd), usd(spot.usd), on_demand.how)
        disks = [prices.disk(kind, region) for kind in ("pd-balanced", "pd-ssd", "pd-standard")]
        found = [*disks, prices.snapshot(region), prices.unused_address(region)]
        others.add_row(region, *(f"${price.usd:g}" if price else "-" for price in found))
    console.print(machines)
    console.print()
    console.print(others)
    console.print(text("A static address that a machine has, running or stopped: $0.005 an hour in every region."))
