"""``fcctl init``: make a folder a workspace."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli


@click.command()
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--host", metavar="ALIAS", help="A GPU machine: a name or an alias of ~/.ssh/config.")
@click.option("--force", is_flag=True, help="Begin anew; the old files are kept as *.bak.")
@click.pass_obj
def init(cli: Cli, folder: str | None, host: str | None, force: bool) -> None:
    """Make DIR (this folder) a workspace: a commented fcctl.toml and jobs/first.yaml that fit what is there.

    Finds a Makefile, CMakeLists.txt, setup.py, pyproject.toml or Cargo.toml, tests, and .cu files. Overwrites nothing.
    """
    from orchestrator.base.errors import UsageError
    from orchestrator.workspace import init as workflow

    if host is not None and not _is_host(host):
        raise UsageError(f"--host {host!r}: not the name of a machine", hint="a name, or an alias of ~/.ssh/config")
    done = workflow.init(Path(folder).expanduser() if folder else cli.start, host=host, force=force)
    if cli.json:
        paths = {key: [str(path) for path in getattr(done, key)] for key in ("written", "kept", "backups")}
        cli.emit({"root": str(done.root), "job": done.job, **paths})
        return
    for path in done.written:
        click.echo(f"wrote  {path.relative_to(done.root)}")
    for path in done.kept:
        cli.note(f"kept   {path.relative_to(done.root)} (it was there)")
    for path in done.backups:
        cli.note(f"kept   {path.relative_to(done.root)} (what was there before)")
    if done.found and done.found.name != done.root.name:
        cli.note(f"the project is called '{done.found.name}'; change [project] name in fcctl.toml if you like")
    if done.repository is not None:
        cli.note(
            f"only this folder is sent, not all of {done.repository}: if the build needs files above this one, "
            "run fcctl init there instead, and cd in the steps"
        )
    on = "gpu" if host else "local"
    cli.note(f"next: fcctl doctor --on {on}, then: fcctl run {done.job} --on {on}")


def _is_host(text: str) -> bool:
    from pydantic import ValidationError

    from orchestrator.machines.targets import SshTarget

    try:
        SshTarget(name="gpu", host=text)
    except ValidationError:
        return False
    return True
