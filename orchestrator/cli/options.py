"""The global options, which may stand before or after the verb; amounts, and the options that accept a price."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import click

from orchestrator.cli.context import COMPLETE_VARIABLE, Cli


def global_options(*, hidden: bool) -> list[click.Option]:
    """Fresh options; hidden ones are accepted after a verb without filling its help."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, hidden=hidden, callback=_store, **settings)

    return [
        option("--json", "json", is_flag=True, help="Print one JSON document (JSON lines for streams)."),
        option("-q", "--quiet", "quiet", is_flag=True, help="Print only data and errors."),
        option("-v", "--verbose", "verbose", count=True, help="Print more details; repeat for still more."),
        option("--debug", "debug", is_flag=True, help="Show the traceback of an unexpected error."),
        option("--color", "color", type=click.Choice(["auto", "always", "never"]), help="When to use colour."),
        option("-C", "--workspace", "directory", metavar="DIR", help="Run as if started in DIR."),
        option("--yes", "yes", is_flag=True, help="Assume yes to every question."),
    ]


def adopt(command: click.Command) -> click.Command:
    """Give a verb, and the verbs below it, the global options and completion of names. Done once per command."""
    known = {name for param in command.params for name in param.opts}
    if getattr(command, "adopted", False):
        return command
    for option in global_options(hidden=True):
        option.opts = [name for name in option.opts if name not in known]
        if option.opts:
            command.params.append(option)
    if COMPLETE_VARIABLE in os.environ:
        _complete_names(command)
    command.adopted = True  # type: ignore[attr-defined]  # ours, beside click's own
    for child in getattr(command, "commands", {}).values():
        adopt(child)
    return command


def _complete_names(command: click.Command) -> None:
    from orchestrator.cli.verbs.completion import complete_with, names_for

    for param in command.params:
        names = names_for(param)
        if names is not None:
            param._custom_shell_complete = complete_with(names)  # noqa: SLF001 - click takes it only when constructed


def _store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    cli = ctx.find_object(Cli)
    if cli is None or not value or param.name is None:
        return
    if param.name == "verbose":
        value += cli.verbose
    setattr(cli, param.name, value)


# ----------------------------------------------------------------------------------------------------- amounts
#: What no person means; ``[budget]`` draws the same line.
MOST_USD = 1_000_000.0


class Finite(click.FloatRange):
    """A number in a range; ``nan`` and ``inf``, which are in every range or past every cap, are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not an amount.", param, ctx)
        return float(number)


#: Of every verb that runs a job.
ON = click.option(
    "--on", "target", metavar="TARGET", help="Target to run on (default: the workspace's default target)."
)
#: More than nothing.
POSITIVE = Finite(min=0, min_open=True)
#: A budget.
DOLLARS = Finite(min=0, min_open=True, max=MOST_USD)
#: Of every verb that starts a machine.
PRICE_OPTIONS = (
    click.option(
        "--accept-price",
        is_flag=True,
        help="Accept the existing machine's price if it is higher than the configured machine's.",
    ),
    click.option("--accept-old-prices", is_flag=True, help="Accept list prices that are older than a year."),
)


def accepting_prices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options that accept a price; it gets them as ``accepted``."""

    from orchestrator.machines.targets import AcceptedPrices

    @functools.wraps(function)
    def with_options(*args: Any, accept_price: bool, accept_old_prices: bool, **given: Any) -> Any:
        return function(*args, accepted=AcceptedPrices(accept_price, accept_old_prices), **given)

    for option in reversed(PRICE_OPTIONS):
        with_options = option(with_options)
    return with_options
