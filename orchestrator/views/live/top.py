"""``fcctl top``: money, then each run with its step, its GPU and its load."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fcctl_remote import wire
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.runs.cost.outlook import MoneyNow, money_now
from orchestrator.views.blocks import Cell, Grid
from orchestrator.views.blocks import Line as BlockLine
from orchestrator.views.figures import duration, load_bars
from orchestrator.views.live.active import machine_lines, today
from orchestrator.views.live.run import gpu_text
from orchestrator.views.table import Piece, line, rendered

if TYPE_CHECKING:
    from orchestrator.money.caps import Budget
    from orchestrator.runs.services import Services
    from orchestrator.views.live.overview import LiveRun, Overview


_KINDS = {"running": "good", "queued": "doubt", "unreachable": "bad", "broken": "bad", "ended": "hint"}
_COLUMNS = ("RUN", "STATE", "STEP", "TIME", "GPU", "LOAD", "SPENT", "LEFT")


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
    runs: Sequence[LiveRun], now: float, money: MoneyNow, budget: Budget, *, plain: bool = False
) -> Iterator[Piece]:
    """The pieces of the screen; ``plain`` keeps to ASCII."""
    hourly = rate(runs, money)
    line = Text(f"{len(runs)} active", "bold")
    yield line.append(f"  spending ${hourly:.2f}/h" if hourly else "", "yellow").append(f"  {today(money)}", "not bold")
    yield from machine_lines(money, now)
    if runs:
        narrow = tuple(map(_COLUMNS.index, ("LEFT", "LOAD", "SPENT", "GPU", "TIME", "STEP")))
        rows = tuple(_row(run, now, budget, plain) for run in runs)
        yield from rendered(Grid(_COLUMNS, rows, optional=narrow, below=narrow))
    else:
        yield "no active runs; start one: fcctl run JOB", "dim"


def rate(runs: Sequence[LiveRun], money: MoneyNow) -> float:
    """Dollars an hour: of the machines that are on, and of runs on machines that are simply there."""
    return money.usd_per_hour + sum(run.usd_per_hour for run in runs if not run.in_cloud)


def _row(run: LiveRun, now: float, budget: Budget, plain: bool) -> BlockLine:
    gauge = "" if run.detail else gpu_text(run.sample) or ("no GPU found" if run.sample else "")
    left = run.seconds_to_cap(now, budget.per_run_usd)
    return (
        Cell(clean(run.run_id, 63), kind="bold"), Cell(run.state, kind=_KINDS.get(run.state, "")), _step(run),
        duration(run.elapsed_s(now)), Cell(clean(gauge or run.detail, 60), kind="" if gauge else "soft"),
        Cell(load_bars(run.load, 12, ascii_only=plain), kind="hint"),
        f"${run.spent_usd(now):.3f} of ${run.worst_case_usd:.2f}" if run.usd_per_hour else "",
        "" if left is None else f"cap in {duration(left)}",
    )  # fmt: skip


def _step(run: LiveRun) -> str:
    s = run.summary
    return f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}" if s is not None and s.step else ""


#: How often the ledger is added up, seconds.
MONEY_EVERY_S = 5.0


def watch(console: Console, services: Services, overview: Overview, budget: Budget, interval_s: float) -> None:
    """Draw, wait, draw. Returns at q; the terminal is left as it was."""
    plain, money, counted = "utf" not in console.encoding.lower(), MoneyNow(), -MONEY_EVERY_S
    foot = Text("q quits; the runs continue", "dim")
    _fit(console)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("contacting the machines", "dim"), refresh=True)
        while True:
            runs = overview.poll()
            _fit(console)
            now, elapsed = services.clock.now(), services.clock.monotonic()
            if elapsed - counted >= MONEY_EVERY_S:
                money, counted = money_now(services), elapsed
            pieces = top_screen(runs, now, money, budget, plain=plain)
            live.update(Group(*map(line, pieces), foot), refresh=True)
            if pressed(interval_s) in ("q", "Q", "\x03", "\x04"):
                return


def _fit(console: Console) -> None:
    """As large as the terminal is now.

    The environment's LINES and COLUMNS, which rich believes first, may be another terminal's (whoever loads readline
    exports them), and one row too many scrolls the top of a full screen away.
    """
    with contextlib.suppress(OSError, ValueError):
        size = os.get_terminal_size(console.file.fileno())
        if size.columns and size.lines:
            console.size = size


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Waits so many seconds for a key, without Enter, where standard input is a terminal of ours."""

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([fd], [], [], wait_s)
        return os.read(fd, 1).decode(errors="replace") if ready else ""

    def slept(wait_s: float) -> str:
        time.sleep(wait_s)
        return ""

    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
    except (termios.error, OSError, ValueError):
        yield slept
        return
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
