"""``fcctl init`` and ``fcctl config``."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.base.errors import NotFoundError, UsageError
from orchestrator.cli.context import Cli, CliCommand, CliGroup
from orchestrator.workspace.root import FILE_NAME, find_root

if TYPE_CHECKING:
    from orchestrator.workspace.init import Written


@click.command(cls=CliCommand)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--host", metavar="ALIAS", help="A GPU machine: a host name or an alias of ~/.ssh/config.")
@click.option("--force", is_flag=True, help="Write new files; old files are kept as *.bak.")
@click.option("--example", type=click.Choice(["flashcore"]),
              help="Write the kernels, jobs and search of this example; creates DIR.")  # fmt: skip
def init(cli: Cli, folder: str | None, host: str | None, force: bool, example: str | None) -> None:
    """Make DIR (default: this folder) a workspace: write a commented fcctl.toml and jobs/first.yaml that fit its build.
    If DIR itself has no build, write a job for each folder below that has one.

    Looks for a Makefile, CMakeLists.txt, Python package, justfile, meson.build or Bazel, tests, benchmarks, scripts
    and .cu files. Does not overwrite files.
    """
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
            f" jobs/{done.jobs[0]}.yaml, which has the command for notebooks, if there are any"
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
        click.echo(f"{lines[key]:<{width}}  # {source}" if origin else lines[key])


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
