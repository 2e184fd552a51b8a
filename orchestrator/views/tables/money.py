"""Money in the terminal: the ledger, a run's cost, cost plans, list prices, caps and forecast."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.errors import plural
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean, csv_cell
from orchestrator.money.caps import dollars
from orchestrator.money.ledger import Line as LedgerLine
from orchestrator.money.prices.table import PriceTable
from orchestrator.money.totals import LedgerNote, Total
from orchestrator.results.records import CostRecord
from orchestrator.runs.cost.estimate import CostPlan
from orchestrator.runs.cost.outlook import Outlook
from orchestrator.runs.cost.owners import OpenReservation
from orchestrator.views.blocks import Bar, Bars, Cell, Grid, Line
from orchestrator.views.blocks import Text as Said
from orchestrator.views.figures import duration, price, usd
from orchestrator.views.table import Piece, show, show_blocks, unbroken

_COLUMNS = "start seconds usd activity target run_id job machine emulated what sure why"
_SURE = {"estimated": "an estimate", "upper_bound": "at most"}


def print_totals(
    totals: Sequence[Total], by: str, timezone: str, console: Console, notes: Sequence[LedgerNote] = ()
) -> None:
    """One line a group, and the sum; then a note for each amount that the cloud did not report exactly."""
    if not totals:
        show(console, "no costs yet")
        return
    show_blocks(console, [totals_grid(totals, by, timezone)])
    print_notes(notes, console)


#: Groups in the order of time, all others by dollars.
TIMES = ("day", "week", "month")


def totals_grid(totals: Sequence[Total], by: str, timezone: str) -> Grid:
    """One line a group, and the sum."""
    first = f"{by} ({timezone})" if by in TIMES else by
    rows: list[Line] = [
        (clean(t.group, 80), duration(t.seconds) if t.seconds else "-", str(t.runs), f"{t.usd:.4f}",
         _part(t.idle_usd), _part(t.standing_usd))
        for t in totals
    ]  # fmt: skip
    seconds, spent, idle, standing = (
        sum(getattr(t, name) for t in totals) for name in ("seconds", "usd", "idle_usd", "standing_usd")
    )
    whole = ("total", duration(seconds), "", f"{spent:.4f}", _part(idle), _part(standing))
    rows.append(tuple(Cell(text, kind="bold") for text in whole))
    header = (first, "time", "runs", "dollars", "idle", "storage")
    return Grid(header, tuple(rows), f"Billed time and dollars by {by}", numbers=tuple(range(1, 6)))


def totals_bars(totals: Sequence[Total], by: str) -> Bars:
    """Dollars of each group."""
    shown = totals[-_ROWS:] if by in TIMES else totals[:_ROWS]
    bars = (Bar(clean(t.group, 40), t.usd, f"{usd(t.usd)}, {plural(t.runs, 'run')}") for t in shown)
    return Bars(f"Spent by {by}", tuple(bars))


def _part(usd: float) -> str:
    return f"{usd:.4f}" if usd else "-"


def print_notes(notes: Sequence[LedgerNote], console: Console) -> None:
    """One line for each amount that the cloud did not report exactly."""
    for note in notes:
        show(console, (note_text(note), "yellow" if note.sure == "unpriced" else "dim"))


def note_text(note: LedgerNote) -> str:
    """``at most, $0.1234: RUN: why``."""
    head = "not in the total" if note.sure == "unpriced" else f"{_SURE[note.sure]}, ${note.usd:.4f}"
    return clean(f"{head}: {note.what}: {note.why}", 400)


def notes_json(notes: Sequence[LedgerNote]) -> list[dict[str, object]]:
    return [{**vars(note), "usd": round(note.usd, 6)} for note in notes]


def as_csv(lines: Sequence[LedgerLine]) -> str:
    """Every line, one a row, with a header; times ISO 8601 in UTC."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS.split())
    for line in lines:
        row = {
            **pick(line, _COLUMNS), "start": iso(line.start), "seconds": f"{line.seconds:.3f}",
            "usd": f"{line.usd:.6f}", "emulated": str(line.emulated).lower(),
        }  # fmt: skip
        writer.writerow([csv_cell("" if cell is None else str(cell)) for cell in row.values()])
    return out.getvalue()


