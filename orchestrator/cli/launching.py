"""Code that ``fcctl run`` and ``fcctl tune`` share: their common options, the git checkout of ``--rev``, and how a
planned run is started and followed."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator import app
from orchestrator.base.clock import in_thread
from orchestrator.base.errors import FcctlError, JobError, plural
from orchestrator.cli.context import DOLLARS, ON, PRICE_OPTIONS, Cli
from orchestrator.cli.failures import report_run

if TYPE_CHECKING:
    from orchestrator.cli.verbs.results import Comparing
    from orchestrator.machines.targets import AcceptedPrices, StartOptions, Target
    from orchestrator.money.caps import Budget
    from orchestrator.results.records import RunRecord
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.job.prepare import Prepared, RunRequest
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.revision import Revision
    from orchestrator.runs.run import Finished
    from orchestrator.runs.services import Services
    from orchestrator.tune.member import Member
    from orchestrator.workspace.workspace import Workspace


#: Prints how a run ended, of which the results are in the folder.
Tell = Callable[["RunRecord", Path], None]

_ON_SEVERAL = click.option(
    "--on", "targets", multiple=True, metavar="TARGET",
    help="Target to run on (default: the workspace's default target). Repeat for several machines.",
)  # fmt: skip
_OPTIONS = (
    click.option(
        "-d", "--detach", is_flag=True, help="Print the run id and return as soon as the host has accepted the run."
    ),
    click.option("--dry-run", is_flag=True, help="Print the plan and exit; send and start nothing."),
    click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set an environment variable of the job."
    ),
    click.option(
        "--rev", metavar="REVISION", help="Run this branch, tag or commit from git; the working tree is not touched."
    ),
    click.option("--budget", type=DOLLARS, metavar="USD", help="The most that this run may cost."),
    click.option(
        "--stop-at-budget",
        is_flag=True,
        help="Start even if the worst case exceeds a cap; stop the run before it reaches the lowest cap.",
    ),
    click.option(
        "--restart", is_flag=True, help="Stop a running cloud machine first, and start it with a new time limit."
    ),
    click.option("--allow-unfenced", is_flag=True, help="Accept a running cloud machine that has no time limit."),
)


@dataclass(frozen=True)
class Launching:
    """How a run is to be launched, as the options say."""

    target: str | None = None
    detach: bool = False
    dry_run: bool = False
    settings: tuple[str, ...] = ()
    #: The revision whose source is sent; None: the working tree.
    rev: str | None = None
    budget: float | None = None
    stop_at_budget: bool = False
    restart: bool = False
    allow_unfenced: bool = False
    accept_price: bool = False
    accept_old_prices: bool = False
    #: Where the run's artifacts are copied at its end.
    publish: str | None = None
    #: Further targets, of a verb that may take several.
    others: tuple[str, ...] = ()

    @property
    def waking(self) -> StartOptions:
        from orchestrator.machines.targets import StartOptions

        return StartOptions(self.restart, self.allow_unfenced)

    def only(self, *names: str) -> Launching:
        """The options that ``--resume`` takes: those of prices, and ``names``."""
        kept = ("accept_price", "accept_old_prices", *names)
        return Launching(**{name: getattr(self, name) for name in kept})

    @property
    def accepted(self) -> AcceptedPrices:
        from orchestrator.machines.targets import AcceptedPrices

        return AcceptedPrices(self.accept_price, self.accept_old_prices)


def launching(function: Callable[..., Any], *, several: bool = False) -> Callable[..., Any]:
    """Gives a verb the options of a launch, with ``several`` for several targets; it gets them as ``how``."""

    @functools.wraps(function)
    def with_options(*args: Any, **given: Any) -> Any:
        target, *others = given.pop("targets", ()) or (given.pop("target", None),)
        how = {field.name: given.pop(field.name) for field in fields(Launching) if field.name in given}
        return function(*args, how=Launching(target=target, others=tuple(others), **how), **given)

    for option in reversed((_ON_SEVERAL if several else ON, *_OPTIONS, *PRICE_OPTIONS)):
        with_options = option(with_options)
    return with_options


def launch(
    cli: Cli, how: Launching, wanted: Callable[[Target], RunRequest], there: Revision | None,
    compare: Callable[[Services], Comparing] | None = None, tell: Tell | None = None,
) -> None:  # fmt: skip
    """Plans what is ``wanted`` on the target, which is called while the login is under way, runs it and collects it.
    ``there`` is the revision whose files are sent; None: the working tree. ``compare`` returns what to compare with,
    before anything is sent or paid for. ``tell`` prints how the run ended, in place of :func:`report_run`."""
    workspace = cli.workspace()
    on = workspace.target(how.target)
    hosts = app.connector()
    with app.observing(cli) as observer, app.link(hosts, on, observer) as link:
        if how.target is None and (several := workspace.config.configured)[1:]:
            observer.note(
                f"the job runs on this computer (target {on.name}); fcctl.toml also has {' and '.join(several)}: choose"
                f" one with --on"
            )
        if not how.dry_run and app.may_be_up(on):
            link.open_soon()  # the host takes its time; all that follows is loaded and read meanwhile
            hosts.prepare()
        services = app.services(cli, observer, hosts)
        reading = in_thread(there.read if there else partial(services.source.read, workspace.root), "fcctl-source")
        pricing = in_thread(partial(_priced, services, on, workspace.config.budget, how.accepted), "fcctl-price")
        told = partial(_compare, cli, services, compare(services)) if compare else tell
        from orchestrator.runs.job.prepare import prepare

        config, request = workspace.config, wanted(on)
        observer.phase("source", "reading")
        source, budget = reading.result(), pricing.result()
        prepared = prepare(services, workspace.root, config.project.name, budget, request, source)
        if how.dry_run:
            observer.close()
            _show_plan(cli, prepared)
            return
        with observer.aside():
            confirm(cli, [prepared.saved], capped=prepared.capped)
        from orchestrator.hosts.recover import remind
        from orchestrator.runs.run import run

        remind(services)
        saved = prepared.saved
        begun = None if cli.quiet else partial(observer.note, f"run {saved.plan.run_id}")
        goes = partial(run, services, link, saved, prepared.source, detach=how.detach, waking=how.waking, begun=begun)
        collect_and_finish(cli, services, goes, tell=told, submitted=saved.plan.run_id, publish=how.publish)


def _compare(cli: Cli, services: Services, comparing: Comparing, record: RunRecord, folder: Path) -> None:
    """Prints the comparison of a run that measured what it was to measure, else how the run ended."""
    if record.status in ("passed", "incomplete"):
        comparing.report(cli, services, [record.run_id], record)
    else:
        report_run(cli, record, folder)


def _priced(services: Services, target: Target, budget: Budget, accepted: AcceptedPrices) -> Budget:
    if target.cloud is None:
        return budget
    from orchestrator.runs.cost.estimate import with_own_price

    return with_own_price(services, target, budget, accepted)


def confirm(cli: Cli, plans: Sequence[SavedPlan], *, capped: bool) -> None:
    """Asks before ``plans``, those of a run or of a search on several machines, cost anything. Only notes the cost if
    ``capped``: the user has set caps that the plans keep."""
    every = [one for saved in plans for one in (saved.builder, saved) if one is not None]
    costly = [saved for saved in every if saved.fence_s is not None and saved.target.kind != "sandbox"]
    lines = [_cost_text(saved) for saved in costly if saved.worst_case_usd]
    if not lines:
        return
    if len(plans) > 1:
        total = sum(saved.worst_case_usd for saved in costly)
        lines = [f"the search on {len(plans)} machines may cost ${total:.2f} at most", *(f"  {line}" for line in lines)]
    (cli.note if capped else cli.confirm)("\n".join(lines))


def _cost_text(saved: SavedPlan) -> str:
    text = (
        f"{saved.plan.job} on {saved.target.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops the"
        f" machine after {(saved.fence_s or 0) / 60:.0f} minutes"
    )
    if saved.stop_at_usd is not None:
        text += f"; fcctl stops the run before it has cost ${saved.stop_at_usd:.2f}"
    return text


def collect_and_finish(
    cli: Cli, services: Services, goes: Callable[[], Finished | None], *, tell: Tell | None = None,
    submitted: str | None = None, members: Mapping[str, Member] | None = None, publish: str | None = None,
) -> None:  # fmt: skip
    """Prints how the run ended (by ``tell``, if given), or that it continues without this terminal. ``submitted`` is
    the id of a run that is left to its machine; None: the last one's. ``members`` are the other machines of a search,
    by name; ``publish`` is where the run's artifacts are copied."""
    from orchestrator.runs.run import Detached, NeverSubmitted

    keep_awake()
    try:
        finished = goes()
    except Detached as e:
        services.observer.close()
        raise KeyboardInterrupt(print_detached(cli, e.run_id, members or ())) from None
    except NeverSubmitted as e:
        services.observer.close()
        others = list((members or {}).values())
        raise KeyboardInterrupt(print_never_begun(cli, services.store, e.record, others)) from None
    services.observer.close()
    if finished is None:
        _print_submitted(cli, submitted or services.store.resolve("last"))
        return
    with contextlib.ExitStack() as after:
        if publish is not None:
            after.callback(_publish, cli, services, finished.record, Path(publish))
        (tell or partial(report_run, cli))(finished.record, services.store.folder(finished.record.run_id))


