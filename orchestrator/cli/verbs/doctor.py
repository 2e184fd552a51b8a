"""``fcctl doctor``: is everything in place?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from orchestrator.base.findings import Finding
    from orchestrator.machines.targets import CloudTarget, SandboxTarget
    from orchestrator.runs.services import Services
    from orchestrator.workspace.workspace import Workspace

_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "red")}


@click.command()
@click.option("--on", "target", metavar="TARGET", help="Also log in to TARGET and look at it.")
@click.pass_obj
def doctor(cli: Cli, target: str | None) -> int:
    """Check this machine, the workspace, its jobs and, with --on, the way to a target; each finding with one fix.

    A machine of a cloud is not woken for that: credentials, permissions, quotas and the way in are looked at, and the
    machine if it is on. The GPU, CUDA and PyTorch of a target are what `fcctl preflight` checks. Exit code 10 if
    something is wrong.
    """
    from orchestrator.base.errors import DoctorFailed

    findings = []
    for finding in _findings(cli, target):
        findings.append(finding)
        if not cli.json:
            _print(cli, finding, new=len(findings) == 1 or findings[-2].section != finding.section)
    counts = {status: sum(f.status == status for f in findings) for status in _MARKS}
    if cli.json:
        cli.emit({"findings": [f.as_json() for f in findings], "summary": counts})
    else:
        cli.note(f"\n{counts['fail']} wrong, {counts['warn']} to know about, {counts['ok']} in order")
    return DoctorFailed.exit_code if counts["fail"] else 0


def _findings(cli: Cli, name: str | None) -> Iterator[Finding]:
    from orchestrator.base import findings as findings_module
    from orchestrator.base.errors import ConfigError, NotFoundError
    from orchestrator.machines.connect.ssh.config import host_key
    from orchestrator.workspace import doctor as checks

    yield from checks.check_programs(runs_here=name == "local")
    try:
        workspace = cli.workspace()
    except (ConfigError, NotFoundError) as error:
        wrong = isinstance(error, ConfigError) or name is not None
        yield findings_module.Finding("workspace", "fcctl.toml", "fail" if wrong else "warn", error.message, error.hint)
        return
    yield findings_module.Finding("workspace", "fcctl.toml", "ok", str(workspace.root / "fcctl.toml"))
    yield checks.check_git(workspace.root)
    yield checks.check_results(workspace.results_dir)
    yield from checks.check_jobs(_job_problems(workspace))
    yield from checks.check_known_hosts(workspace.config.targets.values() if name is None else (), host_key)
    if name is not None:
        yield from _target(cli, workspace, name)


def _target(cli: Cli, workspace: Workspace, name: str) -> Iterator[Finding]:
    from orchestrator.base import findings as findings_module
    from orchestrator.base.errors import NotFoundError
    from orchestrator.machines.connect.ssh.config import host_key
    from orchestrator.machines.targets import CloudTarget, SandboxTarget
    from orchestrator.workspace import doctor as checks

    try:
        target = workspace.target(name)
    except NotFoundError as error:
        yield findings_module.Finding("targets", name, "fail", error.message, error.hint)
        return
    yield from checks.check_known_hosts([target], host_key)
    with cli.services() as services:
        if isinstance(target, CloudTarget | SandboxTarget):
            yield from _cloud_machine(services, target)
        else:
            yield from checks.check_target(target, services.hosts, time.time)


def _cloud_machine(services: Services, target: CloudTarget | SandboxTarget) -> Iterator[Finding]:
    """Whether the machine could be woken; and the machine itself, if it is on."""
    from orchestrator.base import findings as findings_module
    from orchestrator.base.errors import FcctlError
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
        yield findings_module.Finding(section, "cloud", "fail", error.message, error.hint)
        return
    checkup = PROVIDERS[machine.kind].checkup(machine, services.clouds, services.book)
    yield from checkup.findings()
    found = checkup.machine
    if found is None:
        return
    if found.power is not Power.RUNNING:
        yield findings_module.Finding(section, "reachable", "ok", f"{found.name} is off: nothing to log in to")
    elif services.book.known(found.project, found.name) is None:
        why = f"{found.name} is on, and nothing is known here of how to log in"
        yield findings_module.Finding(section, "reachable", "warn", why, f"fcctl hosts up {target.name}")
    else:
        yield from checks.check_target(target, services.hosts, time.time)


def _job_problems(workspace: Workspace) -> dict[str, list[str]]:
    files = workspace.jobs
    return {name: [p.in_full() for p in files.check(files.path(name))] for name in files.names()}


def _print(cli: Cli, finding: Finding, *, new: bool) -> None:
    from rich.text import Text

    from orchestrator.base.sanitize import clean

    if new:
        cli.console.print(Text(finding.section, style="bold"))
    mark, style = _MARKS[finding.status]
    cli.console.print(Text.assemble("  ", (mark, style), "  ", clean(f"{finding.id}: {finding.message}", 1000)))
    if finding.fix:
        cli.console.print(Text.assemble("        fix: ", (clean(finding.fix, 1000), "cyan")))