def as_json(lines: Sequence[LedgerLine]) -> list[dict[str, object]]:
    return [{**pick(line, _COLUMNS), "start": iso(line.start)} for line in lines]


EMULATED = "emulated: what the real machine would have cost; nothing was spent"
_ROWS = 30
#: From this share of a cap on, its bar is red.
NEARLY_SPENT = 0.9
_DISKS = ("pd-balanced", "pd-ssd", "pd-standard")
_MODELS = {"on_demand": "on demand", "spot": "spot"}


def cost_section(cost: CostRecord) -> tuple[Grid, Said]:
    """Seconds and dollars of each activity of a run, and their sum."""
    rows: list[Line] = [(clean(one.activity, 40), f"{one.seconds:.1f}", usd(one.usd)) for one in cost.breakdown[:_ROWS]]
    rows.append((Cell("billed", kind="bold"), f"{cost.billed_s:.1f}", usd(cost.usd)))
    rate = f"{duration(cost.billed_s)} at {price(cost.usd_per_hour)} an hour"
    return Grid(("activity", "seconds", "dollars"), tuple(rows), numbers=(1, 2)), Said(rate, style="soft")


def print_cost_plan(plan: CostPlan, console: Console, *, zones: bool) -> None:
    """The plan by activity; with ``zones`` also what it costs in each zone and price model."""
    first = plan.choices[0]
    head = f"{plan.job} on {plan.target}" + (" (emulated: no cost)" if plan.emulated else "")
    where = f"{first.zone}, {_MODELS.get(first.model or '', '')}, " if first.zone else ""
    dated = f" of {first.price.date}" if first.price.date else ""
    how = {"list": "list price", "derived": "derived from the list prices"}.get(first.price.how, first.price.source)
    rate = f"{where}{price(first.price.usd)} an hour ({how}{dated})"
    show(console, (head, "bold"), rate if first.price.usd else "no price: usd_per_hour of the target sets one")
    show_blocks(console, [_activities(plan)])
    if zones and first.zone:
        rows = tuple((c.zone or "", _MODELS.get(c.model or "", ""), price(c.price.usd), usd(c.expected_usd),
                      usd(c.worst_usd)) for c in plan.choices)  # fmt: skip
        show(console, "")
        show_blocks(
            console, [Grid(("zone", "price model", "per hour", "expected", "worst case"), rows, numbers=(2, 3, 4))]
        )
    show(console, "", *_remarks(plan))


def _activities(plan: CostPlan) -> Grid:
    rate, rows = plan.choices[0].price.usd / 3600, list[Line]()

    def dollars(seconds: float) -> str:
        return usd(seconds * rate) if rate else ""

    for line in plan.lines:
        expected = ("-", "") if line.expected_s is None else (duration(line.expected_s), dollars(line.expected_s))
        sign = "-" if line.worst_s < 0 else ""
        worst = (sign + duration(abs(line.worst_s)), dollars(line.worst_s)) if line.worst_s else ("", "")
        rows.append((line.activity, *expected, *worst))
    known = [line.expected_s for line in plan.lines if line.expected_s is not None]
    worst_s = sum(line.worst_s for line in plan.lines)
    expected = (duration(sum(known)), usd(plan.expected_usd) if rate else "") if known else ("-", "")
    rows.append((Cell("total", kind="bold"), *expected, duration(worst_s), dollars(worst_s)))
    return Grid(("activity", "expected", "", "worst case", ""), tuple(rows), numbers=(1, 2, 3, 4))


