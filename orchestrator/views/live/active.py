"""What ``fcctl ps`` prints: the active runs with what they cost, the machines that are on, and today's dollars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.views.live.run import duration
from orchestrator.views.money.now import machine_lines, today
from orchestrator.views.tables.cells import print_trimmed, text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.runs.cost.money_now import MoneyNow
    from orchestrator.runs.cost.so_far import CostSoFar
    from orchestrator.runs.remaining import Remaining
    from orchestrator.runs.reopen import ActiveState

COLUMNS = ("RUN", "JOB", "TARGET", "STATE", "STEP", "AGE", "USD", "NOTE")
#: From so many columns on there is a table; else a few lines for each run.
_WIDE = 120
_COLOURS = {"running": "green", "followed": "green", "unreachable": "red", "broken": "red", "interrupted": "yellow"}


def rows(
    states: Sequence[ActiveState], now: float, costs: Mapping[str, CostSoFar] | None = None
) -> list[tuple[str, ...]]:
    """The cells of each active run, as text that is safe to print.

    Args:
        costs: by run id, of those of which that is known.
    """
    return [_row(state, now, (costs or {}).get(state.run_id)) for state in states]


def _row(state: ActiveState, now: float, cost: CostSoFar | None) -> tuple[str, ...]:
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
    return state.run_id, state.job, state.target, status, step, age, _usd(cost), note


def _usd(cost: CostSoFar | None) -> str:
    if cost is None or cost.emulated or cost.worst_case_usd <= 0:
        return ""
    return f"${cost.usd:.2f} of ${cost.worst_case_usd:.2f}"


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


def print_active(
    states: Sequence[ActiveState], console: Console, now: float, costs: Mapping[str, CostSoFar], money: MoneyNow
) -> None:
    """Print the runs, or that there are none; then what costs something."""
    shown = rows(states, now, costs)
    pieces: list[RenderableType] = [] if shown else [text("no active runs")]
    if shown:
        pieces += [_table(shown)] if console.width >= _WIDE else list(_lines(shown))
    pieces += machine_lines(money, now)
    if money.today_usd or money.day_cap_usd is not None:
        pieces.append(text(today(money)))
    for piece in pieces:
        print_trimmed(console, piece, console.width)


def _table(shown: Sequence[tuple[str, ...]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, overflow="fold", no_wrap=name != "NOTE")
    for cells in shown:
        table.add_row(*(Text(cell, _COLOURS.get(cell, "") if i == 3 else "") for i, cell in enumerate(cells)))
    return table


def _lines(shown: Sequence[tuple[str, ...]]) -> Iterator[RenderableType]:
    """The name says job and target, too."""
    for run_id, _, _, status, *facts, note in shown:
        yield text(run_id, "bold").append(f"  {status}", _COLOURS.get(status, "not bold"))
        for line in ("  ".join(fact for fact in facts if fact), note):
            if line:
                yield text(f"  {line}")
