"""What ``fcctl ps`` prints: the active runs with what they cost, the machines that are on, and today's dollars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.base.clock import utc_minute
from orchestrator.base.sanitize import clean
from orchestrator.views.blocks import Cell, Grid, Line
from orchestrator.views.figures import duration
from orchestrator.views.table import show, show_blocks

if TYPE_CHECKING:
    from orchestrator.runs.cost.machine_cost import CostSoFar
    from orchestrator.runs.cost.outlook import MoneyNow
    from orchestrator.runs.reopen import ActiveState, Remaining

COLUMNS = ("RUN", "JOB", "TARGET", "STATE", "STEP", "AGE", "USD", "NOTE")
_KINDS = {"running": "good", "followed": "good", "unreachable": "bad", "broken": "bad", "interrupted": "doubt"}


def row(state: ActiveState, now: float, cost: CostSoFar | None = None) -> Line:
    """The cells of an active run."""
    s, step, age, note = state.summary, "", "", clean(state.detail or "", 80)
    if s is not None:
        step = f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}" if s.step else ""
        age = duration(max(0.0, now - s.created))
        if state.state == "followed":
            note = f"{clean(s.status, 16)}, followed by another fcctl"
        elif s.behind:
            note = f"behind {clean(s.behind, 63)}"
        elif s.status == "queued":
            note = "starting"
    usd = ""
    if cost is not None and not cost.emulated and cost.worst_case_usd > 0:
        usd = f"${cost.usd:.2f} of ${cost.worst_case_usd:.2f}"
    shown = Cell(state.state, kind=_KINDS.get(state.state, ""))
    return state.run_id, state.job, state.target, shown, step, age, usd, note


def remaining_text(run: Remaining) -> str:
    """``is running (bench 4/5) on l4, and ends in about 3 min 00 s, in 17 min 00 s at the latest``."""
    if run.queued:
        state = f"is queued on {run.target}" + (f" behind {run.behind}" if run.behind else "")
    else:
        state = "is running" + (f" ({run.step})" if run.step else "") + f" on {run.target}"
    ends = [f"in about {duration(run.expected_s)}"] if run.expected_s is not None else []
    ends += [f"in {duration(run.at_most_s)} at the latest"] if run.at_most_s is not None else []
    after = ", counted from its start" if run.queued else ""
    return f"{state}, and ends {', '.join(ends)}{after}" if ends else state


def print_active(
    states: Sequence[ActiveState], console: Console, now: float, costs: Mapping[str, CostSoFar], money: MoneyNow
) -> None:
    """Print the runs, or that there are none; then what costs something."""
    if states:
        narrow = tuple(map(COLUMNS.index, ("JOB", "TARGET", "NOTE", "USD", "AGE", "STEP")))
        lines = tuple(row(state, now, costs.get(state.run_id)) for state in states)
        show_blocks(console, [Grid(COLUMNS, lines, optional=narrow, below=narrow[2:])])
    else:
        show(console, "no active runs")
    show(console, *machine_lines(money, now))
    if money.today_usd or money.day_cap_usd is not None:
        show(console, today(money))


def machine_lines(money: MoneyNow, now: float) -> Iterator[tuple[str, str]]:
    """Two lines for each machine that is on: what it costs, and what stops it."""
    for one in money.machines:
        usd = one.usd(now)
        price = ", at an unknown price" if usd is None else f" at ${one.usd_per_hour:.2f}/h, ${usd:.2f} so far"
        limit = "without a time limit" if one.until is None else f"until {utc_minute(one.until, now)}"
        yield f"{clean(one.target, 30)} ({clean(one.name, 63)}) is on{price}", "yellow"
        yield f"  {limit}; to stop it: {clean(one.stop, 300)}", "dim"


def today(money: MoneyNow) -> str:
    """``today $1.25 of $10.00``."""
    cap = f" of ${money.day_cap_usd:.2f}" if money.day_cap_usd is not None else ""
    return f"today ${money.today_usd:.2f}{cap}"
