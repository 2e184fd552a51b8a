"""Amounts on the command line: dollars, hours, minutes; and the options that accept a price."""

from __future__ import annotations

import math
from typing import Any

import click

#: What no person means; ``[budget]`` draws the same line.
MOST_USD = 1_000_000.0


class Finite(click.FloatRange):
    """A number in a range; ``nan`` and ``inf``, which are in every range or past every cap, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        if not math.isfinite(found):
            self.fail(f"{value} is no amount.", param, ctx)
        return float(found)


#: More than nothing.
POSITIVE = Finite(min=0, min_open=True)
#: A budget.
DOLLARS = Finite(min=0, min_open=True, max=MOST_USD)
#: Of every verb that starts a machine.
PRICE_OPTIONS = (
    click.option("--accept-price", is_flag=True, help="Plan with the cloud machine's own price, if that is dearer."),
    click.option("--accept-old-prices", is_flag=True, help="Plan with list prices that are older than a year."),
)
