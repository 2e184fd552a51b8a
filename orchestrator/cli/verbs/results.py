"""``fcctl results``: the runs in the store."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from orchestrator.base.errors import RegressionFound, UsageError, did_you_mean, plural
from orchestrator.base.sanitize import clean
from orchestrator.cli.context import Cli, CliCommand, CliGroup, Parsed
from orchestrator.cli.failures import show_run
from orchestrator.cli.verbs.results_files import export, prune, report, take_in
from orchestrator.results.compare.ranks import METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.results.compare.compare import Report
    from orchestrator.results.compare.verdicts import FailOn, Options
    from orchestrator.results.records import RunRecord
    from orchestrator.results.store.names import Tag
    from orchestrator.runs.services import Services


def share(text: str) -> float:
    """``3%`` or ``0.03``. Raises ValueError."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(%?)", text.strip())
    value = float(match[1]) / (100 if match[2] else 1) if match else 1.0
    if value >= 1:
        raise ValueError(f"expected a percentage such as 1%, not {text[:40]!r}")
    return value


ALLOW = ("gpu", "driver", "clocks", "throttling", "method")


@click.command(cls=CliCommand)
@click.argument("old", metavar="A")
@click.argument("others", metavar="[B]...", nargs=-1)
@click.option("--metric", type=click.Choice(METRICS), default="p50", show_default=True, help="Which time to compare.")
@click.option("--fail-on", multiple=True, metavar="WHAT",
              help="Exit 9 on slower (the default), slower:3%, inconclusive, incomparable, missing; none:"
              " never.")  # fmt: skip
@click.option("--margin", type=Parsed(share), metavar="SHARE",
              help="Differences up to this count as the same (default: the tolerance of --fail-on, or"
              " 3%).")  # fmt: skip
@click.option("--launch-spread", "spread", type=Parsed(share), metavar="SHARE",
              help="Assumed difference between launches of one program, if there are too few launches (default:"
              " measured in earlier runs of one source on this machine, or 2.5%, or 5% for single calls).")  # fmt: skip
@click.option("--allow", multiple=True, type=click.Choice(ALLOW), help="Compare even if this differs.")
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, for a comment.")
def compare(
    cli: Cli, old: str, others: tuple[str, ...], metric: str, fail_on: tuple[str, ...], margin: float | None,
    spread: float | None, allow: tuple[str, ...], markdown: bool,
) -> None:  # fmt: skip
    """Compare the benchmarks of run A with those of run B, or of up to five; B is `last` if left out.

    Each is an id, the first or last characters of one, `last`, `last:JOB`, `last~1`, a tag such as `baseline`, a commit
    or branch, or several of these separated by commas: with several launches of one program, fcctl can tell a change
    from noise. Each benchmark is faster, slower, the same, inconclusive or incomparable; `fcctl help statistics`
    defines these. Exit code 9: a benchmark is slower, or what --fail-on names.
    """
    from orchestrator.results.compare.compare import MOST_SIDES, with_margin
    from orchestrator.results.compare.verdicts import Options, conditions

    names = (old, *(others or ("last",)))
    if len(names) > MOST_SIDES:
        raise UsageError(f"{len(names)} sides given; the limit is {MOST_SIDES}", hint="name fewer runs")
    failing = conditions(fail_on)
    options = with_margin(Options(metric=metric, spread=spread, allow=frozenset(allow)), failing)
    if margin is not None:
        options = replace(options, margin=margin)
    with cli.services() as services:
        reports = _compared(cli, services, names, options, failing)
    show_comparison(cli, reports, markdown=markdown)
    fail(reports)


def _compared(
    cli: Cli, services: Services, names: Sequence[str], options: Options, fail_on: tuple[FailOn, ...]
) -> list[Report]:
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.results.compare.history import source_changes

    root = cli.workspace().root
    return compare_all(services.store, names, options=options, fail_on=fail_on, history=source_changes, root=root)


