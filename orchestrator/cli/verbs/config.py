"""``fcctl config``: what is configured, and where each value comes from."""

from __future__ import annotations

import json
from typing import Any

import click

from orchestrator.cli.context import Cli


@click.group()
def config() -> None:
    """Show the configuration and where it comes from.

    The strongest first: flags, FCCTL_* variables, fcctl.toml, the user's own file, defaults.
    """


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.pass_obj
def show(cli: Cli, origin: bool) -> None:
    """Print every value that is set or has a default."""
    values = cli.workspace().loaded.values()
    if cli.json:
        cli.emit({"values": {key: {"value": value, "origin": source} for key, (value, source) in values.items()}})
        return
    lines = {key: f"{key} = {_shown(value)}" for key, (value, _) in values.items()}
    width = min(60, max(map(len, lines.values())))
    for key, (_, source) in values.items():
        click.echo(f"{lines[key]:<{width}}  # {source}" if origin else lines[key])


@config.command()
@click.argument("key")
@click.pass_obj
def get(cli: Cli, key: str) -> None:
    """Print the value of KEY, such as budget.per_run_usd; a table as JSON."""
    value = cli.workspace().loaded.get(key)
    if cli.json:
        cli.emit({"key": key, "value": value})
    else:
        click.echo("" if value is None else value if isinstance(value, str) else _shown(value))


@config.command()
@click.pass_obj
def path(cli: Cli) -> None:
    """Print the files the configuration is read from, the strongest first."""
    from orchestrator.base.errors import NotFoundError
    from orchestrator.workspace.root import FILE_NAME, find_root
    from orchestrator.workspace.workspace import user_config_file

    user = user_config_file(cli.environ)
    try:
        workspace = find_root(cli.start) / FILE_NAME
    except NotFoundError:
        workspace = None
    if cli.json:
        cli.emit({"workspace": workspace, "user": user, "user_exists": user.is_file()})
        return
    if workspace:
        click.echo(workspace)
    click.echo(user)
    if not user.is_file():
        cli.note(f"{user} does not exist; it may hold what every workspace of yours shares")


def _shown(value: Any) -> str:
    """As TOML would write it, which for these values is as JSON would."""
    return json.dumps(value, ensure_ascii=False)
