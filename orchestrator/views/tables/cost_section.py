"""What a run cost, at the end of its report: its line of the ledger, by activity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.results.records import CostRecord
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import table, text

if TYPE_CHECKING:
    from rich.console import RenderableType

EMULATED = "emulated: what the real machine would have cost; nothing was spent"
_ROWS = 30


def usd(value: float | None) -> str:
    """``$0.0123`` below a dollar, ``$1.23`` from there on; ``-`` for what nobody knows."""
    if value is None:
        return "-"
    sign, size = ("-" if value < 0 else ""), abs(value)
    return f"{sign}${size:.2f}" if size >= 1 or size == 0 else f"{sign}${size:.4f}"


def cost_section(cost: CostRecord) -> Iterator[RenderableType]:
    """Seconds and dollars of each activity, and their sum."""
    made = table("activity", right=("seconds", "dollars"))
    for line in cost.breakdown[:_ROWS]:
        made.add_row(clean(line.activity, 40), f"{line.seconds:.1f}", usd(line.usd))
    made.add_row(text("billed", "bold"), f"{cost.billed_s:.1f}", usd(cost.usd))
    yield made
    yield text(f"{duration(cost.billed_s)} at {usd(cost.usd_per_hour)} an hour", "dim")