def show_comparison(cli: Cli, reports: Sequence[Report], *, markdown: bool = False) -> None:
    """Prints them as the options ask for: with --json one comparison as it is, several as a list."""
    from orchestrator.views.tables import compare as tables

    if cli.json:
        made = [{**one.as_json(), **({"markdown": tables.markdown([one])} if markdown else {})} for one in reports]
        regression = any(one["regression"] for one in made)
        cli.emit(made[0] if len(made) == 1 else {"comparisons": made, "regression": regression})
    elif markdown:
        sys.stdout.write(tables.markdown(reports))
    else:
        tables.print_comparison(reports, cli.console)


def fail(reports: Sequence[Report]) -> None:
    """Raises: RegressionFound, if anything is as --fail-on says, which left out says slower."""
    report = next((one for one in reports if one.failures), reports[0])
    failures = report.failures
    if failures:
        first = failures[0]
        many = f" and {len(failures) - 1} more" if len(failures) > 1 else ""
        mode = f" ({first.mode})" if first.mode else ""
        raise RegressionFound(
            f"{first.benchmark}{mode}: {first.message}{many}",
            cause=f"{report.new.first.run_id} was compared with {report.old.first.run_id}; --fail-on sets what fails",
            hint="the profile and the compiled kernels above may show the reason; if the change is intended, move"
            " the baseline: "
            "fcctl results tag --move baseline last",
        )


@dataclass(frozen=True)
class Comparing:
    """The baseline of ``fcctl run --compare``. It is resolved before the run starts, so `last` is the run before it,
    and a missing baseline is an error before anything costs money."""

    runs: tuple[str, ...]
    fail_on: tuple[FailOn, ...]

    @classmethod
    def of(cls, services: Services, against: str, fail_on: tuple[str, ...], root: Path) -> Comparing:
        """Raises RunNotFound: there is no such run; UsageError: ``fail_on`` is no condition."""
        from orchestrator.results.compare.verdicts import conditions
        from orchestrator.results.look import named

        runs = tuple(named(services.store, against, root))
        for run_id in runs:
            services.store.get(run_id)
        return cls(runs, conditions(fail_on))

    def _compare(self, cli: Cli, services: Services, runs: Sequence[str]) -> Report:
        from orchestrator.results.compare.compare import with_margin
        from orchestrator.results.compare.verdicts import Options

        sides, options = (",".join(self.runs), ",".join(runs)), with_margin(Options(), self.fail_on)
        (report,) = _compared(cli, services, sides, options, self.fail_on)
        return report

    def report(self, cli: Cli, services: Services, runs: Sequence[str], record: RunRecord | None = None) -> None:
        """Print the comparison of ``runs`` as one side; with the ``record`` of the only one, print that run too, with
        --json as one document, and leave with its exit code. Raises RegressionFound: as ``fail_on`` says."""
        if record is not None and not cli.json:
            show_run(cli, record, services.store.folder(record.run_id))
            click.echo()
        report = self._compare(cli, services, runs)
        if record is not None and cli.json:
            left_on = cli.left_on_json()
            cli.emit({**record.model_dump(mode="json"), "comparison": report.as_json(), "left_on": left_on})
        else:
            show_comparison(cli, [report])
        fail([report])
        if record is not None and record.exit_code:
            raise SystemExit(record.exit_code)


@click.command(cls=CliCommand)
@click.option("--benchmark", metavar="NAME", help="Benchmark to show (default: list all names).")
@click.option("--variant", metavar="NAME", help="Only this variant of the kernel.")
@click.option("--mode", metavar="MODE", help="Only times of this mode: hot, cold, eager, ...")
@click.option("--gpu", metavar="NAME", help="Only on this GPU, by its full name.")
@click.option("--job", metavar="JOB", help="Only runs of this job.")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1, 100_000), default=1000, show_default=True,
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
    from orchestrator.results.store.names import unknown_tag

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
                raise unknown_tag(name, tags)
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
@click.option("--job", metavar="JOB", help="Only runs of this job.")
@click.option("--target", metavar="TARGET", help="Only runs on this target.")
@click.option(
    "--status",
    metavar="STATUS",
    help="Only runs with this status: passed, failed, incomplete, cancelled, lost, error, ...",
)
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="At most this many runs; 0: all.",
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
