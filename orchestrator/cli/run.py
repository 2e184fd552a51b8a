"""``fcctl run``: source to results in one command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.cli.results_compare import Comparing
    from orchestrator.domain.records import RunRecord
    from orchestrator.domain.saved_plan import SavedPlan
    from orchestrator.domain.target import Target
    from orchestrator.ports import Services
    from orchestrator.workflows.link import Link
    from orchestrator.workflows.prepare import Prepared
    from orchestrator.workflows.run import Finished
    from orchestrator.workflows.waking import Waking


@click.command()
@click.argument("job", required=False)
@click.option("--on", "target", metavar="TARGET", help="Where to run; the workspace's default target otherwise.")
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the host has the run; print its id.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: nothing is sent or started.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replace a value of the job's env.")
@click.option("--steps", metavar="A..B", help="Only these steps: `build..test`, `test..`, `..build` or `build`.")
@click.option("--compare", "against", metavar="RUN", help="Compare with RUN at the end: an id, a tag, `baseline`.")
@click.option("--fail-on", multiple=True, metavar="WHAT", help="With --compare, exit 9 on slower:3%, inconclusive, ...")
@click.option("--resume", "cut_off", metavar="RUN", help="Go on with RUN, whose machine was stopped under it.")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="USD", help="What this run may cost.")
@click.option("--stop-at-budget", is_flag=True, help="Start even if it may cost more; it is ended at its tightest cap.")
@click.option("--restart", is_flag=True, help="Stop a cloud machine that runs already; it gets a time limit anew.")
@click.option("--allow-unfenced", is_flag=True, help="Use a cloud machine that runs without a time limit.")
@click.pass_obj
def run(
    cli: Cli,
    job: str | None,
    target: str | None,
    detach: bool,
    dry_run: bool,
    settings: tuple[str, ...],
    steps: str | None,
    against: str | None,
    fail_on: tuple[str, ...],
    cut_off: str | None,
    budget: float | None,
    stop_at_budget: bool,
    restart: bool,
    allow_unfenced: bool,
) -> None:
    """Send the source to a target, run JOB's gated steps there, bring the results home.

    A machine in a cloud is woken for it and let go afterwards; what that may cost is asked for (`--yes` agrees), unless
    a cap of [budget] or of the job covers it. Ctrl-C detaches and never stops the run: `fcctl attach` comes back to it,
    `fcctl cancel` stops it. Exit code 0 if the run passed, 100 if a step or a gate failed, 5 if it was ended because
    its money was spent, 9 if it passed and --fail-on found something.

    A run that could cost more than it may is refused. With `--stop-at-budget` it starts all the same, and is ended in
    time: the step at work gets a notice and a moment, what there is by then comes home, the machine is let go. The
    machine keeps to that by itself, and so does the cloud, should this computer sleep.

    With `--resume` the first unfinished step of a run that was cut off is the first one, on the same machine, with the
    same source: what was built there is there, and gates see the finished steps' documents.
    """
    if cut_off is not None:
        if job or target or dry_run or settings or steps or against or fail_on or budget or stop_at_budget:
            raise click.UsageError(
                "--resume goes on with a run as it is: it takes neither JOB nor another option of it"
            )
        _resume(cli, cut_off, detach=detach)
        return
    if job is None:
        raise click.UsageError("Missing argument 'JOB'.")
    if detach and against:
        raise click.UsageError("--compare needs the run's end, and --detach does not wait for it")
    if fail_on and not against:
        raise click.UsageError("--fail-on fails a comparison: add --compare RUN")
    from orchestrator import app
    from orchestrator.workflows.waking import Waking

    workspace = cli.workspace()
    on = workspace.target(target)
    hosts = app.connector()
    with app.observing(cli) as observer, app.link(hosts, on, observer) as link:
        if not dry_run and app.may_be_up(on):
            link.open_soon()  # the host takes its time; all that follows is loaded and read meanwhile
            hosts.prepare()
        services = app.services(cli, observer, hosts)
        comparing = _comparing(services, against, fail_on) if against else None
        prepared = _prepare(cli, services, on, job, settings, steps, budget, stop_at_budget)
        if dry_run:
            observer.close()
            _show_plan(cli, prepared)
            return
        with observer.aside():
            _agree(cli, prepared.saved, capped=prepared.capped)
        _launch(cli, services, link, prepared, Waking(restart, allow_unfenced), comparing, detach=detach)


def _comparing(services: Services, against: str, fail_on: tuple[str, ...]) -> Comparing:
    """What to compare with, known to be there before anything is sent or paid for."""
    from orchestrator.cli.results_compare import Comparing

    return Comparing.of(services, against, fail_on)


def _prepare(
    cli: Cli,
    services: Services,
    target: Target,
    job: str,
    settings: tuple[str, ...],
    steps: str | None,
    budget_usd: float | None,
    stop_at_budget: bool,
) -> Prepared:
    from orchestrator.domain.plan import parse_settings
    from orchestrator.workflows.prepare import Wanted, prepare

    workspace = cli.workspace()
    wanted = Wanted(workspace.jobs.get(job), target, parse_settings(settings), steps, budget_usd, stop_at_budget)
    return prepare(services, workspace.root, workspace.config.project.name, workspace.config.budget, wanted)


def _resume(cli: Cli, name: str, *, detach: bool) -> None:
    from orchestrator.app import opened
    from orchestrator.workflows.go_on import go_on

    budget = cli.workspace().config.budget

    def agree(saved: SavedPlan) -> None:
        with services.observer.aside():
            _agree(cli, saved, capped=budget.per_run_usd is not None)

    with opened(cli) as services:
        _see_home(cli, services, lambda: go_on(services, services.store.resolve(name), agree, detach=detach))


def _agree(cli: Cli, saved: SavedPlan, *, capped: bool) -> None:
    """Ask before anything is spent; not where the user has set a cap, which the plan is held to."""
    if saved.fence_s is None or saved.target.kind == "sandbox" or saved.worst_case_usd == 0:
        return
    text = (
        f"{saved.plan.job} on {saved.target.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops the"
        f" machine after {saved.fence_s / 60:.0f} minutes"
    )
    if saved.stop_at_usd is not None:
        text += f", and the run is ended before it has cost ${saved.stop_at_usd:.2f}"
    if capped:
        cli.note(text)
    else:
        cli.confirm(text)


def _launch(
    cli: Cli,
    services: Services,
    link: Link,
    prepared: Prepared,
    waking: Waking,
    comparing: Comparing | None,
    *,
    detach: bool,
) -> None:
    from orchestrator.workflows.resume import remind
    from orchestrator.workflows.run import run

    remind(services)
    if not cli.quiet:
        services.observer.note(f"run {prepared.saved.plan.run_id}")
    saved, source = prepared.saved, prepared.source
    goes = partial(run, services, link, saved, source, detach=detach, waking=waking)
    _see_home(cli, services, goes, saved, comparing)


def _see_home(
    cli: Cli,
    services: Services,
    goes: Callable[[], Finished | None],
    saved: SavedPlan | None = None,
    comparing: Comparing | None = None,
) -> None:
    """Print how the run ended, or that it goes on without this terminal."""
    from orchestrator.workflows.run import Detached

    try:
        finished = goes()
    except Detached as e:
        services.observer.close()
        raise KeyboardInterrupt(say_detached(cli, e.run_id)) from None
    services.observer.close()
    if finished is None:
        _say_submitted(cli, saved.plan.run_id if saved else services.store.resolve("last"))
    elif comparing is not None and finished.record.exit_code == 0:
        comparing.report(cli, services, finished.record)
    else:
        report(cli, finished.record, services.store.folder(finished.record.run_id))


def report(cli: Cli, record: RunRecord, folder: Path) -> None:
    """Print how a run ended, and leave with its exit code. With ``--quiet``, one that passed is not worth a word."""
    if cli.json:
        cli.emit(record.model_dump(mode="json"))
    elif record.exit_code or not cli.quiet:
        from orchestrator.reports.run_table import print_run_summary

        print_run_summary(record, folder, cli.console)
    if record.exit_code:
        raise SystemExit(record.exit_code)


def say_detached(cli: Cli, run_id: str) -> str:
    """Tell what Ctrl-C did, and the two ways on; returns it too."""
    message = (
        f"detached: run {run_id} goes on without this terminal\n"
        f"  follow it:  fcctl attach {run_id}\n"
        f"  stop it:    fcctl cancel {run_id}"
    )
    cli.note(message)
    return message


def _say_submitted(cli: Cli, run_id: str) -> None:
    if cli.json:
        cli.emit({"run_id": run_id, "status": "submitted"})
        return
    click.echo(run_id)
    cli.note(f"submitted; follow it with: fcctl attach {run_id}")


def _show_plan(cli: Cli, prepared: Prepared) -> None:
    from orchestrator.reports.plan_table import plan_json, print_plan

    if cli.json:
        cli.emit(plan_json(prepared))
    else:
        print_plan(prepared, cli.console)
