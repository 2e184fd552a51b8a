"""``fcctl results``: the runs in the store."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from orchestrator.base.errors import NotFoundError, UsageError, did_you_mean, plural
from orchestrator.base.sanitize import clean
from orchestrator.cli.context import Cli, CliCommand, CliGroup
from orchestrator.cli.verbs.results_compare import compare
from orchestrator.cli.verbs.results_files import export, prune, report, take_in

if TYPE_CHECKING:
    from orchestrator.results.tags import Tag


@click.command(cls=CliCommand)
@click.option("--benchmark", metavar="NAME", help="Benchmark to show (default: list all names).")
@click.option("--variant", help="Only this variant of the kernel.")
@click.option("--mode", help="Only times of this mode: hot, cold, eager, ...")
@click.option("--gpu", help="Only on this GPU, by its full name.")
@click.option("--job", help="Only runs of this job.")
@click.option("-n", "--limit", type=click.IntRange(1, 100_000), default=1000, show_default=True,
              help="At most this many times, newest first.")  # fmt: skip
def history(
    cli: Cli, benchmark: str | None, variant: str | None, mode: str | None, gpu: str | None, job: str | None, limit: int
) -> None:
    """Show a benchmark over time: its trend, its change points with their commits, and its best times.

    Times that cannot be compared (another GPU, mode, shape, unit or method) are separate series.
    """
    from orchestrator.results.compare.history import history as look_up
    from orchestrator.results.compare.history import source_changes
    from orchestrator.results.timings import HOW_TO
    from orchestrator.views.tables.history import print_history, print_names

    with cli.services() as services:
        if benchmark is not None:
            trends = look_up(
                services.store, benchmark, variant=variant, mode=mode, gpu=gpu, job=job, limit=limit,
                commits=source_changes, root=cli.workspace().root,
            )  # fmt: skip
            document = {"benchmark": benchmark, "series": [trend.as_json() for trend in trends]}
            cli.show(document, lambda: print_history(trends, cli.console))
            return
        names = services.store.benchmarks()
    cli.show(
        {"benchmarks": [{"benchmark": name, "variant": of} for name, of in names]},
        lambda: print_names(names, cli.console) if names else cli.note(f"no run has a measurement yet; {HOW_TO}"),
    )


@click.command(cls=CliCommand)
@click.argument("name", required=False)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--move", is_flag=True, help="Move the tag from its present runs to RUNs.")
@click.option("--delete", is_flag=True, help="Delete the tag. Its runs are kept.")
@click.option("--note", default="", help="A line that describes the runs.")
def tag(cli: Cli, name: str | None, runs: tuple[str, ...], move: bool, delete: bool, note: str) -> None:
    """Tag RUNs as NAME, to use in place of run ids. Without arguments, list the tags.

    `baseline` is what `fcctl run --compare baseline` compares with. A baseline of several launches is the most
    reliable. Tags are in results/tags.toml; commit this file to git.
    """
    from orchestrator.results.look import give

    with cli.services() as services:
        store = services.store
        if name is None:
            _list(cli, store.tags())
        elif delete:
            if runs or move or note:
                raise UsageError("--delete takes only NAME", hint=f"fcctl results tag --delete {name}")
            store.untag(name)
            _print_tag(cli, name, [], "deleted")
        elif not runs:
            tags = store.tags()
            if name not in tags:
                raise NotFoundError(f"unknown tag {name[:60]!r}", hint=did_you_mean(name, tags))
            _list(cli, {name: tags[name]})
        else:
            made = give(store, services.clock, name, list(runs), move=move, note=note)
            _print_tag(cli, name, list(made.runs), "set")


def _print_tag(cli: Cli, name: str, runs: list[str], done: str) -> None:
    cli.show({"tag": name, "runs": runs, "done": done})
    cli.note(f"{name}: {done}" + (f": {', '.join(runs)}" if runs else "") + "; commit results/tags.toml")


def _list(cli: Cli, tags: dict[str, Tag]) -> None:
    from orchestrator.views.tables.run import print_tags

    def text() -> None:
        if tags:
            print_tags(list(tags.values()), cli.console)
        else:
            cli.note("no tags yet; example: fcctl results tag baseline last")

    cli.show({"tags": [asdict(tag) for tag in tags.values()]}, text)


@click.group(cls=CliGroup)
def results() -> None:
    """List, show, compare and export stored runs."""


for _verb in (compare, history, report, tag, export, take_in, prune):
    results.add_command(_verb)


@results.command()
@click.option("--job", help="Only runs of this job.")
@click.option("--target", help="Only runs on this target.")
@click.option("--status", help="Only runs with this status: passed, failed, incomplete, cancelled, lost, error, ...")
@click.option(
    "-n", "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="At most this many runs; 0: all."
)
def ls(cli: Cli, job: str | None, target: str | None, status: str | None, limit: int) -> None:
    """List runs, newest first."""
    from orchestrator.results.look import headlines, tags_of

    _check_status(status)
    with cli.services() as services:
        rows = services.store.rows(limit=limit or None, job=job, target=target, status=status)
        tags, people = tags_of(services.store), sys.stdout.isatty() and not cli.json
        heads = headlines(services.store, rows) if people else {}
        now = services.clock.now()
    if cli.show({"runs": [{**row.model_dump(mode="json"), "tags": tags.get(row.run_id, [])} for row in rows]}):
        return
    if not rows:
        filtered = job or target or status
        cli.note("no run matches these filters; remove one" if filtered else "no runs yet; start one: fcctl run JOB")
        return
    from orchestrator.views.tables.run import plain, print_runs

    if people:
        print_runs(rows, cli.console, now, tags, heads)
    else:
        sys.stdout.write(plain(rows))


@results.command()
@click.argument("run", default="last")
def show(cli: Cli, run: str) -> None:
    """Show RUN: an id, a unique beginning or end of one, `last`, `last:JOB`, or `last~1` (the one before the last)."""
    from orchestrator.results.look import show as look_up
    from orchestrator.views.tables.run import print_run_summary

    with cli.services() as services:
        shown = look_up(services.store, run)
    cli.show(shown.as_json(), lambda: print_run_summary(shown.record, shown.folder, cli.console, shown.documents))


@results.command()
def reindex(cli: Cli) -> None:
    """Rebuild the index from the runs' folders. Nothing is lost if the index is deleted."""
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
    click.echo(
        f"{plural(count, 'run')} indexed in {seconds:.1f} s"
        + (f", {plural(len(skipped), 'folder')} skipped" if skipped else "")
    )


def _check_status(status: str | None) -> None:
    from fcctl_remote.wire import RUN_ENDINGS

    if status is not None and status not in RUN_ENDINGS:
        raise UsageError(f"{status!r} is not a run status", hint=did_you_mean(status, RUN_ENDINGS))
