"""``fcctl progress``: how far the project is, and what it cost."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli, CliCommand


@click.command(cls=CliCommand)
def progress(cli: Cli) -> None:
    """Show each phase: its target, the best so far, the gap, and the dollars spent and still planned.

    A phase is a job; its gates are the targets. [phases.NAME] of fcctl.toml plans hours and dollars; without it, the
    phases are the jobs called `phase...`. Runs in the sandbox do not count. This does not query the cloud.
    """
    with cli.services() as services:
        found = cli.workspace().progress(services)
    if cli.show(found.as_json()):
        return
    from orchestrator.views.table import show_blocks
    from orchestrator.views.tables.progress import progress_blocks

    show_blocks(cli.console, progress_blocks(found))
