"""``fcctl init``, ``config``, ``jobs`` and ``progress``: what the workspace says."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.base import clock
from orchestrator.base.errors import ConfigError, NotFoundError, UsageError, plural
from orchestrator.base.sanitize import clean_text
from orchestrator.cli.context import Cli, CliCommand, CliGroup
from orchestrator.money.caps import worst_case_minutes
from orchestrator.workspace.root import FILE_NAME, find_root

if TYPE_CHECKING:
    from orchestrator.base.models import Problem
    from orchestrator.runs.job.job import Job, Needs, Step
    from orchestrator.workspace.init import Written
    from orchestrator.workspace.workspace import Workspace


@click.command(cls=CliCommand)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--host", metavar="ALIAS", help="A GPU machine: a host name or an alias of ~/.ssh/config.")
@click.option("--force", is_flag=True, help="Write new files; old files are kept as *.bak.")
@click.option("--example", type=click.Choice(["flashcore"]),
              help="Write the kernels, jobs and search of this example; creates DIR.")  # fmt: skip
def init(cli: Cli, folder: str | None, host: str | None, force: bool, example: str | None) -> None:
    """Make DIR (default: this folder) a workspace: write a commented fcctl.toml and jobs/first.yaml that fit its build.
    If DIR itself has no build, write a job for each folder below that has one.

    Looks for a Makefile, CMakeLists.txt, Python package, justfile, meson.build, Bazel, Cargo or Julia, tests,
    benchmarks, scripts and .cu files. Does not overwrite files.
    """
    from fcctl_remote.probe import gpu
    from orchestrator.workspace import init as workflow

    if example is not None and host is not None:
        raise UsageError(
            "--example writes its own fcctl.toml", hint="remove --host, and add your machine to the new fcctl.toml"
        )
    if host is not None and not _is_host(host):
        raise UsageError(f"--host {host!r}: not a host name", hint="use a host name or an alias of ~/.ssh/config")
    place = Path(folder).expanduser() if folder else cli.start
    done = workflow.init_example(place, force=force) if example else workflow.init(place, host=host, force=force)
    if cli.json:
        paths = {key: [str(path) for path in getattr(done, key)] for key in ("written", "kept", "backups")}
        cli.emit({"root": str(done.root), "job": done.jobs[0], **paths})
        return
    _print_written(cli, done, example is not None)
    cd = "" if done.root == cli.start.absolute() else f"cd {shlex.quote(str(place))}, then: "
    if example:
        cli.note(f"next: {cd}fcctl run {done.jobs[0]} --on sandbox")
        return
    on = "gpu" if host else "local"
    job = done.jobs[0] if len(done.jobs) == 1 else "JOB"
    if not host and not gpu.visible():
        on = "gpu"
        cd += "uncomment [targets.gpu] in fcctl.toml and write its host (this computer has no GPU), then: "
    cli.note(f"next: {cd}fcctl doctor --on {on}, then: fcctl run {job} --on {on}")


def _print_written(cli: Cli, done: Written, example: bool) -> None:
    if example:
        click.echo(f"wrote  {len(done.written)} files in {done.root}: kernels/flashcore, jobs, tune, fcctl.toml")
    for path in () if example else done.written:
        click.echo(f"wrote  {path.relative_to(done.root)}")
    for path in done.kept:
        cli.note(f"kept   {path.relative_to(done.root)} (already exists)")
    for path in done.backups:
        cli.note(f"kept   {path.relative_to(done.root)} (backup of the old file)")
    if len(done.jobs) > 1:
        cli.note("each folder that builds or runs on its own has a job; to list them: fcctl jobs ls")
    if done.empty:
        cli.note(
            f"nothing to build or run was found, so the job prints the machine's name: write your commands into"
            f" {done.jobs_folder}/{done.jobs[0]}.yaml, which has the command for notebooks, if there are any"
        )
    if done.name and done.name != done.root.name:
        cli.note(f"the project name is '{done.name}'; to change it, edit [project] name in fcctl.toml")
    if done.submodules:
        empty = ", ".join(done.submodules)
        cli.note(f"not checked out: {empty}; before a run: git submodule update --init --recursive")
    if done.repository is not None:
        cli.note(
            f"fcctl will send only this folder, not all of {done.repository}: if the build needs files above this"
            f" folder, run fcctl init there instead, and use cd in the steps"
        )


def _is_host(text: str) -> bool:
    from pydantic import ValidationError

    from orchestrator.machines.targets import SshTarget

    try:
        SshTarget(name="gpu", host=text)
    except ValidationError:
        return False
    return True


@click.group(cls=CliGroup)
def config() -> None:
    """Show the configuration and where it comes from.

    Order of precedence: FCCTL_* variables, fcctl.toml, the user's own file, defaults.
    """


@config.command()
@click.option("--origin", is_flag=True, help="Show the source of each value.")
def show(cli: Cli, origin: bool) -> None:
    """Print every value, set or default."""
    values = cli.workspace().loaded.values()
    if cli.show({"values": {key: {"value": value, "origin": source} for key, (value, source) in values.items()}}):
        return
    lines = {key: f"{key} = {_shown(value)}" for key, (value, _) in values.items()}
    width = min(60, max(map(len, lines.values())))
    for key, (_, source) in values.items():
        click.echo(clean_text(f"{lines[key]:<{width}}  # {source}" if origin else lines[key]))


@config.command()
@click.argument("key")
def get(cli: Cli, key: str) -> None:
    """Print the value of KEY, such as budget.per_run_usd; a table as JSON."""
    value = cli.workspace().loaded.get(key)
    cli.show(
        {"key": key, "value": value},
        lambda: click.echo("" if value is None else value if isinstance(value, str) else _shown(value)),
    )


@config.command()
def path(cli: Cli) -> None:
    """Print the configuration files, in order of precedence."""
    from orchestrator.workspace.workspace import user_config_file

    user = user_config_file(cli.environ)
    try:
        workspace = find_root(cli.start) / FILE_NAME
    except NotFoundError:
        workspace = None
    if cli.show({"workspace": workspace, "user": user, "user_exists": user.is_file()}):
        return
    if workspace:
        click.echo(workspace)
    click.echo(user)
    if not user.is_file():
        cli.note(f"{user} does not exist; you may create it for settings that all your workspaces share")


def _shown(value: Any) -> str:
    """As TOML would write it, which for these values is as JSON would."""
    return json.dumps(value, ensure_ascii=False)


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
        click.echo(clean_text(line))


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
        click.echo(clean_text(problem.in_full()))
    wrong = sum(bool(several) for several in faults.values())
    what = "jobs and searches" if any(map(searches.holds, paths)) else "jobs"
    cli.note(f"{len(paths) - wrong} of {len(paths)} {what} are valid")
    return ConfigError.exit_code if problems else 0


def _path(workspace: Workspace, name: str) -> Path:
    if not name.endswith((".yaml", ".yml")) and "/" not in name:
        return workspace.jobs.path(name)
    places = (Path.cwd(), workspace.root, workspace.jobs.folder)  # as `fcctl run` looks for it
    return next((place / name for place in places if (place / name).is_file()), Path(name).absolute())


def _row(workspace: Workspace, name: str) -> dict[str, Any]:
    from orchestrator.runs.job.job import InvalidJob

    files = workspace.jobs
    row: dict[str, Any] = {"job": name, "title": "", "steps": 0, "built_in": files.is_built_in(name), "problem": None}
    try:
        job = files.get(name)
    except InvalidJob as error:
        return {**row, "at_most": None, "problem": error.problems[0].in_full()}
    minutes = worst_case_minutes((step.spec() for step in job.steps), job.budget.minutes)
    return {**row, "title": job.title, "steps": len(job.steps), "at_most": clock.duration_text(minutes * 60)}


def _described(job: Job, file: str, minutes: float) -> list[str]:
    lines = [f"{job.job}: {job.title}" if job.title else job.job, f"  file     {file}"]
    if job.uses:
        lines.append(f"  uses     {', '.join(job.uses)}")
    if needs := _needs(job.needs):
        lines.append(f"  needs    {needs}")
    lines.append(f"  lock     {job.lock}")
    lines.append(
        f"  at most  {clock.duration_text(minutes * 60)}" + (f", {job.budget.usd:g} USD" if job.budget.usd else "")
    )
    lines.extend(f"  env      {key}={value}" for key, value in job.env.items())
    for step in job.steps:
        lines.extend(_step(step))
    return lines


def _step(step: Step) -> list[str]:
    from orchestrator.views.tables.plan import gate_text

    facts = [f"at most {clock.duration_text(step.timeout)}", step.activity]
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
    from orchestrator.views.tables.plan import progress_blocks

    show_blocks(cli.console, progress_blocks(found))
