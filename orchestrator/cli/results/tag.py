"""``fcctl results tag``: names for runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.tags import Tag


@click.command()
@click.argument("name", required=False)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--move", is_flag=True, help="Let the tag leave the runs it stands for.")
@click.option("--delete", is_flag=True, help="Forget the tag. The runs stay.")
@click.option("--note", default="", help="A line on what the runs are.")
@click.pass_obj
def tag(cli: Cli, name: str | None, runs: tuple[str, ...], move: bool, delete: bool, note: str) -> None:
    """Let NAME stand for RUNs wherever a run is asked for; without arguments, list the tags.

    `baseline` is what `fcctl run --compare baseline` compares with. Several launches make the best baseline. Tags are
    in results/tags.toml, which belongs into git.
    """
    from orchestrator.base.errors import UsageError
    from orchestrator.results.name_runs import give

    with cli.services() as services:
        store = services.store
        if name is None:
            _list(cli, store.tags())
        elif delete:
            if runs or move or note:
                raise UsageError("--delete takes the name alone", hint=f"fcctl results tag --delete {name}")
            store.untag(name)
            _said(cli, name, [], "deleted")
        elif not runs:
            _list(cli, {name: _known(store.tags(), name)})
        else:
            made = give(store, services.clock, name, list(runs), move=move, note=note)
            _said(cli, name, list(made.runs), "set")


def _known(tags: dict[str, Tag], name: str) -> Tag:
    from orchestrator.base.errors import NotFoundError, did_you_mean

    if name not in tags:
        raise NotFoundError(f"there is no tag {name[:60]!r}", hint=did_you_mean(name, tags))
    return tags[name]


def _said(cli: Cli, name: str, runs: list[str], done: str) -> None:
    if cli.json:
        cli.emit({"tag": name, "runs": runs, "done": done})
    else:
        cli.note(f"{name}: {done}" + (f": {', '.join(runs)}" if runs else "") + "; commit results/tags.toml")


def _list(cli: Cli, tags: dict[str, Tag]) -> None:
    from dataclasses import asdict

    if cli.json:
        cli.emit({"tags": [asdict(found) for found in tags.values()]})
        return
    if not tags:
        cli.note("no tags yet; for instance: fcctl results tag baseline last")
        return
    from orchestrator.views.tables.run_list import print_tags

    print_tags(list(tags.values()), cli.console)
