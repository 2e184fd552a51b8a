"""``fcctl tune``: search a kernel's configurations on a target, and take the winners over."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.context import Cli
from orchestrator.cli.launching import Launching, launching_on_several

if TYPE_CHECKING:
    from orchestrator.machines.targets import Target
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.tune.search_file import Search


@click.command()
@click.argument("search", required=False, metavar="NAME")
@launching_on_several
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
@click.option("--hosts", type=click.IntRange(1, 16), metavar="N",
              help="Search on N machines like the target, of kind gcp: also on NAME-2, NAME-3.")  # fmt: skip
@click.option("--scheduler", metavar="ADDRESS",
              help="Search with the workers of a Dask scheduler, tcp://HOST:PORT as the target sees it.")  # fmt: skip
@click.option("--tls", metavar="FILE", help="With --scheduler: key and certificates for it, a file on the target.")
@click.option("--resume", "cut_off", metavar="RUN",
              help="Go on with RUN, a search on several machines, with all of them again.")  # fmt: skip
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
    hosts: int | None,
    scheduler: str | None,
    tls: str | None,
    cut_off: str | None,
    adopt: str | None,
    force: bool,
) -> None:
    """Search the configurations of NAME on a target: compile, check, time, and measure the best ones again.

    NAME is tune/NAME.yaml of the workspace, or a variant that such a file names: `fcctl tune fused`. The search is a
    run like any other: it goes on without this terminal, `fcctl attach` comes back to it, `fcctl cancel` stops it, and
    its results are in the store. Each trial that fails is recorded with its reason and costs no other.

    With several machines (`--on a --on b`, `--hosts N`) the search is a run on the first one, and the others help it,
    each in a run of its own; they reach each other through this command, over SSH. One that is lost is started again;
    Ctrl-C lets the others go, and `--resume` has them back. What it may cost is divided evenly.

    With --adopt the winners of RUN come into the table that the search's file names: their difference is shown, with
    the evidence, and written once you agree (`--yes` agrees). What the held-out measurement does not prove is refused.
    """
    if adopt is not None or cut_off is not None:
        _with_a_run(cli, adopt, cut_off, how, force=force, named=bool(search or space or hosts or scheduler or tls))
        return
    _check(force=force, named=bool(search or space), tls=tls, scheduler=scheduler)
    from orchestrator.base.text.durations import seconds
    from orchestrator.cli import launching
    from orchestrator.cli.tune import fleet
    from orchestrator.runs.job.plan import parse_settings
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.tune.job import SearchOptions, job_of, narrowed

    try:
        limit = seconds(timeout)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    machines = fleet.hosts_of(cli, how, hosts) if how.others or (hosts or 1) > 1 else []
    if machines and scheduler:
        raise click.UsageError("--scheduler brings its own workers: the search itself is on one target")
    own_name = machines[0].name if machines else None
    asked = SearchOptions(trials, elites, strategy, control, cases, seed, limit, own_name, scheduler, tls)

    def wanted(target: Target) -> RunRequest:
        found = narrowed(_search(cli, search, Path(space) if space else None), asked)
        settings, searches = parse_settings(how.settings), {found.name: found}
        return RunRequest(job_of(found, asked), target, settings, None, how.budget, how.stop_at_budget, searches)

    if machines:
        fleet.launch(cli, how, wanted, machines)
    else:
        launching.launch(cli, how, wanted)


def _with_a_run(cli: Cli, adopt: str | None, cut_off: str | None, how: Launching, *, force: bool, named: bool) -> None:
    """What is done with a search that there is already."""
    if adopt is not None:
        if named or cut_off is not None or how != Launching(dry_run=how.dry_run):
            raise click.UsageError("--adopt takes a RUN that is home, and runs nothing: no NAME, no target")
        from orchestrator.cli.tune.adopt import adopt_run

        adopt_run(cli, adopt, force=force, dry_run=how.dry_run)
    elif cut_off is not None:
        if named or force or how != how.only():
            raise click.UsageError("--resume goes on with a search as it is: it takes neither NAME nor another option")
        from orchestrator.cli.tune.fleet import resume

        resume(cli, cut_off, how.accepted)


def _check(*, force: bool, named: bool, tls: str | None, scheduler: str | None) -> None:
    if force:
        raise click.UsageError("--force is for --adopt")
    if tls and not scheduler:
        raise click.UsageError("--tls is for --scheduler")
    if not named:
        raise click.UsageError("Missing argument 'NAME'.")


def _search(cli: Cli, name: str | None, space: Path | None) -> Search:
    """The search of that name, with the space of the file if there is one; or the file's own search."""
    files = cli.workspace().searches
    file = space.absolute() if space else None
    return files.get(name, file) if name is not None else files.read(Path(str(file)))
