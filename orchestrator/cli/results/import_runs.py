"""``fcctl results import``: runs that another machine exported."""

from __future__ import annotations

from pathlib import Path

import click

from orchestrator.cli.context import Cli


@click.command("import")
@click.argument("archives", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--dry-run", is_flag=True, help="Verify the archives and keep nothing.")
@click.pass_obj
def take_in(cli: Cli, archives: tuple[Path, ...], dry_run: bool) -> None:
    """Take in the runs of archives made by `fcctl results export -o runs.tar.zst`.

    Each archive comes in whole or not at all: once the sha256 of every file in it is verified. What is no plain file of
    its manifest is refused. A run that is here already has to be the very same.
    """
    from orchestrator.results.archive.archive import read

    with cli.services() as services:
        for path in archives:
            done = read(services.store, path, keep=not dry_run)
            if cli.json:
                cli.emit(
                    {
                        "archive": str(path),
                        "imported": [] if dry_run else done.new,
                        "would_import": done.new if dry_run else [],
                        "here_already": done.here_already,
                        "files": done.files,
                        "bytes": done.bytes,
                        "renamed": done.renamed,
                    }
                )
                continue
            for run_id in done.new:
                click.echo(run_id)
            said = "would come in" if dry_run else "imported"
            here = f", {len(done.here_already)} here already" if done.here_already else ""
            cli.note(f"{path}: {len(done.new)} runs {said}{here}; {done.files} files, {done.bytes} bytes verified")
            if done.renamed:
                cli.note(f"{done.renamed} files are stored with underscores around a name that programs here act on")
