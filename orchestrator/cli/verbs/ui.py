"""``fcctl ui``: the dashboard, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; any free one if 0.")
@click.option("--no-open", is_flag=True, help="Open no browser; print the link only.")
@click.pass_obj
def ui(cli: Cli, port: int, no_open: bool) -> None:
    """Show runs in the browser of this machine: live, history, compare, reports, hosts.

    Prints a link that opens it in one browser, once; when it was used, a new one is printed for the next. Ctrl-C ends
    the dashboard and no run. Over SSH, forward the port: ssh -L PORT:127.0.0.1:PORT HOST.
    """
    from orchestrator import app
    from orchestrator.base.errors import FcctlError

    def announce(link: str) -> None:
        if cli.json:
            cli.emit({"url": link})
        else:
            cli.note(f"for another browser: {link}")

    try:
        server, backend = app.dashboard(cli, port, announce)
    except ImportError as error:
        from orchestrator.base.extras import to_install

        raise FcctlError(
            "the dashboard is not installed", cause=f"no module {error.name}", hint=to_install("web")
        ) from error
    if cli.json:
        cli.emit({"url": server.link, "port": server.port})
    else:
        click.echo(server.link)
        cli.note("open it in a browser; Ctrl-C ends the dashboard, not the runs")
    with _opened(server.link if not no_open and not cli.json else None):
        server.serve(backend)


@contextmanager
def _opened(link: str | None) -> Iterator[None]:
    """The link in the user's browser. By a file that only the user can read: command lines are for everybody."""
    if link is None:
        yield
        return
    import tempfile
    import webbrowser
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="fcctl-ui-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><a href="{link}">fcctl</a>')
        webbrowser.open(page.as_uri())
        yield