def _print_submitted(cli: Cli, run_id: str) -> None:
    if not cli.show({"run_id": run_id, "status": "submitted", "left_on": cli.left_on_json()}):
        click.echo(run_id)
        cli.note(f"submitted; to follow the run: fcctl attach {run_id}")


def _publish(cli: Cli, services: Services, record: RunRecord, into: Path) -> None:
    from orchestrator.results.export import publish

    try:
        files = publish(services.store.folder(record.run_id), into)
    except FcctlError as error:
        if record.status == "passed":
            raise
        cli.note(f"not published: {error.message}")  # the run's own end counts
        return
    cli.note(f"published {plural(len(files), 'file')}: {into / 'artifacts'}")


def keep_awake() -> None:
    """On macOS, this computer does not fall asleep as long as this process lives."""
    if sys.platform == "darwin" and (program := shutil.which("caffeinate")):
        silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with contextlib.suppress(OSError):
            _awake.append(subprocess.Popen([program, "-i", "-w", str(os.getpid())], **silent))


#: What keeps this computer awake; referenced, or Python would complain of a program that still runs.
_awake: list[subprocess.Popen[bytes]] = []


def print_detached(cli: Cli, run_id: str, members: Collection[str] = ()) -> str:
    """Prints and returns what Ctrl-C did, and how to come back to the run, or to the search with its ``members``."""
    what, without = ("the search", f", without {', '.join(members)}") if members else ("run", "")
    lines = [f"detached: {what} {run_id} continues on the machine{without}"]
    lines += [f"  follow it:  fcctl attach {run_id}", f"  stop it:    fcctl cancel {run_id}"]
    message = "\n".join(lines)
    cli.note(message)
    return message


