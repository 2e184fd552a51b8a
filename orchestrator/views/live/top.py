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
from orchestrator.views.figures import duration, load_bars
from orchestrator.views.live.active import machine_lines, today
from orchestrator.views.live.run import gpu_text, telemetry_text
from orchestrator.views.table import Piece, Table, line

if TYPE_CHECKING:
    from orchestrator.money.caps import Budget
    from orchestrator.runs.services import Services
    from orchestrator.views.live.overview import LiveRun, Overview


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
    yield line.append(f"  spending ${hourly:.2f}/h" if hourly else "", "yellow").append(f"  {today(money)}", "not bold")
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
        gauge = "" if run.detail else gpu_text(run.sample) or ("no GPU seen" if run.sample else "")
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
    for text, style in ((run.detail, "dim"), (telemetry_text(run.sample), "cyan")):
        if text:
            yield f"  {clean(text, width - 4)}", style
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


#: How often the ledger is added up, seconds.
MONEY_EVERY_S = 5.0


def watch(console: Console, services: Services, overview: Overview, budget: Budget, interval_s: float) -> None:
    """Draw, wait, draw. Returns at q; the terminal is left as it was."""
    plain, money, counted = "utf" not in console.encoding.lower(), MoneyNow(), -MONEY_EVERY_S
    foot = Text("q quits; the runs continue", "dim")
    _fit(console)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("reading the state of the machines", "dim"), refresh=True)
        while True:
            runs = overview.poll()
            _fit(console)
            now, elapsed = services.clock.now(), services.clock.monotonic()
            if elapsed - counted >= MONEY_EVERY_S:
                money, counted = money_now(services), elapsed
            pieces = top_screen(runs, now, money, budget, console.width, plain=plain)
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
