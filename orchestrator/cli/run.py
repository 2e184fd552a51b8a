"""``fcctl run``: source to results in one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.domain.budget import Budget
    from orchestrator.domain.records import RunRecord
    from orchestrator.domain.target import Target
    from orchestrator.ports import Services
    from orchestrator.workflows.link import Link
    from orchestrator.workflows.prepare import Prepared
    from orchestrator.workflows.waking import Waking


@click.command()
@click.argument("job")
@click.option("--on", "target", metavar="TARGET", help="Where to run; the workspace's default target otherwise.")
@click.option("-d", "--detach", is_flag=True, help="Return as soon as the host has the run; print its id.")
@click.option("--dry-run", is_flag=True, help="Print the plan and stop: nothing is sent or started.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replace a value of the job's env.")
@click.option("--steps", metavar="A..B", help="Only these steps: `build..test`, `test..`, `..build` or `build`.")
@click.option("--restart", is_flag=True, help="Stop a cloud machine that runs already; it gets a time limit anew.")
@click.option("--allow-unfenced", is_flag=True, help="Use a cloud machine that runs without a time limit.")
@click.pass_obj
def run(
    cli: Cli,
    job: str,
    target: str | None,
    detach: bool,
    dry_run: bool,
    settings: tuple[str, ...],
    steps: str | None,
    restart: bool,
    allow_unfenced: bool,
) -> None:
    """Send the source to a target, run JOB's gated steps there, bring the results home.

    A machine in a cloud is woken for it and let go afterwards; what that may cost is asked for (`--yes` agrees), unless
    a cap of [budget] or of the job covers it. Ctrl-C detaches and never stops the run: `fcctl attach` comes back to it,
    `fcctl cancel` stops it. Exit code 0 if the run passed, 100 if a step or a gate failed.
    """
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
        prepared = _prepare(cli, services, on, job, settings, steps)
        if dry_run:
            observer.close()
            _show_plan(cli, prepared)
            return
        with observer.aside():
            _agree(cli, prepared, workspace.config.budget)
        _launch(cli, services, link, prepared, Waking(restart, allow_unfenced), detach=detach)


def _prepare(
    cli: Cli, services: Services, target: Target, job: str, settings: tuple[str, ...], steps: str | None
) -> Prepared:
    from orchestrator.domain.plan import parse_settings
    from orchestrator.workflows.prepare import Wanted, prepare

    workspace = cli.workspace()
    wanted = Wanted(workspace.jobs.get(job), target, parse_settings(settings), steps)
    return prepare(services, workspace.root, workspace.config.project.name, workspace.config.budget, wanted)


def _agree(cli: Cli, prepared: Prepared, budget: Budget) -> None:
    """Ask before anything is spent; not where the user has set a cap, which the plan is held to."""
    saved = prepared.saved
    if saved.fence_s is None or saved.target.kind == "sandbox" or saved.worst_case_usd == 0:
        return
    text = (
        f"{saved.plan.job} on {saved.target.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops the"
        f" machine after {saved.fence_s / 60:.0f} minutes"
    )
    if budget.per_run_usd is not None or prepared.job_cap_usd is not None:
        cli.note(text)
    else:
        cli.confirm(text)


def _launch(cli: Cli, services: Services, link: Link, prepared: Prepared, waking: Waking, *, detach: bool) -> None:
    from orchestrator.workflows.resume import remind
    from orchestrator.workflows.run import Detached, run

    remind(services)
    run_id = prepared.saved.plan.run_id
    if not cli.quiet:
        services.observer.note(f"run {run_id}")
    try:
        finished = run(services, link, prepared.saved, prepared.source, detach=detach, waking=waking)
    except Detached as e:
        services.observer.close()
        raise KeyboardInterrupt(say_detached(cli, e.run_id)) from None
    services.observer.close()
    if finished is None:
        _say_submitted(cli, run_id)
    else:
        report(cli, finished.record, services.store.folder(run_id))


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
