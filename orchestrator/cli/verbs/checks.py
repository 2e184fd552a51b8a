"""``fcctl doctor`` and ``fcctl preflight``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from orchestrator import app
from orchestrator.app import observing, opened
from orchestrator.base import installation, safe_paths
from orchestrator.base.errors import ConfigError, DoctorFailed, FcctlError, HostUnreachable, NotFoundError, plural
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.cli.context import Cli, CliCommand, accepting_prices

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.base.installation import Finding
    from orchestrator.machines.targets import AcceptedPrices, CloudTarget, SandboxTarget, Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.services import Services
    from orchestrator.workspace.workspace import Workspace

_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


@click.command(cls=CliCommand)
@click.option("--on", "target", metavar="TARGET", help="Also log in to TARGET and check it.")
def doctor(cli: Cli, target: str | None) -> int:
    """Check this computer, the workspace, its jobs and, with --on, a target. Prints one fix for each problem.

    For a cloud target this checks credentials, permissions, quotas and network access, and the machine if it is on; it
    does not start the machine. `fcctl preflight` checks the GPU, CUDA and PyTorch. Exit code 10: at least one error.
    """
    findings = []
    for finding in _findings(cli, target):
        findings.append(finding)
        if not cli.json:
            _print(cli, finding, new=len(findings) == 1 or findings[-2].section != finding.section)
    counts = {status: sum(f.status == status for f in findings) for status in _MARKS}
    cli.show({"findings": [f.as_json() for f in findings], "summary": counts})
    cli.note(f"\n{plural(counts['fail'], 'error')}, {plural(counts['warn'], 'warning')}, {counts['ok']} ok")
    return DoctorFailed.exit_code if counts["fail"] else 0


def _findings(cli: Cli, name: str | None) -> Iterator[Finding]:
    from orchestrator.workspace import doctor as checks

    yield from checks.check_programs(runs_here=name == "local")
    try:
        workspace = cli.workspace()
    except (ConfigError, NotFoundError) as error:
        wrong = isinstance(error, ConfigError) or name is not None
        yield installation.Finding("workspace", "fcctl.toml", "fail" if wrong else "warn", error.message, error.hint)
        return
    yield installation.Finding("workspace", "fcctl.toml", "ok", str(workspace.root / "fcctl.toml"))
    yield checks.check_git(workspace.root)
    yield checks.check_results(workspace.results_dir)
    yield from checks.check_jobs(_job_problems(workspace))
    if workspace.config.schedules:
        from orchestrator.schedules import os_scheduler

        yield from os_scheduler.findings(workspace.root, app.scheduler(workspace).statuses)
    yield from checks.check_known_hosts(workspace.config.targets.values() if name is None else ())
    if name is not None:
        yield from _target(cli, workspace, name)


def _target(cli: Cli, workspace: Workspace, name: str) -> Iterator[Finding]:
    from orchestrator.machines.targets import CloudTarget, SandboxTarget
    from orchestrator.workspace import doctor as checks

    try:
        target = workspace.target(name)
    except NotFoundError as error:
        yield installation.Finding("targets", name, "fail", error.message, error.hint)
        return
    yield from checks.check_known_hosts([target])
    with observing(cli, quiet=True) as watcher:
        # Log in without asking for a passphrase: a scheduled run has nobody to ask.
        services = app.services(cli, watcher, app.connector(may_ask=False))
        if isinstance(target, CloudTarget | SandboxTarget):
            yield from _cloud_machine(services, target)
        else:
            yield from checks.check_target(target, services.hosts, time.time)


def _cloud_machine(services: Services, target: CloudTarget | SandboxTarget) -> Iterator[Finding]:
    """Whether the machine could be woken; and the machine itself, if it is on."""
    from orchestrator.machines.cloud import Power
    from orchestrator.machines.targets import SandboxTarget
    from orchestrator.providers.registry import PROVIDERS
    from orchestrator.workspace import doctor as checks

    section = f"target {target.name}"
    if isinstance(target, SandboxTarget):
        yield from checks.check_sandbox(target)
    try:
        machine = services.clouds.resolve(target)
    except FcctlError as error:
        yield installation.Finding(section, "cloud", "fail", error.message, error.hint)
        return
    checkup = PROVIDERS[machine.kind].checkup(machine, services.clouds, services.book)
    yield from checkup.findings()
    instance = checkup.machine
    if instance is None:
        return
    if instance.power is not Power.RUNNING:
        yield installation.Finding(section, "reachable", "ok", f"{instance.name} is off: login not checked")
    elif services.book.known(instance.project, instance.name) is None:
        why = f"{instance.name} is on, but this computer has no login data for it"
        yield installation.Finding(section, "reachable", "warn", why, f"fcctl hosts up {target.name}")
    else:
        yield from checks.check_target(target, services.hosts, time.time)


def _job_problems(workspace: Workspace) -> dict[str, list[str]]:
    files = workspace.jobs
    return {name: [p.in_full() for p in files.check(files.path(name))] for name in files.names()}


def _print(cli: Cli, finding: Finding, *, new: bool) -> None:
    from rich.text import Text

    if new:
        cli.console.print(Text(finding.section, style="bold"))
    mark, style = _MARKS[finding.status]
    cli.console.print(Text.assemble("  ", (mark, style), "  ", clean(f"{finding.id}: {finding.message}", 1000)))
    if finding.fix:
        cli.console.print(Text.assemble("        fix: ", (clean(finding.fix, 1000), "cyan")))


#: The job that does the same as a run, its step, and the document that the step leaves.
JOB, STEP, DOCUMENT = "preflight", "preflight", "environment"
LOG_BYTES = 1024 * 1024


@click.command(cls=CliCommand)
@click.option("--on", "target", metavar="TARGET", help="Target to check (default: the workspace's default target).")
@accepting_prices
def preflight(cli: Cli, target: str | None, accepted: AcceptedPrices) -> None:
    """Check GPU, CUDA toolkit, Nsight Compute, PyTorch CUDA and environment of a target.

    If the target is a cloud machine that is off, this starts the machine, checks it, and stops it again, as `fcctl run
    preflight` does. It shows the worst-case cost and asks first; `--yes` answers yes.

    Exit code 0: all pass; 1: warnings; 2: critical errors.
    """
    from orchestrator.runs.reopen import new_link

    chosen = cli.workspace().target(target)
    with opened(cli) as services:
        services.observer.phase("preflight", chosen.name)
        try:
            with new_link(services, chosen) as link:
                report = link.call(lambda s: s.probe(chosen.env))
        except HostUnreachable:
            if not _is_off(services, chosen):
                raise
            report = None
    if report is None:
        _run_it(cli, chosen, accepted)
        return
    cli.show(report["document"], lambda: click.echo(clean_text(report["text"])))
    raise SystemExit(report["exit_code"])


def _is_off(services: Services, target: Target) -> bool:
    """Whether the target's machine is one of a cloud, which says that it is off or that there is none."""
    from orchestrator.machines.provision.ready import find_machine, find_machines

    machine = find_machine(services, target)
    if machine is None:
        return False
    try:
        return not any(one.billed for one in find_machines(services.clouds.open(machine), machine, everywhere=True))
    except FcctlError:
        return False


