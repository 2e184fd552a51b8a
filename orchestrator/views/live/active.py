"""The table of ``fcctl ps``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import print_trimmed

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.runs.remaining import Remaining
    from orchestrator.runs.reopen import ActiveState

COLUMNS = ("RUN", "JOB", "TARGET", "STATE", "STEP", "AGE", "NOTE")
#: What a narrow terminal goes without: the run's name says both.
_IN_THE_NAME = ("JOB", "TARGET")
_WIDE = 110
_COLOURS = {"running": "green", "followed": "green", "unreachable": "red", "broken": "red", "interrupted": "yellow"}


def rows(states: list[ActiveState], now: float) -> list[tuple[str, ...]]:
    """The cells of each active run, as text that is safe to print."""
    return [_row(state, now) for state in states]


def _row(state: ActiveState, now: float) -> tuple[str, ...]:
    s = state.summary
    step, age, note = "", "", clean(state.detail or "", 80)
    status = state.state
    if s is not None:
        if s.step:
            step = f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}"
        age = duration(max(0.0, now - s.created))
        if state.state == "followed":
            note = f"{clean(s.status, 16)}, followed by another fcctl"
        elif s.behind:
            note = f"behind {clean(s.behind, 63)}"
        elif s.status == "queued":
            note = "about to begin"
    return state.run_id, state.job, state.target, status, step, age, note


def remaining_text(run: Remaining) -> str:
    """``is running (bench 4/5) on l4, and ends in about 3 min 00 s, in 17 min 00 s at the latest``."""
    if run.queued:
        state = f"is queued on {run.target}" + (f" behind {run.behind}" if run.behind else "")
    else:
        state = "is running" + (f" ({run.step})" if run.step else "") + f" on {run.target}"
    ends = [f"in about {duration(run.expected_s)}"] if run.expected_s is not None else []
    ends += [f"in {duration(run.at_most_s)} at the latest"] if run.at_most_s is not None else []
    after = " once it has begun" if run.queued else ""
    return f"{state}, and ends{after} {', '.join(ends)}" if ends else state


def print_active(states: list[ActiveState], console: Console) -> None:
    """Print the table; one line that says so when there is nothing."""
    if not states:
        console.print("no active runs")
        return
    from rich.table import Table
    from rich.text import Text

    shown = [i for i, name in enumerate(COLUMNS) if console.width >= _WIDE or name not in _IN_THE_NAME]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        table.add_column(COLUMNS[i], overflow="fold", no_wrap=COLUMNS[i] != "NOTE")
    for cells in rows(states, time.time()):
        state = Text(cells[3], _COLOURS.get(cells[3], ""))
        table.add_row(*(state if i == 3 else Text(cells[i]) for i in shown))
    print_trimmed(console, table, console.width)
