"""``fcctl cost budget``: the caps, what is reserved and for what, and where the month will end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.base.clock import iso, utc_minute
from orchestrator.base.sanitize import clean
from orchestrator.money.caps import dollars
from orchestrator.runs.cost.open_reservations import OpenReservation
from orchestrator.runs.cost.outlook import Forecast, Outlook
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import print_trimmed, table, text
from orchestrator.views.tables.ledger import print_remarks, remarks_json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def budget_json(found: Outlook) -> dict[str, Any]:
    """All of it, for programs and for the dashboard."""
    return {
        "timezone": found.budget.timezone,
        "caps": [
            {"cap": row.name, "usd": row.cap, "spent_usd": row.spent, "standing_usd": row.standing,
             "reserved_usd": row.reserved, "free_usd": row.free}
            for row in found.caps
        ],
        "reserved_usd": found.reserved,
        "reservations": [_reservation_json(one) for one in found.reservations],
        "forecast": _forecast_json(found.forecast),
        "remarks": remarks_json(found.remarks),
        "damaged_lines": found.damaged,
    }  # fmt: skip


def _reservation_json(one: OpenReservation) -> dict[str, Any]:
    made = one.reservation
    return {
        "reservation_id": made.reservation_id, "owner": made.owner, "owner_id": made.owner_id, "target": made.target,
        "instance": made.instance or None, "usd": made.usd, "reserved_usd": one.usd, "so_far_usd": one.so_far_usd,
        "usd_per_hour": one.usd_per_hour, "since": iso(made.at), "until": iso(one.until), "what": one.ends,
        "ends": one.text, "command": one.command, "results": made.results,
    }  # fmt: skip


def _forecast_json(forecast: Forecast) -> dict[str, Any]:
    return {
        "until": iso(forecast.until), "days_left": forecast.days_left, "spent_usd": forecast.spent,
        "reserved_usd": forecast.reserved, "machines_usd": forecast.machines,
        "machines_usd_per_day": forecast.machines_per_day, "standing_usd": forecast.standing,
        "standing_usd_per_day": forecast.standing_per_day, "total_usd": forecast.total,
    }  # fmt: skip


def print_budget(found: Outlook, console: Console) -> None:
    """Fits 80 columns, but for the names of runs and folders that are longer."""
    for piece in (_caps(found), *_reservations(found), _forecast(found)):
        print_trimmed(console, piece, console.width)
    days = f"days and months are those of {found.budget.timezone} ([budget] timezone)"
    print_trimmed(console, text(days, "dim"), console.width)
    print_remarks(found.remarks, console)


def _caps(found: Outlook) -> RenderableType:
    made = table("CAP", right=("USD", "SPENT", "OF IT STANDING", "RESERVED", "FREE"))
    for row in found.caps:
        cap = "none" if row.cap is None else f"{row.cap:.2f}"
        made.add_row(row.name, cap, _usd(row.spent), _some(row.standing), _some(row.reserved), _usd(row.free))
    return made


def _usd(usd: float | None) -> str:
    return "-" if usd is None else f"{usd:.2f}"


def _some(usd: float | None) -> str:
    return _usd(usd or None)


def _reservations(found: Outlook) -> Iterator[RenderableType]:
    if found.reservations:
        yield text("\nreserved", "bold")
    for one in found.reservations:
        made = one.reservation
        so_far = "?" if one.so_far_usd is None else f"${one.so_far_usd:.2f}"
        age = duration(max(0.0, found.now - made.at))
        since = f"since {utc_minute(made.at, found.now)} ({age} ago)"
        yield text(f"${one.usd:.2f} for {clean(made.target, 40)}, {so_far} so far, {since}")
        yield _unbroken(f"  {clean(one.ends, 120)}")
        yield _unbroken(f"  {clean(one.command, 300)}", "cyan")


def _unbroken(words: str, style: str = "") -> RenderableType:
    """A command to be copied is never cut."""
    made = text(words, style)
    made.no_wrap = True
    return made


def _forecast(found: Outlook) -> RenderableType:
    forecast, zone = found.forecast, found.budget.zone
    last = datetime.fromtimestamp(forecast.until - 1, zone)
    days = f"{forecast.days_left:.1f} days"
    made = table(f"\nBY THE END OF {last:%d %b %Y}".upper(), right=("\nUSD",))
    made.add_column("")
    made.add_row("spent this month", f"{forecast.spent:.2f}", "")
    made.add_row("reserved", f"{forecast.reserved:.2f}", "")
    made.add_row(
        "machines", f"{forecast.machines:.2f}", f"{dollars(forecast.machines_per_day)} a day so far, {days} more"
    )
    standing = f"{dollars(forecast.standing_per_day)} a day now"
    made.add_row("disks, snapshots, addresses", f"{forecast.standing:.2f}", standing)
    cap = found.budget.per_month_usd
    of_cap = "" if cap is None else f"of {cap:.2f}" if forecast.total <= cap else f"more than the {cap:.2f} of the cap"
    made.add_row(text("all", "bold"), text(f"{forecast.total:.2f}", "bold"), of_cap)
    return made
