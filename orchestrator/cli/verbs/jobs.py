"""``fcctl jobs``: list, show and check job files; ``fcctl progress``: how far their phases are, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.base import times
from orchestrator.base.errors import ConfigError, plural
from orchestrator.cli.context import Cli, CliCommand, CliGroup
from orchestrator.money.caps import worst_case_minutes

if TYPE_CHECKING:
    from orchestrator.base.models import Problem
    from orchestrator.runs.job.job import Job, Needs, Step
    from orchestrator.workspace.workspace import Workspace


@click.group(cls=CliGroup)
def jobs() -> None:
    """List, show and check jobs."""


@jobs.command()
def ls(cli: Cli) -> None:
    """List the jobs of the workspace and the built-in ones."""
    workspace = cli.workspace()
    rows = [_row(workspace, name) for name in workspace.jobs.names()]
    from orchestrator.views.blocks import Cell, Grid
    from orchestrator.views.table import show_blocks

    lines = tuple(
        (row["job"], Cell(row["problem"], kind="bad"), "-", "-") if row["problem"]
        else (row["job"], row["title"] + (" (built in)" if row["built_in"] else ""), str(row["steps"]), row["at_most"])
        for row in rows
    )  # fmt: skip
    grid = Grid(("job", "title", "steps", "at most"), lines, fold=(1,))
    cli.show({"jobs": rows}, lambda: show_blocks(cli.console, [grid]))


@jobs.command("show")
@click.argument("job")
def show_job(cli: Cli, job: str) -> None:
    """Print JOB as it would run: its own steps and those of the jobs it uses."""
    files = cli.workspace().jobs
    resolved, file = files.get(job), str(files.path(job))
    minutes = worst_case_minutes((step.spec() for step in resolved.steps), resolved.budget.minutes)
    if cli.show({**resolved.model_dump(mode="json"), "file": file, "worst_case_minutes": minutes}):
        return
    for line in _described(resolved, file, minutes):
        click.echo(line)


@jobs.command()
@click.argument("names", nargs=-1, metavar="[JOB|FILE]...")
def validate(cli: Cli, names: tuple[str, ...]) -> int:
    """Check job files and search files, by path or job name (default: all). Exit code 3: a file is invalid."""
    workspace = cli.workspace()
    files, searches = workspace.jobs, workspace.searches
    paths = [_path(workspace, name) for name in names]
    if not names:
        paths = [*(files.path(name) for name in files.names()), *searches.files()]
    faults: dict[Path, list[Problem]] = {
        path: searches.check(path) if searches.holds(path) else files.check(path) for path in paths
    }
    problems = list(dict.fromkeys(problem for several in faults.values() for problem in several))
    if cli.json:
        listed = [{"where": p.where, "message": p.message, "hint": p.hint} for p in problems]
        cli.emit({"files": [str(path) for path in paths], "valid": not problems, "problems": listed})
        return ConfigError.exit_code if problems else 0
    for problem in problems:
        click.echo(problem.in_full())
    wrong = sum(bool(several) for several in faults.values())
    what = "jobs and searches" if any(map(searches.holds, paths)) else "jobs"
    cli.note(f"{len(paths) - wrong} of {len(paths)} {what} are valid")
    return ConfigError.exit_code if problems else 0


def _path(workspace: Workspace, name: str) -> Path:
    return Path(name).absolute() if name.endswith((".yaml", ".yml")) or "/" in name else workspace.jobs.path(name)


def _row(workspace: Workspace, name: str) -> dict[str, Any]:
    from orchestrator.runs.job.job import InvalidJob

    files = workspace.jobs
    row: dict[str, Any] = {"job": name, "title": "", "steps": 0, "built_in": files.is_built_in(name), "problem": None}
    try:
        job = files.get(name)
    except InvalidJob as error:
        return {**row, "at_most": None, "problem": error.problems[0].in_full()}
    minutes = worst_case_minutes((step.spec() for step in job.steps), job.budget.minutes)
    return {**row, "title": job.title, "steps": len(job.steps), "at_most": times.text(minutes * 60)}


def _described(job: Job, file: str, minutes: float) -> list[str]:
    lines = [f"{job.job}: {job.title}" if job.title else job.job, f"  file     {file}"]
    if job.uses:
        lines.append(f"  uses     {', '.join(job.uses)}")
    if needs := _needs(job.needs):
        lines.append(f"  needs    {needs}")
    lines.append(f"  lock     {job.lock}")
    lines.append(f"  at most  {times.text(minutes * 60)}" + (f", {job.budget.usd:g} USD" if job.budget.usd else ""))
    lines.extend(f"  env      {key}={value}" for key, value in job.env.items())
    for step in job.steps:
        lines.extend(_step(step))
    return lines


def _step(step: Step) -> list[str]:
    from orchestrator.views.tables.plan import gate_text

    facts = [f"at most {times.text(step.timeout)}", step.activity]
    facts += ["on this computer"] if step.where == "controller" else []
    facts += [f"searches {step.tune}"] if step.tune else []
    facts += {True: ["optional"], "unavailable": ["may be unavailable"], False: []}[step.optional]
    facts += ["may fail without ending the run"] if step.keep_going else []
    facts += [f"{plural(step.retries, 'retry')}"] if step.retries else []
    facts += [f"needs {needs}"] if (needs := _needs(step.needs)) else []
    lines = ["", f"  {step.id}  ({', '.join(facts)})"]
    lines.extend(f"    $ {line}" for line in step.run.strip().splitlines())
    lines.extend(f"    env {key}={value}" for key, value in step.env.items())
    lines.extend(f"    collect {c.file} with {c.reader}" for c in step.collect)
    lines.extend(f"    gate {gate_text(g)}" for g in step.spec().gates)
    return lines


def _needs(needs: Needs) -> str:
    parts = ["a GPU"] if needs.gpu else []
    parts += [f"compute capability {needs.compute_capability}"] if needs.compute_capability else []
    return ", ".join([*parts, *needs.tools])


@click.command(cls=CliCommand)
def progress(cli: Cli) -> None:
    """Show each phase: its target, the best so far, the gap, and the dollars spent and still planned.

    A phase is a job; its gates are the targets. [phases.NAME] of fcctl.toml plans hours and dollars; without it, the
    phases are the jobs called `phase...`. Runs in the sandbox do not count. This does not query the cloud.
    """
    with cli.services() as services:
        found = cli.workspace().progress(services)
    if cli.show(found.as_json()):
        return
    from orchestrator.views.table import show_blocks
    from orchestrator.views.tables.progress import progress_blocks

    show_blocks(cli.console, progress_blocks(found))
