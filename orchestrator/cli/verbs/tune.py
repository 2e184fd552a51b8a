"""``fcctl tune``: search a kernel's configurations on a target, and adopt the winners."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fcctl_remote.base.durations import seconds
from orchestrator.base.errors import ConfigError, ConflictError, NotFoundError, UsageError
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.cli.context import Cli, CliCommand, Parsed
from orchestrator.cli.failures import report_run
from orchestrator.cli.launching import (
    Launching,
    collect_and_finish,
    confirm,
    launch,
    launching,
    revision,
    workspace_with,
)

if TYPE_CHECKING:
    from orchestrator.machines.targets import Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.runs.revision import Revision
    from orchestrator.tune.adoption import Adoption, Row
    from orchestrator.tune.member import Member
    from orchestrator.tune.search_file import Adopt, Search


@click.command(cls=CliCommand)
@click.argument("search", required=False, metavar="NAME")
@partial(launching, several=True)
@click.option("--trials", type=click.IntRange(min=1), metavar="N",
              help="Number of configurations to try (default: from the search file, otherwise 128).")  # fmt: skip
@click.option("--elites", type=click.IntRange(min=1), metavar="N",
              help="Number of the best configurations to measure again (default: 6).")  # fmt: skip
@click.option("--strategy", type=click.Choice(["auto", "evolution", "random", "exhaustive"]), default="auto",
              help="How to choose configurations. auto: exhaustive if the trials suffice for all, otherwise"
              " evolution.")  # fmt: skip
@click.option("--compare", "control", type=click.Choice(["random"]),
              help="Also run a random search with the same number of trials.")  # fmt: skip
@click.option(
    "--case", "--shape", "cases", multiple=True, metavar="CASE", help="Case to search on; repeat for several."
)
@click.option("--space", type=click.Path(dir_okay=False), metavar="FILE",
              help="Without NAME: a search file; with NAME: a file with another search space for it.")  # fmt: skip
@click.option("--seed", type=int, metavar="N", help="Random seed of the search.")
@click.option(
    "--timeout", type=Parsed(seconds), default="1h", show_default=True, metavar="TIME", help="Time limit of the search."
)
@click.option("--hosts", type=click.IntRange(1, 16), metavar="N",
              help="Search on N machines like the target (kind gcp): also NAME-2, NAME-3, ...")  # fmt: skip
@click.option(
    "--adopt", metavar="RUN", help="Do not search: write RUN's winners into the search's table, after confirmation."
)
@click.option("--force", is_flag=True, help="With --adopt: also accept winners that are not proven.")
def tune(
    cli: Cli, search: str | None, how: Launching, trials: int | None, elites: int | None, strategy: str,
    control: str | None, cases: tuple[str, ...], space: str | None, seed: int | None, timeout: float, hosts: int | None,
    adopt: str | None, force: bool,
) -> None:  # fmt: skip
    """Search the best configuration of NAME on a target: compile, check, time; measure the best again.

    NAME is tune/NAME.yaml of the workspace, or a variant that such a file names: `fcctl tune fused`. The search is a
    normal run: it continues without this terminal, `fcctl attach` follows it again, `fcctl cancel` stops it, and its
    results are in the store. A failed trial is recorded with its reason and does not stop the search.

    With several machines (`--on a --on b`, `--hosts N`) the search is a run on the first machine; each other machine
    has its own worker run. The machines reach each other through this command, over SSH. The search
    continues without a machine that is lost. Ctrl-C releases all but the first machine. The budget is divided evenly.

    --adopt writes the winners of RUN into the table that the search file names. It shows the evidence and the change,
    and asks before it writes (`--yes` answers yes). A winner that the held-out measurement does not prove is refused.
    """
    if adopt is not None:
        if search or space or hosts or how != Launching(dry_run=how.dry_run):
            raise click.UsageError("--adopt takes only a collected RUN: remove NAME and --on")
        adopt_run(cli, adopt, force=force, dry_run=how.dry_run)
        return
    if force:
        raise click.UsageError("--force needs --adopt")
    if not (search or space):
        raise click.UsageError("Missing argument 'NAME'.")
    from orchestrator.runs.job.plan import parse_settings
    from orchestrator.runs.job.prepare import RunRequest
    from orchestrator.tune.search_file import SearchOptions, job_of, narrowed

    machines: list[Target] = []
    if how.others or (hosts or 1) > 1:
        machines = _machines(cli, how, hosts)
    own_name = machines[0].name if machines else None
    options = SearchOptions(trials, elites, strategy, control, cases, seed, timeout, own_name)

    with revision(cli, how) as there:

        def wanted(target: Target) -> RunRequest:
            chosen = narrowed(_search(cli, there, search, Path(space) if space else None), options)
            settings, searches = parse_settings(how.settings), {chosen.name: chosen}
            return RunRequest(job_of(chosen, options), target, settings, None, how.budget, how.stop_at_budget, searches)

        if machines:
            _launch_on_several(cli, how, wanted, there, machines)
        else:
            launch(cli, how, wanted, there)


def _machines(cli: Cli, how: Launching, count: int | None) -> list[Target]:
    """The machines that the command line names; the search is on the first one. Raises UsageError: it names them in a
    way that cannot be."""
    from orchestrator.tune.fleet_rules import machines

    named = [cli.workspace().target(name) for name in (how.target, *how.others)]
    if count is None or count == 1:
        return named
    if len(named) > 1:
        raise UsageError("--hosts cannot be used with several --on", hint="use only one of the two")
    return machines(named[0], count)


def _launch_on_several(
    cli: Cli, how: Launching, wanted: Callable[[Target], RunRequest], there: Revision | None, hosts: Sequence[Target],
) -> None:  # fmt: skip
    """Plans the search on ``hosts[0]`` and members on the others, runs and collects all of it."""
    from orchestrator import app
    from orchestrator.hosts.recover import remind
    from orchestrator.machines.connect.tunnels import SshTunnels
    from orchestrator.runs.cost.estimate import with_own_price
    from orchestrator.tune.fleet import FleetCoordinator, FleetPlanner, plan
    from orchestrator.views.tables.plan import fleet_json, print_fleet

    if how.detach:
        raise UsageError(
            "--detach cannot be used with several machines: they reach each other through this command",
            hint="keep this command running in tmux or with nohup; or search on one machine",
        )
    workspace = cli.workspace()
    budget = workspace.config.budget
    with app.observing(cli) as observer:
        services = app.services(cli, observer)
        for host in hosts:
            budget = with_own_price(services, host, budget, how.accepted)
        place = FleetPlanner(workspace.root, workspace.config.project.name, budget)
        plans = plan(services, place, wanted(hosts[0]), hosts[1:], there.read() if there else None)
        if how.dry_run:
            observer.close()
            cli.show(fleet_json(plans), lambda: print_fleet(plans, cli.console))
            return
        with observer.aside():
            capped = all(one.capped for one in plans.all if one.saved.worst_case_usd)
            confirm(cli, [one.saved for one in plans.all], capped=capped)
        remind(services)
        if not cli.quiet:
            observer.note(f"run {plans.search.saved.plan.run_id}, with {', '.join(host.name for host in hosts[1:])}")
        leader = FleetCoordinator(partial(app.services, cli), SshTunnels(app.connector()), plans, how.waking, observer)
        tell = partial(_tell, cli, leader.members.values())
        collect_and_finish(cli, leader.services, leader.coordinate, tell=tell, members=leader.members)


def _tell(cli: Cli, members: Iterable[Member], record: RunRecord, folder: Path) -> None:
    """Says how the search and each of its members ended."""
    for member in members:
        cost = f", ${member.usd:.2f}" if member.usd else ""
        cli.note(f"host {member.name}: {member.status}{cost}  {member.run_id}")
    ended = [{"host": m.name, "runs": [m.run_id], "status": m.status, "usd": round(m.usd, 6)} for m in members]
    report_run(cli, record, folder, {"members": ended})


def _search(cli: Cli, there: Revision | None, name: str | None, space: Path | None) -> Search:
    """The search of that name, with the space of the file if there is one; or the file's own search."""
    files = workspace_with(cli, there, lambda one: name in one.searches.names(), f"search '{name}'").searches
    file = space.absolute() if space else None
    return files.get(name, file) if name is not None else files.read(Path(str(file)))


