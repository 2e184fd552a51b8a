"""``fcctl run``: source to results in one command."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from fcctl_remote.base.durations import seconds
from orchestrator.app import opened
from orchestrator.base.errors import UsageError
from orchestrator.cli.context import Cli, CliCommand, Parsed
from orchestrator.cli.failures import report_run
from orchestrator.cli.launching import (
    Launching,
    collect_and_finish,
    confirm,
    launch,
    launching,
    revision,
    workspace_with,
)

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cli.verbs.results import Comparing
    from orchestrator.machines.targets import Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.revision import Revision
    from orchestrator.runs.run import Finished
    from orchestrator.runs.services import Services


@click.command(cls=CliCommand)
@click.argument("job", required=False)
@launching
@click.option("--steps", metavar="A..B", help="Only these steps: `build..test`, `test..`, `..build` or `build`.")
@click.option("--publish", metavar="DIR", help="Copy artifacts to DIR/artifacts and the report to DIR/reports.")
@click.option("--skip", multiple=True, metavar="STEP", help="Skip this step; repeat for several steps.")
@click.option("--compare", "against", metavar="RUN", help="Compare with RUN at the end: an id, a tag, `baseline`.")
@click.option(
    "--fail-on", multiple=True, metavar="WHAT", help="With --compare: results that give exit code 9 (default: slower)."
)
@click.option("--repeat", type=click.IntRange(1, 100), default=1, metavar="N",
              help="Run the job N times; --compare uses all N runs.")  # fmt: skip
@click.option("--resume", "cut_off", metavar="RUN", help="Resume RUN, which was interrupted.")
@click.option(
    "--timeout",
    type=Parsed(seconds),
    metavar="TIME",
    help="With --resume: a time limit of at least this for its first unfinished step.",
)
def run(
    cli: Cli, job: str | None, how: Launching, steps: str | None, skip: tuple[str, ...], against: str | None,
    fail_on: tuple[str, ...], repeat: int, cut_off: str | None, timeout: float | None,
) -> None:  # fmt: skip
    """Send the source to a target, run JOB's steps and gates there, collect the results.

    fcctl starts a cloud machine for the run and releases it afterwards. It shows the worst-case cost and asks (`--yes`
    answers yes), unless a cap of [budget] or of the job covers it. Ctrl-C detaches and never stops the run: `fcctl
    attach` follows it again, `fcctl cancel` stops it. Exit code 0: the run passed; 100: a step or a gate failed; 5: the
    run reached its cap; 9: it passed, and --compare found a slower benchmark, or what --fail-on names.

    A run whose worst case exceeds a cap is refused. With `--stop-at-budget` it starts, and fcctl stops it before it
    reaches the cap: the active step gets SIGTERM and a short time to end, the results so far are collected, and the
    machine is released. The machine and the cloud enforce this limit even if this computer sleeps.

    `--rev` runs a branch, a tag or a commit: its source and its job file, or the working tree's job if it has none.
    Targets and budgets are those of the working tree.

    `--resume` continues an interrupted run at its first unfinished step, on the same machine, with the same source. A
    run is interrupted if its machine was stopped or rebooted, it reached its cap, it was cancelled, or a step was
    killed or timed out. Build results are still there, and gates see the documents of finished steps. `--timeout` gives
    a step that timed out more time.
    """
    if cut_off is not None:
        if job or steps or skip or against or fail_on or repeat > 1 or how != how.only("detach"):
            raise click.UsageError("--resume keeps the run's job and options: of those, only --timeout can be given")
        _resume(cli, cut_off, timeout, how)
        return
    if timeout is not None:
        raise click.UsageError("--timeout needs --resume; for a new run, set the step's timeout in the job file")
    if job is None:
        raise UsageError("missing argument 'JOB'", hint="to list the jobs: fcctl jobs ls")
    if how.detach and (against or repeat > 1 or how.publish):
        option = "--compare" if against else "--repeat" if repeat > 1 else "--publish"
        raise click.UsageError(f"{option} cannot be used with --detach: it needs the results of the run")
    if fail_on and not against:
        raise click.UsageError("--fail-on needs --compare RUN")
    name = job

    def compare(services: Services) -> Comparing:
        from orchestrator.cli.verbs.results import Comparing

        return Comparing.of(services, str(against), fail_on, cli.workspace().root)

    with revision(cli, how) as there:
        wanted = partial(_wanted, cli, there, name=name, how=how, steps=steps, skip=skip)
        if repeat == 1 or how.dry_run:
            launch(cli, how, wanted, there, compare if against else None)
        else:
            _repeat(cli, how, wanted, there, repeat, compare if against else None)


def _repeat(
    cli: Cli, how: Launching, wanted: Callable[[Target], RunRequest], there: Revision | None, count: int,
    compare: Callable[[Services], Comparing] | None,
) -> None:  # fmt: skip
    """``count`` runs, one after the other, until one does not pass; then all of them compared as one side."""
    with cli.services() as services:
        comparing = compare(services) if compare else None
    done: list[str] = []

    def tell(record: RunRecord, folder: Path) -> None:
        done.append(record.run_id)
        report_run(cli, record, folder)

    for number in range(1, count + 1):
        cli.note(f"run {number} of {count}")
        launch(cli, how, wanted, there, tell=tell)
    cli.note(f"to compare all {count} runs as one side: fcctl results compare RUN {','.join(done)}")
    if comparing is not None:
        with cli.services() as services:
            comparing.report(cli, services, done)


def _wanted(
    cli: Cli, there: Revision | None, target: Target, name: str, how: Launching, steps: str | None,
    skip: tuple[str, ...],
) -> RunRequest:  # fmt: skip
    from orchestrator.runs.job.plan import parse_settings, without
    from orchestrator.runs.job.prepare import RunRequest

    workspace = workspace_with(cli, there, lambda one: one.jobs.is_own(name), f"job '{name}'")
    job, searches = workspace.with_searches(without(workspace.jobs.get(name), skip), steps)
    builder = workspace.target(target.builder) if target.builder is not None else None
    return RunRequest(
        job, target, parse_settings(how.settings), steps, how.budget, how.stop_at_budget, searches, builder=builder
    )


def _resume(cli: Cli, name: str, timeout: float | None, how: Launching) -> None:
    from orchestrator.runs.cost.estimate import with_own_rates
    from orchestrator.runs.job.prepare import check_resumed
    from orchestrator.runs.resume_run import resume_run

    budget = cli.workspace().config.budget

    def asked(saved: SavedPlan) -> None:
        with services.observer.aside():
            confirm(cli, [saved], capped=budget.per_run_usd is not None)

    def priced(saved: SavedPlan) -> SavedPlan:
        now = with_own_rates(services, saved, budget, how.accepted)
        check_resumed(now, budget)
        return now

    with opened(cli) as services:
        run_id = services.store.resolve(name)

        def goes() -> Finished | None:
            return resume_run(services, run_id, asked, detach=how.detach, timeout_s=timeout, price=priced)

        collect_and_finish(cli, services, goes)
