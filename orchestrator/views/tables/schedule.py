"""The tables of ``fcctl schedule ls``."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.views.tables.cells import print_trimmed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

    from orchestrator.schedules.due import Firing
    from orchestrator.schedules.fire import ScheduleStatus

_COLOURS = {
    "passed": "green", "finished": "green", "started": "cyan", "failed": "red", "error": "red", "refused": "yellow",
    "missed": "yellow", "overlap": "yellow", "interrupted": "red", "over_budget": "red", "idle": "yellow",
    "incomplete": "magenta",
}  # fmt: skip


def local(epoch: float) -> str:
    """A time as this computer's clock shows it: ``Mon 23 Nov 02:00``."""
    return datetime.fromtimestamp(epoch).astimezone().strftime("%a %d %b %H:%M")


def print_standings(standings: Sequence[ScheduleStatus], console: Console) -> None:
    """One line a schedule: when it is due next, what the month has cost, how the last one went."""
    from rich.table import Table

    if not standings:
        console.print('no schedules; fcctl schedule add nightly --cron "0 2 * * 1-5" --job JOB --on TARGET --budget 2')
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("SCHEDULE", "JOB", "ON", "NEXT (LOCAL)", "THIS MONTH", "LAST"):
        table.add_column(title, overflow="fold")
    for s in standings:
        following = ", ".join(local(t.timestamp()) for t in s.next[:2]) or ("never" if s.schedule.enabled else "off")
        table.add_row(s.name, s.schedule.job, clean(s.schedule.on, 60), following, _month(s), _last(s))
    print_trimmed(console, table, console.width)


def _month(s: ScheduleStatus) -> str:
    cap = f" of ${s.schedule.per_month_usd:.2f}" if s.schedule.per_month_usd is not None else ""
    return f"${s.spent_this_month_usd:.2f}{cap}"


def _last(s: ScheduleStatus) -> Text:
    from rich.text import Text

    if s.running:
        return Text("at work", "cyan")
    if s.last is None:
        return Text("-")
    word = s.last.status or s.last.outcome
    return Text(f"{word} ({local(s.last.due)})", _COLOURS.get(word, ""))


def print_firings(firings: Sequence[tuple[str, Firing]], console: Console) -> None:
    """What became of each time, newest first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("DUE (LOCAL)", "SCHEDULE", "OUTCOME", "RUN", "USD", "WHY"):
        table.add_column(title, overflow="fold")
    for name, f in firings:
        word = f.status or f.outcome
        usd = "-" if f.usd is None else f"{f.usd:.4f}"
        reason = Text(clean(f.reason or "", 300))
        table.add_row(local(f.due), name, Text(word, _COLOURS.get(word, "")), clean(f.run_id or "-", 63), usd, reason)
    print_trimmed(console, table, console.width)


def standing_json(s: ScheduleStatus) -> dict[str, Any]:
    """Plain JSON of one schedule; times with their offsets."""
    return {
        "name": s.name,
        **s.schedule.model_dump(mode="json"),
        "next": [t.isoformat() for t in s.next],
        "running": s.running,
        "spent_this_month_usd": s.spent_this_month_usd,
        "last": s.last.model_dump(mode="json") if s.last else None,
    }
