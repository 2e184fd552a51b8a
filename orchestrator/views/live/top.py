"""The screen of ``fcctl top``: money, then each run with its step, its GPU and its load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.views.live.run import duration, telemetry_text
from orchestrator.views.money.now import machine_lines, today
from orchestrator.views.tables.cells import text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from orchestrator.money.caps import Budget
    from orchestrator.runs.cost.money_now import MoneyNow
    from orchestrator.views.live.overview import LiveRun

_COLOURS = {"running": "green", "queued": "yellow", "unreachable": "red", "broken": "red", "ended": "cyan"}
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
#: From so many columns on, a run's id, its load and its money have columns of their own.
WIDE = 160
_OTHER_COLUMNS = 125  # with the gaps between them


def document(runs: Sequence[LiveRun], now: float, money: MoneyNow) -> dict[str, Any]:
    """One look, for programs."""
    from fcctl_remote import wire

    return {
        "time": now,
        "usd_per_hour": rate(runs, money),
        "usd_today": round(money.today_usd, 4),
        **money.as_json(now),
        "runs": [
            {"run_id": run.run_id, "job": run.job, "target": run.target, "state": run.state, "detail": run.detail,
             "summary": wire.encode(run.summary), "telemetry": run.sample, "usd": round(run.spent_usd(now), 4),
             "usd_per_hour": run.usd_per_hour, "worst_case_usd": run.worst_case_usd}
            for run in runs
        ],
    }  # fmt: skip


def top_screen(
    runs: Sequence[LiveRun], now: float, money: MoneyNow, budget: Budget, width: int, *, plain: bool = False
) -> Iterator[RenderableType]:
    """The pieces of the screen, none wider than ``width``; ``plain`` keeps to ASCII."""
    yield _money(runs, money)
    yield from machine_lines(money, now)
    if not runs:
        yield text("no run goes on; start one: fcctl run JOB", "dim")
        return
    yield from (_wide if width >= WIDE else _narrow)(runs, now, budget, _ASCII_BARS if plain else _BARS, width)


def sparkline(values: Sequence[float], bars: str = _BARS, width: int = 24) -> str:
    """Percent as bars, the newest at the right."""
    last = len(bars) - 1
    return "".join(bars[min(last, max(0, round(v / 100 * last)))] for v in list(values)[-width:])


def rate(runs: Sequence[LiveRun], money: MoneyNow) -> float:
    """Dollars an hour: of the machines that are on, and of runs on machines that are simply there."""
    return money.usd_per_hour + sum(run.usd_per_hour for run in runs if not run.in_cloud)


def _money(runs: Sequence[LiveRun], money: MoneyNow) -> Text:
    hourly = rate(runs, money)
    line = text(f"{len(runs)} active", "bold")
    if hourly:
        line.append(f"  burning ${hourly:.2f}/h", "yellow")
    line.append(f"  {today(money)}", "not bold")
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
