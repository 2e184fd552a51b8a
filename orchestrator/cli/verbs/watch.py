"""``fcctl top``, ``ui`` and ``emulator``: what runs until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click

from orchestrator import app
from orchestrator.base.errors import FcctlError
from orchestrator.base.installation import to_install
from orchestrator.cli.context import Cli, CliCommand


@click.command(cls=CliCommand)
@click.option("--interval", type=click.FloatRange(0.2, 60), default=1.5, show_default=True, metavar="SECONDS",
              help="Time between updates.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one update and exit; the default without a terminal.")
def top(cli: Cli, interval: float, once: bool) -> None:
    """Show the active runs live: step, time, GPU, spending. Runs that end are collected.

    With --json, one document per update. Without a terminal, or with --once, only one update.
    """
    from orchestrator.views.live_runs import Overview

    looks_once = once or not sys.stdout.isatty()
    with app.opened(cli, quiet=True) as services:
        overview = Overview(services)
        budget = cli.workspace().config.budget
        try:
            if cli.json or looks_once:
                from orchestrator.runs.cost.outlook import money_now
                from orchestrator.views.top import document, top_screen

                runs = overview.poll(patience_s=20)
                now, money = services.clock.now(), money_now(services)
                if cli.json:
                    cli.emit(document(runs, now, money))
                else:
                    from orchestrator.views.table import show

                    show(cli.console, *top_screen(runs, now, money, budget))
            else:
                from orchestrator.views.top import watch

                watch(cli.console, services, overview, budget, interval)
        finally:
            overview.close()


@click.command(cls=CliCommand)
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0 chooses a free one."
)
@click.option("--no-open", is_flag=True, help="Print the link; do not open a browser.")
@click.option("--example", is_flag=True, help="Show the published runs of an H100 and an H200; needs no workspace.")
def ui(cli: Cli, port: int, no_open: bool, example: bool) -> None:
    """Show the dashboard in this computer's browser: overview, live runs, compare, reports, hosts.

    Prints a link that works once, in one browser; after its use, fcctl prints a new link for another browser. Ctrl-C
    stops the dashboard; runs continue. Over SSH, forward the port: ssh -L PORT:127.0.0.1:PORT HOST.
    """

    def announce(link: str) -> None:
        cli.show({"url": link})
        cli.note(f"for another browser: {link}")

    with _example(cli) if example else nullcontext():
        try:
            server, backend = app.dashboard(cli, port, announce)
        except ImportError as error:
            raise FcctlError(
                "the dashboard is not installed", cause=f"no module {error.name}", hint=to_install("web")
            ) from error
        if not cli.show({"url": server.link, "port": server.port}):
            click.echo(server.link)
            cli.note("open this link in a browser; Ctrl-C stops the dashboard; runs continue")
        with _opened(server.link if not no_open and not cli.json else None):
            server.serve(backend)


@contextmanager
def _example(cli: Cli) -> Iterator[None]:
    """A workspace of the published runs, until the dashboard ends."""
    import tempfile

    from orchestrator.results.export import published_workspace
    from orchestrator.runs.job.files import example_workspace

    with tempfile.TemporaryDirectory(prefix="fcctl-example-") as folder:
        published_workspace(example_workspace(), Path(folder))
        cli.directory = folder
        yield


@contextmanager
def _opened(link: str | None) -> Iterator[None]:
    """The link in the user's browser. By a file that only the user can read: command lines are for everybody."""
    if link is None:
        yield
        return
    import tempfile
    import webbrowser

    with tempfile.TemporaryDirectory(prefix="fcctl-ui-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><a href="{link}">fcctl</a>')
        webbrowser.open(page.as_uri())
        yield


_GCLOUD = """\
gcloud uses it with these variables:
  export CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE={url}/compute/v1/
  export CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true CLOUDSDK_CORE_CHECK_GCE_METADATA=false
  export CLOUDSDK_CORE_PROJECT=any-project CLOUDSDK_COMPUTE_ZONE=us-central1-a CLOUDSDK_CONFIG=$(mktemp -d)
Ctrl-C stops it and every instance."""


@click.command(cls=CliCommand)
@click.option(
    "--port", metavar="PORT", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; 0 chooses a free one."
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder in which to store the instances.",
)
@click.option(
    "--faults",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="YAML file with the faults and latencies to emulate.",
)
@click.option("--for", "seconds", type=click.FloatRange(0), metavar="SECONDS", help="Stop after this time.")
@click.option(
    "--idle", type=click.FloatRange(0), metavar="MINUTES", help="Stop when no instance has run for this time."
)
@click.option("--stop", is_flag=True, help="Stop the background emulator of the target `sandbox`.")
def emulator(
    cli: Cli, port: int, state: Path | None, faults: Path | None, seconds: float | None, idle: float | None, stop: bool,
) -> None:  # fmt: skip
    """Emulate the part of Compute Engine that fcctl uses; instances are sshd processes on this computer.

    Prints the URL that clients use as their API endpoint. It needs no account and costs nothing. Without --state, all
    data is deleted when it stops. `fcctl help emulator` lists what it supports, and how to script faults.

    With --stop: stop the emulator that `--on sandbox` started, and its instances.
    """
    if stop:
        _stop(cli)
        return
    from orchestrator.emulator.daemon import wait_until_stopped
    from orchestrator.emulator.emulator import Emulator
    from orchestrator.emulator.scenario import Scenario, load

    scenario = load(faults) if faults is not None else Scenario()
    with Emulator(state, port=port, scenario=scenario) as cloud:
        if not cli.show({"url": cloud.url, "state": None if state is None else str(state.resolve())}):
            click.echo(cloud.url)
            cli.note(_GCLOUD.format(url=cloud.url))
        idle_s = None if idle is None else idle * 60
        wait_until_stopped(cloud, idle_s=idle_s, seconds=seconds, record=None)


def _stop(cli: Cli) -> None:
    from orchestrator.machines.sandbox import Sandbox

    stopped = Sandbox().stop()
    cli.show({"stopped": stopped})
    cli.note("the sandbox is stopped" if stopped else "the sandbox was not running")
