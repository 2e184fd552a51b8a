"""The screen of ``fcctl top``: money, then each run with its step, its GPU and its load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.money.calendar import start_of_day
from orchestrator.views.live.run import duration, telemetry_text
from orchestrator.views.tables.cells import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from orchestrator.money.caps import Budget
    from orchestrator.results.records import RunRow
    from orchestrator.views.live.overview import LiveRun

_COLOURS = {"running": "green", "queued": "yellow", "unreachable": "red", "broken": "red", "ended": "cyan"}
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
#: From so many columns on, a run's id, its load and its money have columns of their own.
WIDE = 160
_OTHER_COLUMNS = 125  # with the gaps between them


def spent_today(rows: Sequence[RunRow], runs: Sequence[LiveRun], now: float, zone: tzinfo) -> float:
    """Dollars of the day of ``zone``: of the runs that are complete, and at their plans' prices of the active ones. Of
    a run that began before midnight, the part since then."""
    midnight = start_of_day(now, zone)
    return sum(_usd_since(row, midnight) for row in rows) + sum(run.spent_usd(now, midnight) for run in runs)


def _usd_since(row: RunRow, moment: float) -> float:
    began, ended = (datetime.fromisoformat(stamp).timestamp() for stamp in (row.created, row.finished))
    if began >= moment or ended <= began:
        return row.usd if began >= moment else 0.0
    return row.usd * max(0.0, ended - moment) / (ended - began)


def document(runs: Sequence[LiveRun], now: float, today: float) -> dict[str, Any]:
    """One look, for programs."""
    from fcctl_remote import wire

    return {
        "time": now,
        "usd_per_hour": sum(run.usd_per_hour for run in runs),
        "usd_today": round(today, 4),
        "runs": [
            {"run_id": run.run_id, "job": run.job, "target": run.target, "state": run.state, "detail": run.detail,
             "summary": wire.encode(run.summary), "telemetry": run.sample, "usd": round(run.spent_usd(now), 4),
             "usd_per_hour": run.usd_per_hour, "worst_case_usd": run.worst_case_usd}
            for run in runs
        ],
    }  # fmt: skip


def top_screen(
    runs: Sequence[LiveRun], now: float, today: float, budget: Budget, width: int, *, plain: bool = False
) -> Iterator[RenderableType]:
    """The pieces of the screen, none wider than ``width``; ``plain`` keeps to ASCII."""
    yield _money(runs, today, budget)
    if not runs:
        yield text("no run goes on; start one: fcctl run JOB", "dim")
        return
    yield from (_wide if width >= WIDE else _narrow)(runs, now, budget, _ASCII_BARS if plain else _BARS, width)


def sparkline(values: Sequence[float], bars: str = _BARS, width: int = 24) -> str:
    """Percent as bars, the newest at the right."""
    last = len(bars) - 1
    return "".join(bars[min(last, max(0, round(v / 100 * last)))] for v in list(values)[-width:])


def _money(runs: Sequence[LiveRun], today: float, budget: Budget) -> Text:
    rate = sum(run.usd_per_hour for run in runs)
    line = text(f"{len(runs)} active", "bold")
    if rate:
        line.append(f"  burning ${rate:.2f}/h", "yellow")
    cap = f" of ${budget.per_day_usd:.2f}" if budget.per_day_usd is not None else ""
    line.append(f"  today ${today:.2f}{cap}", "not bold")
    return line


def _wide(runs: Sequence[LiveRun], now: float, budget: Budget, bars: str, width: int) -> Iterator[RenderableType]:
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    made.add_column("RUN", no_wrap=True, overflow="ellipsis", max_width=min(63, width - _OTHER_COLUMNS))
    for name, most in (
        ("STATE", 11),
        ("STEP", 16),
        ("TIME", 11),
        ("GPU", 34),
        ("LOAD", 12),
        ("SPENT", 16),
        ("CAP IN", 11),
    ):
        made.add_column(name, no_wrap=True, overflow="ellipsis", max_width=most)
    for run in runs:
        gauge = "" if run.detail else telemetry_text(run.sample)
        made.add_row(
            text(clean(run.run_id, 63)),
            text(run.state, _COLOURS.get(run.state, "")),
            text(_step(run)),
            text(duration(run.elapsed_s(now))),
            text(clean(gauge or run.detail, 60), "" if gauge else "dim"),
            text(sparkline(run.load, bars, 12), "cyan"),
            text(_spent(run, now)),
            text(_cap_in(run, now, budget)),
        )
    yield made


def _narrow(runs: Sequence[LiveRun], now: float, budget: Budget, bars: str, width: int) -> Iterator[RenderableType]:
    for run in runs:
        head = text("")
        head.append(clean(run.run_id, 63), "bold").append(f"  {run.state}", _COLOURS.get(run.state, ""))
        yield head
        cap = _cap_in(run, now, budget)
        facts = (_step(run), duration(run.elapsed_s(now)), _spent(run, now), f"cap in {cap}" if cap else "")
        yield text("  " + "  ".join(fact for fact in facts if fact))
        for line, style in ((run.detail, "dim"), (telemetry_text(run.sample), "cyan")):
            if line:
                yield text("  " + clean(line, width - 4), style)
        if len(run.load) > 1:
            yield text("  " + sparkline(run.load, bars, min(60, width - 4)), "cyan")


def _step(run: LiveRun) -> str:
    s = run.summary
    return f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}" if s is not None and s.step else ""


def _spent(run: LiveRun, now: float) -> str:
    return f"${run.spent_usd(now):.3f} of ${run.worst_case_usd:.2f}" if run.usd_per_hour else ""


def _cap_in(run: LiveRun, now: float, budget: Budget) -> str:
    left = run.seconds_to_cap(now, budget.per_run_usd)
    return "" if left is None else duration(left)