def adopt_run(cli: Cli, name: str, *, force: bool, dry_run: bool) -> None:
    """Show what RUN's winners change, and change it once that is agreed to. Raises ConflictError: there are none; or
    something speaks against them, and there is no ``force``."""
    from orchestrator.results.look import show
    from orchestrator.runs.job.saved_plan import read_saved
    from orchestrator.tune.adopt import AdoptTable, proposed

    workspace = cli.workspace()
    searches = {search.name: search for search in workspace.searches.readable()}
    with cli.services() as services:
        shown = show(services.store, name)
        saved = read_saved(services.store, shown.record.run_id)
    adoptions = proposed(shown, saved.plan if saved else None, searches)
    _refuse(shown.record, adoptions, searches, force=force)
    table = AdoptTable(workspace.root, _table_of(adoptions, searches))
    before = after = table.read()
    for one in adoptions:
        after = table.with_rows(after, one)
    diff = _difference(table.file, before, after)
    document = {
        "run_id": shown.record.run_id, "file": table.file, "diff": diff, "written": False,
        "rows": [row.as_dict() for one in adoptions for row in one.rows],
        "doubts": [doubt for one in adoptions for doubt in one.doubts],
    }  # fmt: skip
    _show(cli, adoptions, diff, shown.record.run_id)
    if diff and not dry_run:
        cli.confirm(f"fcctl will write {table.file}")
        table.write(after, instead_of=before)
    if cli.json:
        cli.emit({**document, "written": bool(diff) and not dry_run})
    elif diff and not dry_run:
        cli.note(f"wrote {table.file}; review it with git diff, and commit it with the run id")


