"""``fcctl top`` on a terminal: the screen again and again, until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from orchestrator.runs.cost.money_now import MoneyNow, money_now
from orchestrator.views.live.top import top_screen
from orchestrator.views.table import line

if TYPE_CHECKING:
    from orchestrator.money.caps import Budget
    from orchestrator.runs.services import Services
    from orchestrator.views.live.overview import Overview

#: How often the ledger is added up, seconds.
MONEY_EVERY_S = 5.0


def watch(console: Console, services: Services, overview: Overview, budget: Budget, interval_s: float) -> None:
    """Draw, wait, draw. Returns at q; the terminal is left as it was."""
    plain, money, counted = "utf" not in console.encoding.lower(), MoneyNow(), -MONEY_EVERY_S
    foot = Text("q leaves; the runs continue", "dim")
    _fit(console)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("asking the machines", "dim"), refresh=True)
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
