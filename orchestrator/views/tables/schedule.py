"""The tables of ``fcctl schedule ls``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.base.fields import pick
from orchestrator.base.sanitize import clean
from orchestrator.schedules.due import Firing
from orchestrator.schedules.fire import ScheduleStatus
from orchestrator.views.figures import local
from orchestrator.views.table import Table, show

_COLOURS = {
    "passed": "green", "finished": "green", "started": "cyan", "failed": "red", "error": "red", "refused": "yellow",
    "missed": "yellow", "overlap": "yellow", "interrupted": "red", "over_budget": "red", "idle": "yellow",
    "incomplete": "magenta",
}  # fmt: skip


def print_schedules(schedules: Sequence[ScheduleStatus], console: Console) -> None:
    """One line a schedule: when it is due next, what the month has cost, how the last one went."""
    if not schedules:
        add = 'fcctl schedule add nightly --cron "0 2 * * 1-5" --job JOB --on TARGET --budget 2'
        show(console, f"no schedules; {add}")
        return
    table = Table("SCHEDULE", "JOB", "ON", "NEXT (LOCAL)", "THIS MONTH", "LAST", header="bold")
    for s in schedules:
        due = ", ".join(local(t.timestamp()) for t in s.next[:2]) or ("never" if s.schedule.enabled else "off")
        cap = f" of ${s.schedule.per_month_usd:.2f}" if s.schedule.per_month_usd is not None else ""
        month = f"${s.spent_this_month_usd:.2f}{cap}"
        table.add_row(s.name, s.schedule.job, clean(s.schedule.on, 60), due, month, _last(s))
    show(console, table)


def _last(s: ScheduleStatus) -> Text:
    if s.running:
        return Text("running", "cyan")
    if s.last is None:
        return Text("-")
    word = s.last.status or s.last.outcome
    return Text(f"{word} ({local(s.last.due)})", _COLOURS.get(word, ""))


def print_firings(firings: Sequence[tuple[str, Firing]], console: Console) -> None:
    """What became of each time, newest first."""
    table = Table("DUE (LOCAL)", "SCHEDULE", "OUTCOME", "RUN", "USD", "WHY", header="bold")
    for name, f in firings:
        word, usd = f.status or f.outcome, "-" if f.usd is None else f"{f.usd:.4f}"
        outcome = Text(word, _COLOURS.get(word, ""))
        table.add_row(local(f.due), name, outcome, clean(f.run_id or "-", 63), usd, clean(f.reason or "", 300))
    show(console, table)


def schedule_json(s: ScheduleStatus) -> dict[str, Any]:
    """Plain JSON of one schedule; times with their offsets."""
    return {
        **pick(s, "name running spent_this_month_usd"),
        **s.schedule.model_dump(mode="json"),
        "next": [t.isoformat() for t in s.next],
        "last": s.last.model_dump(mode="json") if s.last else None,
    }
