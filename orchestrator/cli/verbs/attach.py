"""``fcctl attach``: come back to a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.runs.job.saved_plan import SavedPlan


@click.command()
@click.argument("run", default="last")
@click.option("--tmux", is_flag=True, help="Open the run's tmux session on its host instead (leave it with C-b d).")
@click.pass_obj
def attach(cli: Cli, run: str, tmux: bool) -> None:
    """Follow RUN to its end and collect it, as if `fcctl run` had never been left. Ctrl-C leaves again."""
    from orchestrator.app import opened
    from orchestrator.cli.launching import print_detached
    from orchestrator.cli.run_end import report
    from orchestrator.runs import reopen as resume

    if tmux and cli.json:
        raise click.UsageError("--tmux takes over the terminal: it has no JSON to print")
    with opened(cli) as services:
        run_id = services.store.resolve(run)
        if not services.store.is_complete(run_id):
            if tmux:
                _open_tmux(run_id, resume.saved_plan(services, run_id))
            try:
                resume.attach(services, run_id)
            except KeyboardInterrupt:
                services.observer.close()
                raise KeyboardInterrupt(print_detached(cli, run_id)) from None
        record, folder = services.store.get(run_id), services.store.folder(run_id)
    report(cli, record, folder)


def _open_tmux(run_id: str, saved: SavedPlan | None) -> None:
    from orchestrator.app import terminal_command
    from orchestrator.base.errors import RunNotFound

    if saved is None:
        raise RunNotFound(f"no active run {run_id}", hint="fcctl ps lists the active ones")
    argv = terminal_command(saved.target, run_id)
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal becomes tmux's
