"""``fcctl results``: look at the runs that are home."""

from __future__ import annotations

import sys

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.results.compare import compare
from orchestrator.cli.results.export import export
from orchestrator.cli.results.history import history
from orchestrator.cli.results.import_runs import take_in
from orchestrator.cli.results.prune import prune
from orchestrator.cli.results.report import report
from orchestrator.cli.results.sql import sql
from orchestrator.cli.results.tag import tag


@click.group()
def results() -> None:
    """List, show and export the runs that are home."""


for _verb in (compare, history, report, tag, export, take_in, sql, prune):
    results.add_command(_verb)


@results.command()
@click.option("--job", help="Only runs of this job.")
@click.option("--target", help="Only runs on this target.")
@click.option("--status", help="Only runs that ended so: passed, failed, incomplete, cancelled, lost, error, ...")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="At most so many; 0: all."
)
@click.pass_obj
def ls(cli: Cli, job: str | None, target: str | None, status: str | None, limit: int) -> None:
    """List runs, newest first."""
    from orchestrator.results.name_runs import tags_of

    _check_status(status)
    with cli.services() as services:
        rows = services.store.rows(limit=limit or None, job=job, target=target, status=status)
        tags = tags_of(services.store)
        now = services.clock.now()
    if cli.json:
        cli.emit({"runs": [{**row.model_dump(mode="json"), "tags": tags.get(row.run_id, [])} for row in rows]})
        return
    if not rows:
        filtered = job or target or status
        cli.note("no run matches; leave out a filter" if filtered else "no runs yet; start one: fcctl run JOB")
        return
    from orchestrator.views.tables import run_list

    if sys.stdout.isatty():
        run_list.print_runs(rows, cli.console, now, tags)
    else:
        sys.stdout.write(run_list.plain(rows))


@results.command()
@click.argument("run", default="last")
@click.pass_obj
def show(cli: Cli, run: str) -> None:
    """Show RUN: an id, a unique beginning or end of one, `last`, `last:JOB`, or `last~1`, the one before the last."""
    from orchestrator.results.look import show as look_up

    with cli.services() as services:
        shown = look_up(services.store, run)
    if cli.json:
        cli.emit(shown.as_json())
        return
    from orchestrator.views.tables.run import print_run_summary

    print_run_summary(shown.record, shown.folder, cli.console, shown.documents)


@results.command()
@click.pass_obj
def reindex(cli: Cli) -> None:
    """Build the index of the runs anew. It is disposable: the runs' folders are the truth."""
    from orchestrator.base.sanitize import clean

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


def _check_status(status: str | None) -> None:
    from fcctl_remote.wire import RUN_ENDINGS
    from orchestrator.base.errors import UsageError, did_you_mean

    if status is not None and status not in RUN_ENDINGS:
        raise UsageError(f"no run ends as {status!r}", hint=did_you_mean(status, RUN_ENDINGS))
