"""The global options, which may stand before or after the verb."""

from __future__ import annotations

import os
from typing import Any

import click

from orchestrator.cli.context import Cli

#: The variable through which a shell asks for completions.
COMPLETE_VARIABLE = "_FCCTL_COMPLETE"


def global_options(*, hidden: bool) -> list[click.Option]:
    """Fresh options; hidden ones are accepted after a verb without filling its help."""

    def option(*names: str, **settings: Any) -> click.Option:
        return click.Option(names, expose_value=False, hidden=hidden, callback=_store, **settings)

    return [
        option("--json", "json", is_flag=True, help="Print one JSON document (JSON lines for streams)."),
        option("-q", "--quiet", "quiet", is_flag=True, help="Print only data and errors."),
        option("-v", "--verbose", "verbose", count=True, help="Say more; twice for still more."),
        option("--debug", "debug", is_flag=True, help="Show the traceback of an unexpected error."),
        option("--color", "color", type=click.Choice(["auto", "always", "never"]), help="When to use colour."),
        option("-C", "--workspace", "directory", metavar="DIR", help="Work as if started in DIR."),
        option("--yes", "yes", is_flag=True, help="Agree to what would be asked."),
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
    from orchestrator.cli.complete_names import complete_with, names_for

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
