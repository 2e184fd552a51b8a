"""The lines of ``ps`` and ``top`` about money: machines that are on, and today's dollars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.base.clock import utc_minute
from orchestrator.base.sanitize import clean
from orchestrator.views.tables.cells import text

if TYPE_CHECKING:
    from rich.text import Text

    from orchestrator.runs.cost.money_now import MachineOn, MoneyNow


def machine_lines(money: MoneyNow, now: float) -> Iterator[Text]:
    """Two lines for each machine that is on: what it costs, and what stops it."""
    for one in money.machines:
        yield text(f"{clean(one.target, 30)} ({clean(one.name, 63)}) is on{_price(one, now)}", "yellow")
        yield text(f"  {_limit(one, now)}{clean(one.stop, 300)} stops it", "dim")


def _price(one: MachineOn, now: float) -> str:
    usd = one.usd(now)
    return ", at an unknown price" if usd is None else f" at ${one.usd_per_hour:.2f}/h, ${usd:.2f} so far"


def _limit(one: MachineOn, now: float) -> str:
    return "without a time limit; " if one.until is None else f"until {utc_minute(one.until, now)}; "


def today(money: MoneyNow) -> str:
    """``today $1.25 of $10.00``."""
    cap = f" of ${money.day_cap_usd:.2f}" if money.day_cap_usd is not None else ""
    return f"today ${money.today_usd:.2f}{cap}"
