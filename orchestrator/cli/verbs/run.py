"""``fcctl run``: source to results in one command."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator.app import opened
from orchestrator.base.times import seconds
from orchestrator.cli.context import Cli
from orchestrator.cli.failures import report_run
from orchestrator.cli.launching import Launching, collect_and_finish, confirm, launch, launching

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.cli.verbs.results_compare import Comparing
    from orchestrator.machines.targets import Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.run import Finished
    from orchestrator.runs.services import Services


@click.command()
@click.argument("job", required=False)
@launching
@click.option("--steps", metavar="A..B", help="Only these steps: `build..test`, `test..`, `..build` or `build`.")
@click.option("--compare", "against", metavar="RUN", help="Compare with RUN at the end: an id, a tag, `baseline`.")
@click.option("--fail-on", multiple=True, metavar="WHAT", help="With --compare, exit 9 on it; `slower` if left out.")
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=1, metavar="N", help="Run it N times; --compare takes all of them."
)
@click.option("--resume", "cut_off", metavar="RUN", help="Continue RUN, which was cut off.")
@click.option("--timeout", metavar="TIME", help="With --resume: so long may its first unfinished step take at least.")
@click.pass_obj
def run(
    cli: Cli,
    job: str | None,
    how: Launching,
    steps: str | None,
    against: str | None,
    fail_on: tuple[str, ...],
    repeat: int,
    cut_off: str | None,
    timeout: str | None,
) -> None:
    """Send the source to a target, run JOB's gated steps there, collect the results.

    A cloud machine is woken for it and released afterwards; what that may cost is asked for (`--yes` agrees), unless a
    cap of [budget] or of the job covers it. Ctrl-C detaches and never stops the run: `fcctl attach` comes back to it,
    `fcctl cancel` stops it. Exit code 0 if the run passed, 100 if a step or a gate failed, 5 if it was ended because
    its money was spent, 9 if it passed and --compare found something slower, or as --fail-on says.

    A run that could cost more than it may is refused. With `--stop-at-budget` it starts all the same, and is ended in
    time: the step at work gets a notice and a moment, what there is by then is collected, the machine is released. The
    machine keeps to that by itself, and so does the cloud, should this computer sleep.

    With `--resume` the first unfinished step of a run that was cut off (its machine was stopped or rebooted, its money
    spent, it was cancelled, or the step killed or out of time) is the first one, on the same machine, with the same
    source: what was built there is there, and gates see the finished steps' documents. A step whose time was over
    gets more with `--timeout`.
    """
    if cut_off is not None:
        if job or steps or against or fail_on or repeat > 1 or how != how.only("detach"):
            raise click.UsageError(
                "--resume continues a run as it is: it takes neither JOB nor an option of it but --timeout"
            )
        _resume(cli, cut_off, timeout, how)
        return
    if timeout is not None:
        raise click.UsageError("--timeout is for --resume: else a step's time is in the job's file")
    if job is None:
        raise click.UsageError("Missing argument 'JOB'.")
    if how.detach and (against or repeat > 1):
        option = "--compare" if against else "--repeat"
        raise click.UsageError(f"{option} needs the run's end, and --detach does not wait for it")
    if fail_on and not against:
        raise click.UsageError("--fail-on fails a comparison: add --compare RUN")
    name = job

    def compare(services: Services) -> Comparing:
        from orchestrator.cli.verbs.results_compare import Comparing

        return Comparing.of(services, str(against), fail_on, cli.workspace().root)

    wanted = partial(_wanted, cli, name=name, how=how, steps=steps)
    if repeat == 1 or how.dry_run:
        launch(cli, how, wanted, compare if against else None)
    else:
        _repeat(cli, how, wanted, repeat, compare if against else None)


def _repeat(
    cli: Cli,
    how: Launching,
    wanted: Callable[[Target], RunRequest],
    count: int,
    compare: Callable[[Services], Comparing] | None,
) -> None:
    """``count`` runs, one after the other, until one does not pass; then all of them compared as one side."""
    with cli.services() as services:
        comparing = compare(services) if compare else None
    done: list[str] = []

    def tell(record: RunRecord, folder: Path) -> None:
        done.append(record.run_id)
        report_run(cli, record, folder)

    for number in range(1, count + 1):
        cli.note(f"run {number} of {count}")
        launch(cli, how, wanted, tell=tell)
    cli.note(f"compare all {count} as one side: fcctl results compare RUN {','.join(done)}")
    if comparing is not None:
        with cli.services() as services:
            comparing.report_all(cli, services, done)


def _wanted(cli: Cli, target: Target, name: str, how: Launching, steps: str | None) -> RunRequest:
    from orchestrator.runs.job.plan import parse_settings
    from orchestrator.runs.job.prepare import RunRequest

    workspace = cli.workspace()
    job, searches = workspace.with_searches(workspace.jobs.get(name), steps)
    return RunRequest(job, target, parse_settings(how.settings), steps, how.budget, how.stop_at_budget, searches)


def _resume(cli: Cli, name: str, timeout: str | None, how: Launching) -> None:
    from orchestrator.runs.cost.estimate import with_own_rates
    from orchestrator.runs.resume_run import resume_run
    from orchestrator.tune.fleet.resume import check_alone

    try:
        limit = seconds(timeout) if timeout is not None else None
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    budget = cli.workspace().config.budget

    def asked(saved: SavedPlan) -> None:
        with services.observer.aside():
            confirm(cli, [saved], capped=budget.per_run_usd is not None)

    with opened(cli) as services:
        run_id = services.store.resolve(name)

        def goes() -> Finished | None:
            return resume_run(
                services, run_id, asked, check_alone, detach=how.detach, timeout_s=limit,
                price=lambda saved: with_own_rates(services, saved, budget, how.accepted),
            )  # fmt: skip

        collect_and_finish(cli, services, goes)
