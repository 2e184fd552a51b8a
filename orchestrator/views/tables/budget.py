"""``fcctl cost budget``: the caps, what is reserved and for what, and where the month will end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.fields import pick
from orchestrator.base.sanitize import clean
from orchestrator.money.caps import dollars
from orchestrator.runs.cost.open_reservations import OpenReservation
from orchestrator.runs.cost.outlook import Outlook
from orchestrator.views.figures import duration
from orchestrator.views.table import Piece, Table, show, unbroken
from orchestrator.views.tables.ledger import notes_json, print_notes


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
    caps = Table("CAP", right=("USD", "SPENT", "OF IT STANDING", "RESERVED", "FREE"))
    for row in outlook.caps:
        cap = "none" if row.cap is None else f"{row.cap:.2f}"
        caps.add_row(row.name, cap, *map(_usd, (row.spent, row.standing or None, row.reserved or None, row.free)))
    days = f"days and months are those of {outlook.budget.timezone} ([budget] timezone)"
    show(console, caps, *_reservations(outlook), _forecast(outlook), (days, "dim"))
    print_notes(outlook.remarks, console)


def _usd(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:.2f}"


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


def _forecast(outlook: Outlook) -> Table:
    forecast, cap = outlook.forecast, outlook.budget.per_month_usd
    last = datetime.fromtimestamp(forecast.until - 1, outlook.budget.zone)
    table = Table(f"\nBY THE END OF {last:%d %b %Y}".upper(), right=("\nUSD",))
    table.add_column("")
    table.add_row("spent this month", f"{forecast.spent:.2f}", "")
    table.add_row("reserved", f"{forecast.reserved:.2f}", "")
    machines = f"{dollars(forecast.machines_per_day)} a day so far, {forecast.days_left:.1f} days more"
    table.add_row("machines", f"{forecast.machines:.2f}", machines)
    standing = f"{dollars(forecast.standing_per_day)} a day now"
    table.add_row("disks, snapshots, addresses", f"{forecast.standing:.2f}", standing)
    of_cap = "" if cap is None else f"of {cap:.2f}" if forecast.total <= cap else f"more than the {cap:.2f} of the cap"
    table.add_row(Text("all", "bold"), Text(f"{forecast.total:.2f}", "bold"), of_cap)
    return table
