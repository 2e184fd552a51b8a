"""Dollars on the terminal: what a run cost, the plan of one, and the price table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from orchestrator.base.sanitize import clean
from orchestrator.money.estimate import CostPlan
from orchestrator.money.prices.table import PriceTable
from orchestrator.results.records import CostRecord
from orchestrator.views.figures import duration, plural, usd
from orchestrator.views.table import Piece, Table, show

EMULATED = "emulated: what the real machine would have cost; nothing was spent"
_ROWS = 30
_DISKS = ("pd-balanced", "pd-ssd", "pd-standard")
_MODELS = {"on_demand": "on demand", "spot": "spot"}


def cost_section(cost: CostRecord) -> Iterator[RenderableType]:
    """Seconds and dollars of each activity of a run, and their sum."""
    table = Table("activity", right=("seconds", "dollars"))
    for line in cost.breakdown[:_ROWS]:
        table.add_row(clean(line.activity, 40), f"{line.seconds:.1f}", usd(line.usd))
    table.add_row(Text("billed", "bold"), f"{cost.billed_s:.1f}", usd(cost.usd))
    yield table
    yield Text(f"{duration(cost.billed_s)} at {usd(cost.usd_per_hour)} an hour", "dim")


def print_cost_plan(plan: CostPlan, console: Console, *, zones: bool) -> None:
    """The plan by activity; with ``zones`` also what it costs in each zone and price model."""
    first = plan.choices[0]
    head = f"{plan.job} on {plan.target}" + (" (emulated: nobody pays for it)" if plan.emulated else "")
    where = f"{first.zone}, {_MODELS.get(first.model or '', '')}, " if first.zone else ""
    dated = f" of {first.price.date}" if first.price.date else ""
    how = {"list": "list price", "derived": "derived from the list prices"}.get(first.price.how, first.price.source)
    pieces: list[Piece] = [(head, "bold"), f"{where}{usd(first.price.usd)} an hour ({how}{dated})", _activities(plan)]
    if zones and first.zone:
        pieces += ["", _choices(plan)]
    show(console, *pieces, "", *_remarks(plan))


def _activities(plan: CostPlan) -> Table:
    rate = plan.choices[0].price.usd / 3600
    table = Table("activity", right=("expected", "", "at worst", " "))
    for line in plan.lines:
        expected = ("-", "") if line.expected_s is None else (duration(line.expected_s), usd(line.expected_s * rate))
        sign = "-" if line.worst_s < 0 else ""
        worst = (sign + duration(abs(line.worst_s)), usd(line.worst_s * rate)) if line.worst_s else ("", "")
        table.add_row(line.activity, *expected, *worst)
    known = [line.expected_s for line in plan.lines if line.expected_s is not None]
    worst_s = sum(line.worst_s for line in plan.lines)
    expected = (duration(sum(known)), usd(plan.expected_usd)) if known else ("-", "")
    table.add_row(Text("total", "bold"), *expected, duration(worst_s), usd(worst_s * rate))
    return table


def _choices(plan: CostPlan) -> Table:
    table = Table("zone", "price model", right=("an hour", "expected", "at worst"))
    for c in plan.choices:
        dollars = (usd(c.price.usd), usd(c.expected_usd), usd(c.worst_usd))
        table.add_row(c.zone or "", _MODELS.get(c.model or "", ""), *dollars)
    return table


def _remarks(plan: CostPlan) -> Iterator[str]:
    if plan.fence_s is not None:
        yield f"The cloud stops the machine after {duration(plan.fence_s)}, whatever happens to the run or to fcctl."
        yield f"It costs {usd(plan.worst_usd)} at most: where it is dearest, and with the fence's lateness."
        rest = sum(line.worst_s for line in plan.lines) / 3600 * plan.choices[0].rest_usd_per_hour
        fetching = f", and {usd(plan.egress_usd)} for fetching as much as earlier runs left" if plan.egress_usd else ""
        yield f"Of that, {usd(rest)} is for its disks and its address while it is on{fetching}."
        how = "as it was seen last" if plan.seen else f"as [targets.{plan.target}] describes it"
        yield f"The machine is priced {how}; fcctl run --dry-run asks the cloud."
    median = f"the median of {plural(plan.runs_before, 'run')} of it here that passed"
    yield f"Expected: {median if plan.runs_before else 'unknown, no run of it here has passed'}."
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


def print_prices(prices: PriceTable, regions: Iterable[str], console: Console) -> None:
    """Machines, disks, snapshots and addresses of some regions."""
    machines = Table("region", "machine", right=("on demand, hour", "spot, hour", ""))
    others = Table("region", right=(*_DISKS, "snapshot, GiB-month", "unused address, hour"))
    for region in regions:
        for name, on_demand, spot in prices.machines(region):
            machines.add_row(region, name, usd(on_demand.usd), usd(spot.usd), on_demand.how)
        listed = [prices.disk(kind, region) for kind in _DISKS]
        listed += [prices.snapshot(region), prices.unused_address(region)]
        others.add_row(region, *(f"${price.usd:g}" if price else "-" for price in listed))
    head = f"List prices of {prices.date}, US dollars, without tax and discounts"
    foot = "A static address that a machine has, running or stopped: $0.005 an hour in every region."
    show(console, (head, "bold"), (f"source: {prices.source}", "dim"), machines, "", others, foot)