def _run_it(cli: Cli, target: Target, accepted: AcceptedPrices) -> None:
    """Wakes the machine for a run of the preflight job, and releases it."""
    from orchestrator.cli.launching import Launching, launch
    from orchestrator.runs.job.prepare import RunRequest

    cli.note(f"the machine of {target.name} is off; fcctl starts it for this check")
    how = Launching(target.name, accept_price=accepted.own, accept_old_prices=accepted.old)
    job = cli.workspace().jobs.built_in(JOB)
    launch(cli, how, lambda on: RunRequest(job, on, {}), None, tell=partial(_tell, cli))


def _tell(cli: Cli, record: RunRecord, folder: Path) -> None:
    """Prints the preflight document that the run collected; without one, how the run ended."""
    from orchestrator.cli.failures import report_run
    from orchestrator.results.documents import load

    step = next((step for step in record.steps if step.id == STEP and step.exit_code in (0, 1, 2)), None)
    log = safe_paths.tail(folder, step.log, LOG_BYTES) if step is not None and step.log else None
    documents = load(record, folder).of(DOCUMENT)
    if step is None or log is None or not documents:
        report_run(cli, record, folder)
        return
    if not cli.show(documents[0].content):
        click.echo(clean_text(log.data.decode(errors="replace")))
        emulated = " (emulated)" if record.cost.emulated else ""
        cli.note(f"starting it cost ${record.cost.usd:.4f}{emulated}; run {record.run_id}")
    raise SystemExit(step.exit_code)
