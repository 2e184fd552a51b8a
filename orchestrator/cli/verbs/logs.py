"""``fcctl logs``: what the steps wrote."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.context import Cli


@click.command()
@click.argument("run", default="last")
@click.option("-f", "--follow", is_flag=True, help="Go on as the run writes more, until it ends.")
@click.option("--step", help="Only this step.")
@click.pass_obj
def logs(cli: Cli, run: str, follow: bool, step: str | None) -> None:
    """Print the logs of RUN's steps: an id, a unique part of one, or `last`.

    A terminal gets them without control characters; a pipe or a file gets every byte as it was written. With --json,
    each line is `{run_id, step, text}`; the texts of a step put together are its log.
    """
    from orchestrator.app import opened
    from orchestrator.base.sanitize import LineCleaner
    from orchestrator.runs.logs import read_logs

    if cli.json:
        _as_json(cli, run, step, wait=follow)
        return
    out = sys.stdout.buffer
    cleaner = LineCleaner() if sys.stdout.isatty() else None
    with opened(cli, quiet=True) as services:
        run_id = services.store.resolve(run)
        shown, written = None, 0
        for piece in read_logs(services, run_id, step, wait=follow):
            if step is None and piece.step != shown and not cli.quiet:
                sys.stdout.flush()
                out.write(f"==> {piece.step} <==\n".encode())
            shown = piece.step
            written += len(piece.data)
            out.write(cleaner.feed(piece.data) if cleaner else piece.data)
            out.flush()
    if not written:
        cli.note(f"nothing is logged: fcctl ps or fcctl results show {run_id} tells how the run stands")


def _as_json(cli: Cli, run: str, step: str | None, *, wait: bool) -> None:
    from codecs import IncrementalDecoder, getincrementaldecoder

    from orchestrator.app import opened
    from orchestrator.runs.logs import read_logs

    # A piece may end within a character; what begins it waits for the next one.
    decoders: dict[str, IncrementalDecoder] = {}
    with opened(cli, quiet=True) as services:
        run_id = services.store.resolve(run)
        for piece in read_logs(services, run_id, step, wait=wait):
            decoder = decoders.setdefault(piece.step, getincrementaldecoder("utf-8")("replace"))
            if text := decoder.decode(piece.data):
                cli.emit({"run_id": run_id, "step": piece.step, "text": text})
        for name, decoder in decoders.items():
            if text := decoder.decode(b"", final=True):
                cli.emit({"run_id": run_id, "step": name, "text": text})
