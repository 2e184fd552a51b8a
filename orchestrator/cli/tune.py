"""``fcctl tune``: search a kernel's configurations on a target, and take the winners over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.launching import Launching, launching

if TYPE_CHECKING:
    from orchestrator.domain.target import Target
    from orchestrator.domain.tune_file import Search
    from orchestrator.workflows.prepare import Wanted


@click.command()
@click.argument("search", required=False, metavar="NAME")
@launching
@click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="Configurations to try; 128 unless the file says."
)
@click.option("--elites", type=click.IntRange(min=1), metavar="N", help="How many of the best are measured again; 6.")
@click.option("--strategy", type=click.Choice(["auto", "evolution", "random", "exhaustive"]), default="auto",
              help="How to choose them. auto: exhaustive if all fit into the trials, else evolution.")  # fmt: skip
@click.option("--compare", "control", type=click.Choice(["random"]), help="Search at random, too, at the same budget.")
@click.option("--case", "--shape", "cases", multiple=True, metavar="CASE", help="Search on this case; may be repeated.")
@click.option("--space", type=click.Path(dir_okay=False), metavar="FILE",
              help="Without NAME a search's file; with NAME a file with another space for it.")  # fmt: skip
@click.option("--seed", type=int, metavar="N", help="Of the search's choices; repeats it where times are the same.")
@click.option("--timeout", default="1h", show_default=True, metavar="TIME", help="The most the search may take.")
@click.option("--adopt", metavar="RUN", help="Instead: put RUN's winners into the search's table, after a look at it.")
@click.option("--force", is_flag=True, help="With --adopt: take what is not proven, too.")
@click.pass_obj
def tune(
    cli: Cli,
    search: str | None,
    how: Launching,
    trials: int | None,
    elites: int | None,
    strategy: str,
    control: str | None,
    cases: tuple[str, ...],
    space: str | None,
    seed: int | None,
    timeout: str,
    adopt: str | None,
    force: bool,
) -> None:
    """Search the configurations of NAME on a target: compile, check, time, and measure the best ones again.

    NAME is tune/NAME.yaml of the workspace, or a variant that such a file names: `fcctl tune fused`. The search is a
    run like any other: it goes on without this terminal, `fcctl attach` comes back to it, `fcctl cancel` stops it, and
    its results are in the store. Each trial that fails is recorded with its reason and costs no other.

    With --adopt the winners of RUN come into the table that the search's file names: their difference is shown, with
    the evidence, and written once you agree (`--yes` agrees). What the held-out measurement does not prove is refused.
    """
    if adopt is not None:
        if search or space or how != Launching(dry_run=how.dry_run):
            raise click.UsageError("--adopt takes a RUN that is home, and runs nothing: no NAME, no target")
        from orchestrator.cli.tune_adopt import adopt_run

        adopt_run(cli, adopt, force=force, dry_run=how.dry_run)
        return
    if force:
        raise click.UsageError("--force is for --adopt")
    if search is None and space is None:
        raise click.UsageError("Missing argument 'NAME'.")
    from orchestrator.cli.launching import launch
    from orchestrator.domain.duration import seconds
    from orchestrator.domain.plan import parse_settings
    from orchestrator.domain.tune_job import Asked, job_of, narrowed
    from orchestrator.workflows.prepare import Wanted

    try:
        limit = seconds(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    asked = Asked(trials, elites, strategy, control, cases, seed, limit)

    def wanted(target: Target) -> Wanted:
        found = narrowed(_search(cli, search, Path(space) if space else None), asked)
        settings, searches = parse_settings(how.settings), {found.name: found}
        return Wanted(job_of(found, asked), target, settings, None, how.budget, how.stop_at_budget, searches)

    launch(cli, how, wanted)


def _search(cli: Cli, name: str | None, space: Path | None) -> Search:
    """The search of that name, with the space of the file if there is one; or the file's own search."""
    files = cli.workspace().searches
    file = space.absolute() if space else None
    return files.get(name, file) if name is not None else files.read(Path(str(file)))
