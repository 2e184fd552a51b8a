"""The phases of a project: on a terminal, a page and in a report."""

from __future__ import annotations

import re
from collections.abc import Iterator

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.runs.progress import Goal, PhaseProgress, Progress
from orchestrator.views.blocks import Block, Cell, Grid, Line, Text
from orchestrator.views.figures import microseconds, significant, usd

_RATIO = re.compile(r"""against=["']([^"'/]*/)?([^"']+)["']\]\.ratio$""")


def progress_blocks(progress: Progress) -> Iterator[Block]:
    """One line per phase, and what is spent, planned and free."""
    rows: list[Line] = [_row(phase) for phase in progress.phases]
    if progress.other_usd:
        rows.append(("other costs", "", "", "", "", "", "", usd(progress.other_usd), ""))
    planned = sum(phase.planned_usd or 0.0 for phase in progress.phases)
    whole = ("total", "", "", "", "", "", usd(planned), usd(progress.spent_usd), usd(progress.left_usd))
    rows.append(tuple(Cell(text, kind="bold") if text else "" for text in whole))
    header = ("phase", "target", "best", "gap", "gates passed", "hours", "planned", "spent", "still planned")
    yield Grid(header, tuple(rows), "Phases", numbers=(5, 6, 7, 8), optional=(5, 4, 6), fold=(1,))
    if progress.cap_usd is not None and progress.free_usd is not None:
        free = usd(progress.free_usd) if progress.free_usd >= 0 else f"-{usd(-progress.free_usd)}"
        yield Text(f"Of the project's {usd(progress.cap_usd)}: {usd(progress.spent_usd)} spent, "
                   f"{usd(progress.left_usd)} planned, {free} free")  # fmt: skip
    for phase in progress.phases:
        yield from _open(phase)


def _row(phase: PhaseProgress) -> Line:
    main, met = phase.main, len(phase.goals) - len(phase.open_goals)
    hours = f"{phase.hours:.2f}" + (f" of {phase.planned_hours:g}" if phase.planned_hours is not None else "")
    best = Cell(value_text(main), href=f"/runs/{main.run_id}") if main and main.run_id else ""
    return (
        Cell(clean(phase.name, 24), "done" if phase.is_done else phase.state), target_text(main) if main else "", best,
        gap_text(main) if main else "", f"{met} of {len(phase.goals)}", hours,
        _dollars(phase.planned_usd), _dollars(phase.usd), _dollars(phase.left_usd),
    )  # fmt: skip


def _open(phase: PhaseProgress) -> Iterator[Block]:
    """The gates that runs decided and none met; those that no run decided are only counted."""
    missed = [goal for goal in phase.open_goals if goal.met is False]
    for goal in missed:
        yield Text(f"{clean(phase.name, 24)}: {target_text(goal)}: best {value_text(goal)}, {gap_text(goal)}"
                   f" ({goal.run_id})", style="notice")  # fmt: skip
    undecided = len(phase.open_goals) - len(missed)
    if undecided and phase.runs:
        yield Text(f"{clean(phase.name, 24)}: {plural(undecided, 'gate')} not decided by any run", style="soft")


def target_text(goal: Goal) -> str:
    """``p50 < 200 µs``, ``>= 7x baseline``, or the gate itself."""
    if goal.limit is None:
        return clean(goal.expr, 60)
    if goal.what.endswith("stats.p50"):
        return f"p50 {goal.op} {goal.limit:g} µs"
    if (match := _RATIO.search(goal.what)) and goal.limit > 0 and goal.op in ("<", "<="):
        return f"{goal.op.replace('<', '>')} {1 / goal.limit:g}x {clean(match[2], 24)}"
    return f"{clean(goal.what, 60)} {goal.op} {goal.limit:g}"


def value_text(goal: Goal) -> str:
    """The best value, in the words of the target."""
    if goal.best is None:
        return "" if goal.met is None else "met" if goal.met else "not met"
    if goal.what.endswith("stats.p50"):
        return f"{microseconds(goal.best)} µs"
    if _RATIO.search(goal.what) and goal.best > 0:
        return f"{significant(1 / goal.best)}x"
    return f"{goal.best:g}"


def gap_text(goal: Goal) -> str:
    """``met``, ``29 % over``, ``7.0x the target``, ``12 % under``, or nothing where it is not known."""
    if goal.met:
        return "met"
    if goal.gap is None:
        return "another gate of the step failed" if goal.beside_a_failure else ""
    if goal.op in (">", ">=", "=="):
        return f"{100 * goal.gap:.0f} % under"
    return f"{1 + goal.gap:.1f}x the target" if goal.gap >= 1 else f"{100 * goal.gap:.0f} % over"


def _dollars(amount: float | None) -> str:
    return "" if amount is None else usd(amount)
