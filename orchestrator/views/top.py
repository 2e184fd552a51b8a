"""Active runs on a terminal. ``fcctl ps``: the runs with what they cost, the machines that are on, today's dollars;
``fcctl top``: the same, drawn again and again, each run with its step, its GPU and its load."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from fcctl_remote import wire
from orchestrator.base.clock import utc_minute
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean
from orchestrator.runs.cost.outlook import MoneyNow, money_now
from orchestrator.views.blocks import Cell, Grid
from orchestrator.views.blocks import Line as BlockLine
from orchestrator.views.figures import duration, load_bars
from orchestrator.views.live_run import gpu_text
from orchestrator.views.table import Piece, line, rendered, show, show_blocks

if TYPE_CHECKING:
    from orchestrator.money.caps import Budget
    from orchestrator.runs.cost.machine_cost import CostSoFar
    from orchestrator.runs.reopen import ActiveState, Remaining
    from orchestrator.runs.services import Services
    from orchestrator.views.live_runs import LiveRun, Overview


_KINDS = {
    "running": "good", "followed": "good", "queued": "doubt", "interrupted": "doubt", "unreachable": "bad",
    "broken": "bad", "ended": "hint",
}  # fmt: skip
_COLUMNS = ("RUN", "STATE", "STEP", "TIME", "GPU", "LOAD", "SPENT", "LEFT")


_ACTIVE = ("RUN", "JOB", "TARGET", "STATE", "STEP", "AGE", "USD", "NOTE")


def row(state: ActiveState, now: float, cost: CostSoFar | None = None) -> BlockLine:
    """The cells of an active run."""
    s, step, age, note = state.summary, "", "", clean(state.detail or "", 80)
    if s is not None:
        step, age = _step(s), duration(max(0.0, now - s.created))
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
        narrow = tuple(map(_ACTIVE.index, ("JOB", "TARGET", "NOTE", "USD", "AGE", "STEP")))
        lines = tuple(row(state, now, costs.get(state.run_id)) for state in states)
        show_blocks(console, [Grid(_ACTIVE, lines, optional=narrow, below=narrow[2:])])
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


# ------------------------------------------------------------------------------------------------ fcctl top
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
        Cell(clean(run.run_id, 63), kind="bold"), Cell(run.state, kind=_KINDS.get(run.state, "")), _step(run.summary),
        duration(run.elapsed_s(now)), Cell(clean(gauge or run.detail, 60), kind="" if gauge else "soft"),
        Cell(load_bars(run.load, 12, ascii_only=plain), kind="hint"),
        f"${run.spent_usd(now):.3f} of ${run.worst_case_usd:.2f}" if run.usd_per_hour else "",
        "" if left is None else f"cap in {duration(left)}",
    )  # fmt: skip


def _step(s: wire.RunSummary | None) -> str:
    """``bench 4/5``; empty while no step runs."""
    return f"{clean(s.step, 24)} {s.step_index + 1}/{s.step_count}" if s is not None and s.step else ""


#: How often the ledger is added up, seconds.
MONEY_EVERY_S = 5.0


def watch(console: Console, services: Services, overview: Overview, budget: Budget, interval_s: float) -> None:
    """Draw, wait, draw. Returns at q; the terminal is left as it was."""
    from rich.live import Live

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