def _difference(file: str, before: str, after: str) -> str:
    """As ``git apply`` takes it; empty if nothing differs."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _refuse(record: RunRecord, adoptions: list[Adoption], searches: dict[str, Search], *, force: bool) -> None:
    """Raises ConflictError: there is no winner, as when a search was cancelled before it measured its best again; or
    something speaks against the winners."""
    doubts = "; ".join(dict.fromkeys(clean(doubt, 300) for one in adoptions for doubt in one.doubts))
    if not any(one.rows for one in adoptions):
        again = f"run a new search: fcctl tune {clean(_name_of(adoptions[0], searches), 40)} --on {record.target}"
        if record.was_cut_off:
            again = f"resume it: fcctl run --resume {record.run_id}"
        raise ConflictError(
            f"run {record.run_id} has no winner to adopt, even with --force",
            cause=doubts, hint=f"{again}; to see the trials: fcctl logs {record.run_id}",
        )  # fmt: skip
    if doubts and not force:
        raise ConflictError(
            f"run {record.run_id} does not prove that its winners are faster", cause=doubts,
            hint="search again with more trials or other held-out cases; to adopt them anyway: --force",
        )  # fmt: skip


def _name_of(adoption: Adoption, searches: dict[str, Search]) -> str:
    """The name to type after ``fcctl tune``: the variant, if the search has variants, else the search."""
    search = searches.get(adoption.search)
    variable, names = (search.variants if search else None) or ("", ())
    variant = adoption.env.get(variable, "")
    return variant if variant in names else adoption.search


def _table_of(adoptions: list[Adoption], searches: dict[str, Search]) -> Adopt:
    (first, *others) = dict.fromkeys(one.search for one in adoptions)
    if others:
        names = clean(f"{first} and {', '.join(others)}")
        raise NotFoundError(
            f"the run searched {names}, which have different tables",
            hint="search each in a separate run: fcctl tune NAME; then adopt that run",
        )
    if first not in searches:
        raise NotFoundError(
            f"tune/{clean(first, 40)}.yaml no longer exists", hint="restore it: its `adopt` key names the table"
        )
    adopt = searches[first].adopt
    if adopt is None:
        raise ConfigError(
            f"{searches[first].file} has no `adopt` key, which names the table for winners",
            hint="add to it, for example:  adopt: tuned.json",
        )
    return adopt


def _show(cli: Cli, adoptions: list[Adoption], diff: str, run_id: str) -> None:
    if cli.json:
        return
    for one in adoptions:
        env = " ".join(f"{key}={value}" for key, value in one.env.items())
        click.echo(clean_text(f"run {run_id}, {one.search}{f' ({env})' if env else ''}"))
        for row in one.rows:
            click.echo("  " + clean(_evidence(row), 400))
        for doubt in one.doubts:
            click.echo("  adopted because of --force; reason against it: " + clean(doubt, 300))
    click.echo(clean_text(diff) if diff else "nothing to change: the table already has these winners", nl=not diff)


def _evidence(row: Row) -> str:
    text = f"{row.gpu}, {row.case}: " + " ".join(f"{k}={v}" for k, v in row.params.items())
    for what, ratio in (("of the default's time", row.ratio), ("on held-out cases", row.held_out)):
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            text += f"; {ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] {what}"
    return text
