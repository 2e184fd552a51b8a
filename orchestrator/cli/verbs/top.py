"""``fcctl top``: what goes on, in the terminal, until q or Ctrl-C."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.5, show_default=True, metavar="SECONDS",
              help="Between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Look once and print; what happens anyway where there is no terminal.")
@click.pass_obj
def top(cli: Cli, interval: float, once: bool) -> None:
    """Watch the active runs: step, time, GPU, spending. A run that ends meanwhile is brought home.

    With --json one document for each look; without a terminal, or with --once, only one look.
    """
    from orchestrator import app
    from orchestrator.views.live.overview import Overview

    looks_once = once or not sys.stdout.isatty()
    with app.opened(cli, quiet=True) as services:
        overview = Overview(services)
        budget = cli.workspace().config.budget
        try:
            if cli.json or looks_once:
                from orchestrator.runs.cost.money_now import money_now
                from orchestrator.views.live.top import document, top_screen

                runs = overview.poll(patience_s=20)
                now, money = services.clock.now(), money_now(services)
                if cli.json:
                    cli.emit(document(runs, now, money))
                else:
                    from orchestrator.views.table import show

                    show(cli.console, *top_screen(runs, now, money, budget, cli.console.width))
            else:
                from orchestrator.views.live.top_screen import watch

                watch(cli.console, services, overview, budget, interval)
        finally:
            overview.close()