def _show_plan(cli: Cli, prepared: Prepared) -> None:
    from orchestrator.money.prices.machine import spot_preview
    from orchestrator.views.tables.plan import plan_json, print_plan

    machine = prepared.saved.target.cloud
    spot = spot_preview(machine, cli.workspace().config.budget.prices) if machine is not None else None
    cli.show(plan_json(prepared, spot), lambda: print_plan(prepared, cli.console, spot))


def print_never_begun(cli: Cli, store: FileStore, record: RunRecord, members: Sequence[Member] = ()) -> str:
    """Tell how the run, or the search with its ``members``, was left; returns it too."""
    what = "the search" if members else "run"
    lines = [f"interrupted: {what} {record.run_id} had not started on {record.target}; none of its steps runs there"]
    lines += [f"  {member.name}: {member.status}  {member.run_id}" for member in members]
    lines.append(_next(store, record, members))
    message = "\n".join(lines)
    cli.note(message)
    return message


def _next(store: FileStore, record: RunRecord, members: Sequence[Member]) -> str:
    from orchestrator.runs.job.saved_plan import plan_at_home

    active = store.active()
    unfinished = [member.run_id for member in members if member.run_id in active]
    if unfinished:
        return f"  not collected yet; to stop the rest:  fcctl cancel {' '.join(unfinished)}"
    plan = plan_at_home(store, record.run_id)
    if before := (plan.get("plan") or {}).get("resume_from"):
        return f"  the run that you resumed is unchanged; to resume it again:  fcctl run --resume {before}"
    return "  nothing to clean up; the same command starts a new run"


@contextmanager
def revision(cli: Cli, how: Launching) -> Iterator[Revision | None]:
    """The files of ``--rev`` while the ``with`` statement lasts; None without the option. Raises ConfigError,
    NotFoundError."""
    if how.rev is None:
        yield None
        return
    from orchestrator.runs.revision import checked_out

    with checked_out(cli.workspace().root, how.rev) as found:
        cli.note(f"source: revision {found.name}, commit {found.commit[:10]}; the working tree is not used")
        try:
            yield found
        except JobError as error:  # its lines are not those of the working tree
            error.message = f"revision {found.name}: {error.message}"
            raise


def workspace_with(cli: Cli, there: Revision | None, has: Callable[[Workspace], bool], what: str) -> Workspace:
    """The workspace whose job or search counts: the revision's if it ``has`` it, else the working tree's."""
    here = cli.workspace()
    if there is None:
        return here
    other = here.at(there.root)
    if has(other):
        return other
    if has(here):
        cli.note(f"revision {there.name} has no {what}: fcctl uses that of the working tree")
    return here
