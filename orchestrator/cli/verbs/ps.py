"""``fcctl ps``: the runs that are not complete."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--offline", is_flag=True, help="Ask no host: only what this machine knows.")
@click.pass_obj
def ps(cli: Cli, offline: bool) -> None:
    """List active runs, after completing those that have ended.

    A run whose fcctl was killed or detached is picked up here: if its host says it is over, its results are brought
    home; if it was never submitted, it is closed.
    """
    from orchestrator.app import opened
    from orchestrator.hosts.recover import settle
    from orchestrator.runs.reopen import known
    from orchestrator.views.live.active import print_active

    with opened(cli, quiet=True) as services:
        states = known(services) if offline else settle(services)
    if cli.json:
        from fcctl_remote import wire

        cli.emit({"runs": [wire.encode(state) for state in states]})
        return
    print_active(states, cli.console)
