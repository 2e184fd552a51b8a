"""The screen of ``fcctl top``: money, then each run with its step, its GPU and its load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fcctl_remote import wire
from orchestrator.base.fields import pick
from orchestrator.base.sanitize import clean
from orchestrator.views.figures import duration, load_bars
from orchestrator.views.live.active import machine_lines, today
from orchestrator.views.live.run import telemetry_text
from orchestrator.views.table import Piece, Table

if TYPE_CHECKING:
    from orchestrator.money.caps import Budget
    from orchestrator.runs.cost.money_now import MoneyNow
    from orchestrator.views.live.overview import LiveRun

_COLOURS = {"running": "green", "queued": "yellow", "unreachable": "red", "broken": "red", "ended": "cyan"}
#: From so many columns on, a run's id, its load and its money have columns of their own, each at most so wide.
WIDE = 160
_WIDTHS = {"STATE": 11, "STEP": 16, "TIME": 11, "GPU": 34, "LOAD": 12, "SPENT": 16, "CAP IN": 11}


def document(runs: Sequence[LiveRun], now: float, money: MoneyNow) -> dict[str, Any]:
    """One look, for programs."""
    return {
        "time": now,
        "usd_per_hour": rate(runs, money),
        "usd_today": round(money.today_usd, 4),
        **money.as_json(now),
        "runs": [
            {**pick(run, "run_id job target state detail usd_per_hour worst_case_usd"), "telemetry": run.sample,
             "summary": wire.encode(run.summary), "usd": round(run.spent_usd(now), 4)}
            for run in runs
        ],
    }  # fmt: skip


def top_screen(
    runs: Sequence[LiveRun], now: float, money: MoneyNow, budget: Budget, width: int, *, plain: bool = False
) -> Iterator[Piece]:
    """The pieces of the screen, none wider than ``width``; ``plain`` keeps to ASCII."""
    hourly = rate(runs, money)
    line = Text(f"{len(runs)} active", "bold")
    yield line.append(f"  burning ${hourly:.2f}/h" if hourly else "", "yellow").append(f"  {today(money)}", "not bold")
    yield from machine_lines(money, now)
    if not runs:
        yield "no active runs; start one: fcctl run JOB", "dim"
    elif width >= WIDE:
        yield _table(runs, now, budget, width, plain)
    else:
        yield from (line for run in runs for line in _lines(run, now, budget, width, plain))


def rate(runs: Sequence[LiveRun], money: MoneyNow) -> float:
    """Dollars an hour: of the machines that are on, and of runs on machines that are simply there."""
    return money.usd_per_hour + sum(run.usd_per_hour for run in runs if not run.in_cloud)


def _table(runs: Sequence[LiveRun], now: float, budget: Budget, width: int, plain: bool) -> Table:
    table = Table(padding=(0, 2, 0, 0))
    gaps = 2 * (len(_WIDTHS) + 1) - 2
    widths = {"RUN": min(63, width - sum(_WIDTHS.values()) - gaps), **_WIDTHS}
    for name, most in widths.items():
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=most)
    for run in runs:
        gauge = "" if run.detail else telemetry_text(run.sample)
        table.add_row(
            clean(run.run_id, 63),
            Text(run.state, _COLOURS.get(run.state, "")),
            _step(run),
            duration(run.elapsed_s(now)),
            Text(clean(gauge or run.detail, 60), "" if gauge else "dim"),
            Text(load_bars(run.load, 12, ascii_only=plain), "cyan"),
            _spent(run, now),
            _cap_in(run, now, budget),
        )
    return table


def _lines(run: LiveRun, now: float, budget: Budget, width: int, plain: bool) -> Iterator[Piece]:
    yield Text(clean(run.run_id, 63), "bold").append(f"  {run.state}", f"not bold {_COLOURS.get(run.state, '')}")
    cap = _cap_in(run, now, budget)
    facts = (_step(run), duration(run.elapsed_s(now)), _spent(run, now), f"cap in {cap}" if cap else "")
    yield "  " + "  ".join(fact for fact in facts if fact)
    for line, style in ((run.detail, "dim"), (telemetry_text(run.sample), "cyan")):
        if line:
            yield f"  {clean(line, width - 4)}", style
    if len(run.load) > 1:
        yield f"  {load_bars(run.load, min(60, width - 4), ascii_only=plain)}", "cyan"


def _step(run: LiveRun) -> str:
    s = run.summary
    return f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}" if s is not None and s.step else ""


def _spent(run: LiveRun, now: float) -> str:
    return f"${run.spent_usd(now):.3f} of ${run.worst_case_usd:.2f}" if run.usd_per_hour else ""


def _cap_in(run: LiveRun, now: float, budget: Budget) -> str:
    left = run.seconds_to_cap(now, budget.per_run_usd)
    return "" if left is None else duration(left)
