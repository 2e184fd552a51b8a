"""``fcctl top`` on a terminal: the screen again and again, until q or Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.runs.cost.money_now import MoneyNow, money_now
from orchestrator.views.live.top import top_screen
from orchestrator.views.tables.cells import text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.money.caps import Budget
    from orchestrator.runs.services import Services
    from orchestrator.views.live.overview import Overview

#: How often the ledger is added up, seconds.
MONEY_EVERY_S = 5.0


def watch(console: Console, services: Services, overview: Overview, budget: Budget, interval_s: float) -> None:
    """Draw, wait, draw. Returns at q; the terminal is left as it was."""
    from rich.console import Group
    from rich.live import Live

    plain = "utf" not in console.encoding.lower()

    money, counted = MoneyNow(), -MONEY_EVERY_S

    def screen() -> RenderableType:
        nonlocal money, counted
        runs = overview.poll()
        _fit(console)
        now, elapsed = services.clock.now(), services.clock.monotonic()
        if elapsed - counted >= MONEY_EVERY_S:
            money, counted = money_now(services), elapsed
        foot = text("q leaves; the runs go on", "dim")
        return Group(*top_screen(runs, now, money, budget, console.width, plain=plain), foot)

    _fit(console)
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(text("asking the machines", "dim"), refresh=True)
        while True:
            live.update(screen(), refresh=True)
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


class _Keys:
    """Reads single keys while it waits."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self, wait_s: float) -> str:
        if self._fd is None:
            time.sleep(wait_s)
            return ""
        ready, _, _ = select.select([self._fd], [], [], wait_s)
        return os.read(self._fd, 1).decode(errors="replace") if ready else ""


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Single keys without Enter, where standard input is a terminal of ours."""
    try:
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd)
    except (termios.error, OSError, ValueError):
        yield _Keys(None)
        return
    try:
        yield _Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
