"""``fcctl help``: the pages of the documentation, of which an installation has a copy."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.base.errors import NotFoundError, nearest
from orchestrator.cli.context import Cli, CliCommand
from orchestrator.runs.job.files import example_workspace


@click.command(cls=CliCommand)
@click.argument("topic", metavar="[TOPIC]", required=False)
def help(cli: Cli, topic: str | None) -> None:  # noqa: A001 - the verb's name
    """Print the page TOPIC of the documentation, such as jobs or gates. Without TOPIC, list the pages.

    `fcctl COMMAND --help` describes a command.
    """
    known = pages()
    if topic is None:
        titles = {
            name: path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") for name, path in known.items()
        }
        width = max(map(len, titles), default=0)
        lines = "".join(f"{name:<{width}}  {title}\n" for name, title in titles.items())
        cli.show({"topics": titles}, lambda: click.echo(lines, nl=False))
        return
    if topic not in known:
        raise NotFoundError(f"no page named '{topic}'", hint=_instead(topic, list(known)))
    text = known[topic].read_text(encoding="utf-8")
    cli.show({"topic": topic, "text": text}, lambda: click.echo_via_pager(text))


def pages() -> dict[str, Path]:
    """The pages by their names, sorted."""
    found = {path.stem: path for path in (example_workspace() / "docs").rglob("*.md")}
    return dict(sorted(found.items()))


def _instead(topic: str, names: list[str]) -> str:
    ctx = click.get_current_context().find_root()
    if isinstance(ctx.command, click.Group) and topic in ctx.command.list_commands(ctx):
        return f"fcctl {topic} --help"
    near = nearest(topic, names)
    return (f"did you mean '{near}'? " if near else "") + "to list the pages: fcctl help"
