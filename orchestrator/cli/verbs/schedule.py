"""``fcctl schedule``: jobs at set times, within a budget."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from orchestrator import app
from orchestrator.base.errors import FcctlError, NotFoundError, did_you_mean
from orchestrator.cli.context import ON, Cli, CliGroup
from orchestrator.views.figures import local
from orchestrator.workspace.root import FILE_NAME

if TYPE_CHECKING:
    from orchestrator.schedules.due import Firing
    from orchestrator.workspace.workspace import Workspace


@click.group(cls=CliGroup)
def schedule() -> None:
    """Run jobs at set times, each within its budget."""


@schedule.command()
@click.argument("name")
@click.option("--cron", required=True, metavar="LINE",
              help="Cron expression of five fields, such as `0 2 * * 1-5`, or @daily, @hourly, ...")  # fmt: skip
@click.option("--job", required=True, metavar="JOB", help="Job to run.")
@ON
@click.option("--budget", type=float, metavar="USD", help="The most that one firing may cost.")
@click.option("--per-month", type=float, metavar="USD", help="The most that all firings of a calendar month may cost.")
@click.option("--timezone", metavar="ZONE", help="Time zone, such as Europe/Berlin (default: this computer's).")
@click.option(
    "--catch-up", type=float, metavar="MINUTES", help="Start a missed firing if it is at most this late. [60]"
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set an environment variable of the job.")
def add(
    cli: Cli, name: str, cron: str, job: str, target: str | None, budget: float | None, per_month: float | None,
    timezone: str | None, catch_up: float | None, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Add the schedule NAME to fcctl.toml."""
    from orchestrator.runs.job.plan import parse_settings
    from orchestrator.schedules import os_scheduler
    from orchestrator.schedules.due import upcoming
    from orchestrator.schedules.fire import checked
    from orchestrator.workspace import root

    workspace = cli.workspace()
    on = workspace.target(target)
    values = {
        "job": job, "on": target or on.name, "cron": cron, "timezone": timezone, "budget_usd": budget,
        "per_month_usd": per_month, "catch_up_minutes": catch_up, "settings": parse_settings(settings) or None,
    }  # fmt: skip
    given = {key: value for key, value in values.items() if value is not None}
    checked_job, searches = workspace.with_searches(workspace.jobs.get(job))
    present, caps = workspace.config.schedules, workspace.config.budget
    new = checked(name, given, present, caps, on, checked_job, searches)
    root.add_table(workspace.root / FILE_NAME, ("schedules", name), given)
    times = upcoming(new, datetime.now(UTC), 3)
    if cli.show({"schedule": name, "next": [t.isoformat() for t in times]}):
        return
    shown = ", ".join(local(t.timestamp()) for t in times) or "never"
    cli.note(f"added [schedules.{name}] to fcctl.toml; due {shown} (this computer's time)")
    if not os_scheduler.is_installed(workspace.root):
        cli.note("scheduler not installed; to install it: fcctl schedule install")


@schedule.command()
@click.argument("name")
def rm(cli: Cli, name: str) -> None:
    """Remove the schedule NAME from fcctl.toml. Its record of firings is kept."""
    from orchestrator.workspace import root

    workspace = cli.workspace()
    if name not in workspace.config.schedules:
        hint = f"{did_you_mean(name, workspace.config.schedules)}; to list schedules: fcctl schedule ls"
        raise NotFoundError(f"unknown schedule '{name}'", hint=hint)
    root.remove_table(workspace.root / FILE_NAME, ("schedules", name))
    cli.show({"removed": name})
    cli.note(f"removed [schedules.{name}] from fcctl.toml; its active runs continue")


@schedule.command()
@click.option("--firings", is_flag=True, help="Show each firing and its outcome, newest first.")
@click.option(
    "-n",
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of firings to show.",
)
def ls(cli: Cli, firings: bool, limit: int) -> None:
    """List the schedules, their next times in this computer's time, and the outcome of their last firings."""
    from orchestrator.schedules import os_scheduler
    from orchestrator.views.blocks import Text
    from orchestrator.views.table import show_blocks
    from orchestrator.views.tables import plan as tables

    workspace = cli.workspace()
    schedules, names = app.scheduler(workspace), workspace.config.schedules
    if firings:
        newest = sorted(
            ((n, f) for n in names for f in schedules.records.read(n)), key=lambda nf: nf[1].at, reverse=True
        )[:limit]
        cli.show(
            {"firings": [{"schedule": n, **f.model_dump(mode="json")} for n, f in newest]},
            lambda: show_blocks(cli.console, [tables.firings_grid(newest) if newest else Text("no firings yet")]),
        )
        return
    standing = schedules.statuses()
    if cli.json:
        installed = os_scheduler.is_installed(workspace.root)
        refused = [finding.as_json() for finding in os_scheduler.findings(workspace.root, lambda: standing)]
        listed = [tables.schedule_json(s) for s in standing]
        cli.emit({"installed": installed, "schedules": listed, "findings": refused})
        return
    tables.print_schedules(standing, cli.console)
    _print_findings(cli, workspace)
    if standing and not os_scheduler.is_installed(workspace.root):
        cli.note("scheduler not installed: fcctl schedule install, or fcctl schedule serve")