def _remarks(plan: CostPlan) -> Iterator[str]:
    if plan.fence_s is not None:
        yield f"The cloud stops the machine after {duration(plan.fence_s)}, even if the run or fcctl fails."
        yield f"It costs at most {usd(plan.worst_usd)}: in the most expensive zone, with the late-stop allowance."
        rest = sum(line.worst_s for line in plan.lines) / 3600 * plan.choices[0].rest_usd_per_hour
        shown = plan.egress_usd >= 0.00005  # less is $0.0000
        download = f", and {usd(plan.egress_usd)} for downloading results as large as earlier ones" if shown else ""
        yield f"Of that, {usd(rest)} is for its disks and its address while the machine runs{download}."
        if plan.builder is not None:
            rate, built = price(plan.builder.choices[0].price.usd), usd(plan.builder.worst_usd)
            yield f"Of that, {built} is for {plan.builder.target}, at {rate} an hour: this computer has no nvcc."
        how = "as last seen" if plan.seen else f"as [targets.{plan.target}] describes it"
        yield f"The price is for the machine {how}; to ask the cloud: fcctl run --dry-run."
    median = f"the median of {plural(plan.runs_before, 'passed run')} in this workspace"
    unknown = f"unknown, no run of this job has passed on {plan.target} in this workspace"
    yield f"Expected: {median if plan.runs_before else unknown}."
    if plan.spot is not None:
        yield f"In {plan.spot.zone}: {plan.spot.text}."
    for one in plan.standing:
        if one.usd_per_month is not None:
            also = "A stopped machine still costs" if one.certain else "If the machine has one, add"
            yield f"{also} {usd(one.usd_per_month)} a month for {one.what}"
    for cap in plan.refused_by:
        yield f"REFUSED: the run could cost more than {cap} of {usd(plan.caps[cap])}."


def print_prices(prices: PriceTable, regions: Iterable[str], console: Console) -> None:
    """Machines, disks, snapshots and addresses of some regions."""
    machines, others = list[Line](), list[Line]()
    for region in regions:
        for name, on_demand, spot in prices.machines(region):
            machines.append((region, name, price(on_demand.usd), price(spot.usd), on_demand.how))
        listed = [prices.disk(kind, region) for kind in _DISKS]
        listed += [prices.snapshot(region), prices.unused_address(region)]
        others.append((region, *(f"${one.usd:g}" if one else "-" for one in listed)))
    head = f"List prices of {prices.date}, US dollars, without tax and discounts"
    foot = "A static address that a machine has, running or stopped: $0.005 an hour in every region."
    show(console, (head, "bold"), (f"source: {prices.source}", "dim"))
    header = ("region", *_DISKS, "snapshot, GiB-month", "unused address, hour")
    show_blocks(console, [
        Grid(("region", "machine", "on demand, hour", "spot, hour", ""), tuple(machines), numbers=(2, 3)),
        Said(""), Grid(header, tuple(others), numbers=tuple(range(1, len(header)))), Said(foot),
    ])  # fmt: skip


def budget_json(outlook: Outlook) -> dict[str, Any]:
    """All of it, for programs and for the dashboard."""
    forecast = outlook.forecast
    return {
        "timezone": outlook.budget.timezone,
        "caps": [
            {"cap": row.name, "usd": row.cap, "spent_usd": row.spent, "standing_usd": row.standing,
             "reserved_usd": row.reserved, "free_usd": row.free}
            for row in outlook.caps
        ],
        "reserved_usd": outlook.reserved,
        "reservations": [_reservation_json(one) for one in outlook.reservations],
        "forecast": {
            "until": iso(forecast.until), "days_left": forecast.days_left, "spent_usd": forecast.spent,
            "reserved_usd": forecast.reserved, "machines_usd": forecast.machines,
            "machines_usd_per_day": forecast.machines_per_day, "standing_usd": forecast.standing,
            "standing_usd_per_day": forecast.standing_per_day, "total_usd": forecast.total,
        },
        "remarks": notes_json(outlook.remarks),
        "damaged_lines": outlook.damaged,
    }  # fmt: skip


