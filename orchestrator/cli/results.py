"""``fcctl results``: look at the runs that are home."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.report import report
from orchestrator.cli.results_compare import compare
from orchestrator.cli.results_history import history
from orchestrator.cli.results_tag import tag

if TYPE_CHECKING:
    from orchestrator.workflows.results import Shown


@click.group()
def results() -> None:
    """List, show and export the runs that are home."""


for _verb in (compare, history, report, tag):
    results.add_command(_verb)


@results.command()
@click.option("--job", help="Only runs of this job.")
@click.option("--target", help="Only runs on this target.")
@click.option("--status", help="Only runs that ended so: passed, failed, cancelled, lost, error, ...")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="At most so many; 0: all."
)
@click.pass_obj
def ls(cli: Cli, job: str | None, target: str | None, status: str | None, limit: int) -> None:
    """List runs, newest first."""
    _check_status(status)
    with cli.services() as services:
        rows = services.store.rows(limit=limit or None, job=job, target=target, status=status)
        now = services.clock.now()
    if cli.json:
        cli.emit({"runs": [row.model_dump(mode="json") for row in rows]})
        return
    if not rows:
        filtered = job or target or status
        cli.note("no run matches; leave out a filter" if filtered else "no runs yet; start one: fcctl run JOB")
        return
    from orchestrator.reports import run_list

    if sys.stdout.isatty():
        run_list.print_runs(rows, cli.console, now)
    else:
        sys.stdout.write(run_list.plain(rows))


@results.command()
@click.argument("run", default="last")
@click.pass_obj
def show(cli: Cli, run: str) -> None:
    """Show RUN: an id, a unique beginning or end of one, `last`, or `last:JOB`."""
    from orchestrator.workflows.results import show as look_up

    with cli.services() as services:
        shown = look_up(services.store, run)
    if cli.json:
        cli.emit(shown.as_json())
        return
    from orchestrator.reports.run_table import print_run_summary

    print_run_summary(shown.record, shown.folder, cli.console)


@results.command()
@click.pass_obj
def reindex(cli: Cli) -> None:
    """Build the index of the runs anew. It is disposable: the runs' folders are the truth."""
    from orchestrator.reports.sanitize import clean

    with cli.services() as services:
        began = services.clock.monotonic()
        count, skipped = services.store.reindex()
        seconds = services.clock.monotonic() - began
    if cli.json:
        left_out = [{"run_id": run_id, "reason": reason} for run_id, reason in skipped]
        cli.emit({"runs": count, "skipped": left_out, "seconds": round(seconds, 3)})
        return
    for run_id, reason in skipped:
        cli.note(f"skipped {clean(run_id, 80)}: {clean(reason, 300)}")
    click.echo(f"{count} runs indexed in {seconds:.1f} s" + (f", {len(skipped)} folders skipped" if skipped else ""))


@results.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, allow_dash=True), default="-", help="Write to this file."
)
@click.option(
    "--format", "form", type=click.Choice(["json", "tar.gz", "flashcore"]), help="By the file's ending; else json."
)
@click.pass_obj
def export(cli: Cli, runs: tuple[str, ...], output: str, form: str | None) -> None:
    """Export RUNs for other programs.

    json: run.json with all documents, one object a run and line. flashcore: the p50, p90, p99 and speedup of the
    benchmark, as `.results.mission.flashcore.p50`. tar.gz: the whole folders, byte for byte reproducible.
    """
    from orchestrator.workflows.results import show as look_up

    chosen = form or ("tar.gz" if output.endswith((".tar.gz", ".tgz")) else "json")
    with cli.services() as services:
        shown = [look_up(services.store, run) for run in runs]
    if output == "-":
        if chosen == "tar.gz" and (cli.json or sys.stdout.isatty()):
            where = "among the JSON" if cli.json else "to the terminal"
            raise click.UsageError(f"an archive would go {where}: name a file with -o")
        _write(shown, chosen, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        _write_file(shown, chosen, output)
        if cli.json:
            cli.emit({"written": output, "format": chosen, "runs": [one.record.run_id for one in shown]})
        cli.note(f"wrote {output}")


def _write_file(shown: list[Shown], form: str, output: str) -> None:
    """Replace the file whole, or leave what was there."""
    from pathlib import Path

    from orchestrator.errors import FcctlError

    path = Path(output)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as stream:
            _write(shown, form, stream)
        unfinished.replace(path)
    except OSError as exc:
        raise FcctlError(
            f"could not write {output}", cause=exc.strerror, hint="name a place that is writable and has room, with -o"
        ) from exc
    finally:
        unfinished.unlink(missing_ok=True)


def _write(shown: list[Shown], form: str, stream: IO[bytes]) -> None:
    import json

    from orchestrator.workflows import export as exporting

    if form == "tar.gz":
        exporting.archive(shown, stream)
        return
    convert = exporting.flashcore if form == "flashcore" else exporting.whole
    for one in shown:
        stream.write(json.dumps(convert(one), allow_nan=False).encode() + b"\n")


def _check_status(status: str | None) -> None:
    from fcctl_remote.wire import RUN_ENDINGS
    from orchestrator.errors import UsageError, did_you_mean

    if status is not None and status not in RUN_ENDINGS:
        raise UsageError(f"no run ends as {status!r}", hint=did_you_mean(status, RUN_ENDINGS))
