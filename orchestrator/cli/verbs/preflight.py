"""``fcctl preflight``: is the machine fit for GPU work?"""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--on", "target", metavar="TARGET", help="Where to look; the workspace's default target otherwise.")
@click.pass_obj
def preflight(cli: Cli, target: str | None) -> None:
    """Check GPU, CUDA toolkit, Nsight Compute, PyTorch CUDA and environment of a target.

    Exit code 0: all pass; 1: warnings; 2: critical errors.
    """
    from orchestrator.app import opened
    from orchestrator.base.sanitize import clean_text
    from orchestrator.runs.reopen import new_link

    chosen = cli.workspace().target(target)
    with opened(cli) as services:
        services.observer.phase("preflight", chosen.name)
        link = new_link(services, chosen)
        try:
            found = link.call(lambda s: s.probe(chosen.env))
        finally:
            link.close()
    if cli.json:
        cli.emit(found["document"])
    else:
        click.echo(clean_text(found["text"]))
    raise SystemExit(found["exit_code"])
