"""``fcctl results compare``: two sides of runs, with verdicts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.results.compare.compare import Report

METRICS = ("p50", "mean", "min", "p90", "p99")
ALLOW = ("gpu", "driver", "clocks", "throttling", "method")


@click.command()
@click.argument("old", metavar="A")
@click.argument("new", metavar="B", default="last")
@click.option("--metric", type=click.Choice(METRICS), default="p50", show_default=True, help="Which time to compare.")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="WHAT",
    help="Exit 9 on slower (the default), slower:3%, inconclusive, incomparable, missing; none only looks.",
)
@click.option("--margin", metavar="SHARE", help="Up to this is the same; else what --fail-on tolerates, else 3%.")
@click.option(
    "--launch-spread",
    "spread",
    metavar="SHARE",
    help="How far launches of one program differ, where there are too few to tell; else what earlier runs of one "
    "source on this machine did, else 2.5%, 5% for single calls.",
)
@click.option("--allow", multiple=True, type=click.Choice(ALLOW), help="Compare although this differs.")
@click.option("--markdown", is_flag=True, help="Print GitHub-flavoured Markdown, for a comment.")
@click.pass_obj
def compare(
    cli: Cli,
    old: str,
    new: str,
    metric: str,
    fail_on: tuple[str, ...],
    margin: str | None,
    spread: str | None,
    allow: tuple[str, ...],
    markdown: bool,
) -> None:
    """Compare the benchmarks of run A with those of run B, which is `last` if left out.

    Each is an id, a unique part of one, `last`, `last:JOB`, `last~1`, a tag such as `baseline`, or several of these
    with commas between: several launches of one program are what tells a change from luck. Each benchmark is faster,
    slower, the same, inconclusive or incomparable; docs/statistics.md says when. Exit code 9 if something is slower,
    or as --fail-on says.
    """
    from dataclasses import replace

    from orchestrator.results.compare.compare import with_margin
    from orchestrator.results.compare.fail_on import conditions
    from orchestrator.results.compare.verdicts import Options

    failing = conditions(fail_on)
    options = with_margin(
        Options(metric=metric, spread=share("--launch-spread", spread), allow=frozenset(allow)), failing
    )
    given = share("--margin", margin)
    if given is not None:
        options = replace(options, margin=given)
    with cli.services() as services:
        from orchestrator.results.compare.compare import compare_runs
        from orchestrator.results.compare.git_history import source_changes

        report = compare_runs(
            services.store,
            old,
            new,
            options=options,
            fail_on=failing,
            history=source_changes,
            root=cli.workspace().root,
        )
    show(cli, report, markdown=markdown)
    fail(report)


def show(cli: Cli, report: Report, *, markdown: bool = False) -> None:
    """Print it as the options ask for."""
    if cli.json:
        found = report.as_json()
        if markdown:
            from orchestrator.views.tables.compare import markdown as rendered

            found["markdown"] = rendered(report)
        cli.emit(found)
    elif markdown:
        from orchestrator.views.tables.compare import markdown as rendered

        sys.stdout.write(rendered(report))
    else:
        from orchestrator.views.tables.compare import print_comparison

        print_comparison(report, cli.console)


def fail(report: Report) -> None:
    """Raises: RegressionFound, if anything is as --fail-on says, which left out says slower."""
    from orchestrator.base.errors import RegressionFound

    found = report.failures
    if found:
        first = found[0]
        many = f" and {len(found) - 1} more" if len(found) > 1 else ""
        mode = f" ({first.mode})" if first.mode else ""
        raise RegressionFound(
            f"{first.benchmark}{mode}: {first.message}{many}",
            cause=f"{report.new.first.run_id} against {report.old.first.run_id}; --fail-on says what counts",
            hint="the profile and the compiled kernels above may say why; if it is meant, move the baseline: "
            "fcctl results tag --move baseline last",
        )


def share(option: str, text: str | None) -> float | None:
    """``3%`` or ``0.03``.

    Raises:
        UsageError: it is neither.
    """
    from orchestrator.base.errors import UsageError

    if text is None:
        return None
    word = text.strip()
    try:
        found = float(word[:-1]) / 100 if word.endswith("%") else float(word)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise UsageError(f"{option} {text[:40]!r} is no share", hint=f"for instance {option} 1%")
    return found