def _reservation_json(one: OpenReservation) -> dict[str, Any]:
    made = one.reservation
    return {
        **pick(made, "reservation_id owner owner_id target usd results"),
        **pick(one, "so_far_usd usd_per_hour command"),
        "instance": made.instance or None, "reserved_usd": one.usd, "since": iso(made.at), "until": iso(one.until),
        "what": one.ends, "ends": one.text,
    }  # fmt: skip


def print_budget(outlook: Outlook, console: Console) -> None:
    """Fits 80 columns, but for the names of runs and folders that are longer."""
    show_blocks(console, [caps_grid(outlook)])
    show(console, *_reservations(outlook), "")
    show_blocks(console, [forecast_grid(outlook), Said(caps_grid(outlook).caption, style="soft")])
    print_notes(outlook.remarks, console)


def caps_grid(outlook: Outlook) -> Grid:
    header = ("cap", "limit", "spent", "storage", "reserved", "free")
    rows = tuple(
        (row.name, "none" if row.cap is None else usd(row.cap),
         *(usd(one) for one in (row.spent, row.standing or None, row.reserved or None, row.free)))
        for row in outlook.caps
    )  # fmt: skip
    caption = (
        f"days and months in {outlook.budget.timezone} ([budget] timezone); each computer counts only its own costs"
    )
    return Grid(header, rows, caption, numbers=tuple(range(1, 6)))


def caps_bars(outlook: Outlook, usd_per_hour: float = 0.0) -> Iterator[Bars]:
    """Spent of each cap that is counted, and the time that is left of it at ``usd_per_hour``."""
    bars = []
    for cap in outlook.caps:
        if cap.spent is not None and (cap.cap or cap.spent):
            left = f", {usd(cap.reserved)} reserved" if cap.reserved else ""
            left += f", {usd(cap.free)} left" if cap.cap else ", no cap"
            if cap.free and usd_per_hour:
                left += f" ({duration(cap.free / usd_per_hour * 3600)} at {usd(usd_per_hour)} an hour)"
            share = min(1.0, cap.spent / cap.cap) if cap.cap else 0.0
            text = f"{usd(cap.spent)}{f' of {usd(cap.cap)}' if cap.cap else ''}{left}"
            bars.append(Bar(cap.name, share, text, "bad" if share > NEARLY_SPENT else "plain"))
    if bars:
        yield Bars("Spent, as a share of each cap", tuple(bars), most=1.0)


def _reservations(outlook: Outlook) -> Iterator[Piece]:
    if outlook.reservations:
        yield "\nreserved", "bold"
    for one in outlook.reservations:
        at, so_far = one.reservation.at, "?" if one.so_far_usd is None else f"${one.so_far_usd:.2f}"
        age = duration(max(0.0, outlook.now - at))
        target = clean(one.reservation.target, 40)
        yield f"${one.usd:.2f} for {target}, {so_far} so far, since {utc_minute(at, outlook.now)} ({age} ago)"
        yield unbroken(f"  {clean(one.ends, 120)}")
        yield unbroken(f"  {clean(one.command, 300)}", style="cyan")


def forecast_grid(outlook: Outlook) -> Grid:
    forecast, cap = outlook.forecast, outlook.budget.per_month_usd
    last = datetime.fromtimestamp(forecast.until - 1, outlook.budget.zone)
    of_cap = "" if cap is None else f"of {usd(cap)}" if forecast.total <= cap else f"over the cap of {usd(cap)}"
    machines = f"{dollars(forecast.machines_per_day)} a day so far, {forecast.days_left:.1f} days left"
    rows = (
        ("spent this month", usd(forecast.spent), ""),
        ("reserved", usd(forecast.reserved), ""),
        ("machines", usd(forecast.machines), machines),
        ("disks, snapshots, addresses", usd(forecast.standing), f"{dollars(forecast.standing_per_day)} a day now"),
        (Cell("total", kind="bold"), Cell(usd(forecast.total), kind="bold"), of_cap),
    )
    return Grid((f"by the end of {last:%d %b %Y}", "dollars", "note"), rows, "Forecast for the month", numbers=(1,))
