"""``fcctl results export``: runs for other programs and other machines."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.look import Shown

FORMATS = ("json", "jsonl", "csv", "parquet", "flashcore", "mlflow", "tar.zst", "tar.gz")
BINARY = ("parquet", "tar.zst", "tar.gz")
_ENDINGS = {".tar.gz": "tar.gz", ".tgz": "tar.gz", ".tar.zst": "tar.zst", ".csv": "csv", ".jsonl": "jsonl",
            ".parquet": "parquet", ".json": "json"}  # fmt: skip


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", type=click.Path(allow_dash=True), default="-", help="Write to this file.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By the file's ending; else json.")
@click.pass_obj
def export(cli: Cli, runs: tuple[str, ...], output: str, form: str | None) -> None:
    """Export RUNs (ids, parts of ids, `last`, tags, or `all`) for other programs.

    json: run.json with all documents, one object a run and line. csv, jsonl, parquet: a row for each benchmark.
    flashcore: the p50, p90, p99 and speedup of the benchmark, as `.results.mission.flashcore.p50`. mlflow: a folder
    for `mlflow ui --backend-store-uri`. tar.zst: the whole folders with the sha256 of every file, for `fcctl results
    import` on another machine. tar.gz: the folders alone. Archives are byte for byte reproducible.
    """
    chosen = form or _by_ending(output)
    with cli.services() as services:
        from orchestrator.results.look import show
        from orchestrator.results.name_runs import named

        store = services.store
        everything = "all" in runs
        ids = [r.run_id for r in store.rows()] if everything else [i for word in runs for i in named(store, word)]
        ids = list(dict.fromkeys(ids))
        shown = (show(store, run_id) for run_id in ids)  # one at a time: all of them may be a hundred thousand
        if chosen == "mlflow":
            _write_folder(shown, output)
        elif output == "-":
            _check_stream(cli, chosen)
            _write(shown, chosen, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        else:
            _write_file(shown, chosen, output)
    if cli.json:
        cli.emit({"written": output, "format": chosen, "runs": ids})
    cli.note(f"wrote {output}")


def _by_ending(output: str) -> str:
    """json for standard output and for a name without an ending.

    Raises:
        UsageError: the ending says nothing.
    """
    from pathlib import Path

    from orchestrator.base.errors import UsageError

    found = next((form for ending, form in _ENDINGS.items() if output.endswith(ending)), None)
    ending = Path(output).suffix
    if found is None and ending:
        raise UsageError(
            f"-o {output}: no format has the ending '{ending}'",
            hint=f"one of {', '.join(_ENDINGS)}, or say it: --format {'|'.join(FORMATS)}",
        )
    return found or "json"


def _check_stream(cli: Cli, form: str) -> None:
    if form in BINARY and (cli.json or sys.stdout.isatty()):
        where = "among the JSON" if cli.json else "to the terminal"
        what = "an archive" if form.startswith("tar") else "Parquet"
        raise click.UsageError(f"{what} would go {where}: name a file with -o")


def _write_folder(shown: Iterable[Shown], output: str) -> None:
    from pathlib import Path

    from orchestrator.results.export import mlflow as export_mlflow

    if output == "-":
        raise click.UsageError("MLflow's runs are a folder of files: name one with -o, for instance -o mlruns")
    export_mlflow.write(shown, Path(output))


def _write_file(shown: Iterable[Shown], form: str, output: str) -> None:
    """Replace the file whole, or leave what was there."""
    from pathlib import Path

    from orchestrator.base.errors import FcctlError
    from orchestrator.base.files import replacing

    path = Path(output)
    try:
        # On disk, since who has an archive may delete the runs.
        with replacing(path.parent, path.name) as fd, os.fdopen(fd, "wb", closefd=False) as stream:
            _write(shown, form, stream)
    except OSError as exc:
        raise FcctlError(
            f"could not write {output}", cause=exc.strerror, hint="name a place that is writable and has room, with -o"
        ) from exc


def _write(shown: Iterable[Shown], form: str, stream: IO[bytes]) -> None:
    import json

    from orchestrator.results.archive import archive
    from orchestrator.results.export import export as exporting
    from orchestrator.results.export import table as export_rows

    writers = {
        "tar.gz": exporting.archive,
        "tar.zst": archive.write,
        "csv": export_rows.write_csv,
        "jsonl": export_rows.write_jsonl,
        "parquet": export_rows.write_parquet,
    }
    if form in writers:
        writers[form](shown, stream)
        return
    convert = exporting.flashcore if form == "flashcore" else exporting.whole
    for one in shown:
        stream.write(json.dumps(convert(one), allow_nan=False).encode() + b"\n")
