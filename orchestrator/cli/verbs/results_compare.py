"""``fcctl results compare`` and ``fcctl run --compare``: two sides of runs, with verdicts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from orchestrator.base.errors import RegressionFound, UsageError
from orchestrator.cli.context import Cli, CliCommand
from orchestrator.cli.failures import show_run
from orchestrator.results.statistics.ranks import METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.results.compare.compare import Report
    from orchestrator.results.compare.verdicts import FailOn, Options
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.services import Services

ALLOW = ("gpu", "driver", "clocks", "throttling", "method")


@click.command(cls=CliCommand)
@click.argument("old", metavar="A")
@click.argument("others", metavar="[B]...", nargs=-1)
@click.option("--metric", type=click.Choice(METRICS), default="p50", show_default=True, help="Which time to compare.")
@click.option("--fail-on", multiple=True, metavar="WHAT",
              help="Exit 9 on slower (the default), slower:3%, inconclusive, incomparable, missing; none:"
              " never.")  # fmt: skip
@click.option("--margin", metavar="SHARE",
              help="Differences up to this count as the same (default: the tolerance of --fail-on, or"
              " 3%).")  # fmt: skip
@click.option("--launch-spread", "spread", metavar="SHARE",
              help="Assumed difference between launches of one program, if there are too few launches (default:"
              " measured in earlier runs of one source on this machine, or 2.5%, or 5% for single calls).")  # fmt: skip
@click.option("--allow", multiple=True, type=click.Choice(ALLOW), help="Compare even if this differs.")
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, for a comment.")
def compare(
    cli: Cli, old: str, others: tuple[str, ...], metric: str, fail_on: tuple[str, ...], margin: str | None,
    spread: str | None, allow: tuple[str, ...], markdown: bool,
) -> None:  # fmt: skip
    """Compare the benchmarks of run A with those of run B, or of up to five; B is `last` if left out.

    Each is an id, the first or last characters of one, `last`, `last:JOB`, `last~1`, a tag such as `baseline`, a commit
    or branch, or several of these separated by commas: with several launches of one program, fcctl can tell a change
    from noise. Each benchmark is faster, slower, the same, inconclusive or incomparable; docs/statistics.md defines
    these. Exit code 9: a benchmark is slower, or what --fail-on names.
    """
    from orchestrator.results.compare.compare import MOST_SIDES, with_margin
    from orchestrator.results.compare.verdicts import Options, conditions

    names = (old, *(others or ("last",)))
    if len(names) > MOST_SIDES:
        raise UsageError(f"{len(names)} sides given; the limit is {MOST_SIDES}", hint="name fewer runs")
    failing = conditions(fail_on)
    options = with_margin(
        Options(metric=metric, spread=share("--launch-spread", spread), allow=frozenset(allow)), failing
    )
    given = share("--margin", margin)
    if given is not None:
        options = replace(options, margin=given)
    with cli.services() as services:
        reports = _compared(cli, services, names, options, failing)
    show(cli, reports, markdown=markdown)
    fail(reports)


def _compared(
    cli: Cli, services: Services, names: Sequence[str], options: Options, fail_on: tuple[FailOn, ...]
) -> list[Report]:
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.results.compare.history import source_changes

    root = cli.workspace().root
    return compare_all(services.store, names, options=options, fail_on=fail_on, history=source_changes, root=root)


def show(cli: Cli, reports: Sequence[Report], *, markdown: bool = False) -> None:
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


def share(option: str, text: str | None) -> float | None:
    """``3%`` or ``0.03``. Raises UsageError: it is neither."""
    if text is None:
        return None
    word = text.strip()
    try:
        value = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"{option} {text[:40]!r} is not a percentage", hint=f"example: {option} 1%")
    return value


@dataclass(frozen=True)
class Comparing:
    """The baseline of ``fcctl run --compare``. It is resolved before the run starts, so `last` is the run before it,
    and a missing baseline is an error before anything costs money."""

    name: str
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
        return cls(against, runs, conditions(fail_on))

    def _compare(self, cli: Cli, services: Services, runs: Sequence[str]) -> Report:
        from orchestrator.results.compare.compare import with_margin
        from orchestrator.results.compare.verdicts import Options

        sides, options = (",".join(self.runs), ",".join(runs)), with_margin(Options(), self.fail_on)
        (report,) = _compared(cli, services, sides, options, self.fail_on)
        return report

    def report_all(self, cli: Cli, services: Services, runs: Sequence[str]) -> None:
        """Print the comparison of ``runs`` as one side. Raises RegressionFound: as ``fail_on`` says."""
        report = self._compare(cli, services, runs)
        show(cli, [report])
        fail([report])

    def report(self, cli: Cli, services: Services, record: RunRecord) -> None:
        """Print the run and the comparison, with --json as one document; leave with the run's exit code. Raises
        RegressionFound: as ``fail_on`` says."""
        if not cli.json:
            show_run(cli, record, services.store.folder(record.run_id))
        report = self._compare(cli, services, [record.run_id])
        if cli.json:
            left_on = cli.left_on_json()
            cli.emit({**record.model_dump(mode="json"), "comparison": report.as_json(), "left_on": left_on})
        else:
            click.echo()
            show(cli, [report])
        fail([report])
        if record.exit_code:
            raise SystemExit(record.exit_code)