@schedule.command()
@click.option("--dry-run", is_flag=True, help="Print what would be installed.")
@click.option("--remove", is_flag=True, help="Uninstall the scheduler entry.")
def install(cli: Cli, dry_run: bool, remove: bool) -> None:
    """Install an entry so that this computer's own scheduler calls `fcctl schedule tick` every minute.

    Uses systemd user timers on Linux, launchd on macOS; elsewhere run `fcctl schedule serve`. One entry serves all
    present and future schedules of the workspace.
    """
    from orchestrator.schedules import os_scheduler
    from orchestrator.schedules.os_scheduler import Entry

    workspace = cli.workspace()
    kind, entry = os_scheduler.detect(), Entry.of(workspace.root)
    if dry_run:
        files = os_scheduler.render(kind, entry)
        cli.show(
            {"scheduler": kind, "files": files},
            lambda: click.echo("".join(f"# {kind}: {name}\n{text}\n" for name, text in files.items()), nl=False),
        )
        return
    done = (os_scheduler.uninstall if remove else os_scheduler.install)(kind, entry)
    if cli.show({"scheduler": kind, ("removed" if remove else "installed"): done}):
        return
    verb = "removed" if remove else "installed"
    cli.note("\n".join(f"{verb} {what}" for what in done) or "nothing was installed")
    _print_findings(cli, workspace)


def _print_findings(cli: Cli, workspace: Workspace) -> None:
    from orchestrator.schedules import os_scheduler

    for finding in os_scheduler.findings(workspace.root, app.scheduler(workspace).statuses):
        cli.note(f"{finding.id}: {finding.message}\n  fix: {finding.fix}")


@schedule.command()
def tick(cli: Cli) -> None:
    """Start due jobs, record missed firings, recover interrupted ones. The scheduler calls this."""
    decided = app.tick(cli)
    if cli.show({"firings": [{"schedule": n, **f.model_dump(mode="json")} for n, f in decided]}):
        return
    for name, firing in decided:
        cli.note(_firing_text(name, firing))


@schedule.command()
def serve(cli: Cli) -> None:
    """Start due jobs every minute in the foreground, for containers and computers without a scheduler. Ctrl-C stops it.

    If fcctl.toml becomes invalid, this prints the error once and starts no job until the file is valid again.
    """
    clock = app.clock()
    cli.workspace()  # one that is wrong from the beginning ends this at once
    cli.note(
        "starting the schedules of this workspace when they are due; Ctrl-C stops this; runs that it started continue"
    )
    problem = ""
    while True:
        problem = _serve_once(cli, problem)
        clock.sleep(60.0 - clock.now() % 60.0)


def _serve_once(cli: Cli, before: str) -> str:
    """One tick; what kept it from deciding, empty if nothing did. ``before``: what kept the last one."""
    from orchestrator.cli import failures

    cli.forget_workspace()  # fcctl.toml may have changed
    try:
        decided = app.tick(cli)
    except FcctlError as error:
        if error.message != before:
            failures.report(cli, error)
            cli.note("no schedule starts until this error is corrected; fcctl checks again every minute")
        return error.message
    if before:
        cli.note("error corrected: schedules start again")
    for name, firing in decided:
        cli.note(f"{local(firing.at)}  {_firing_text(name, firing)}")
    return ""


@schedule.command(hidden=True)
@click.argument("name")
@click.option("--due", type=float, required=True, metavar="SECONDS", help="The time it was due, epoch seconds.")
def fire(cli: Cli, name: str, due: float) -> None:
    """Carry out one firing, from its start to its record. `fcctl schedule tick` calls this."""
    app.fire(cli, name, due)


def _firing_text(name: str, firing: Firing) -> str:
    reason = f": {firing.reason}" if firing.reason else ""
    return f"{name} ({local(firing.due)}): {firing.outcome}{reason}"
