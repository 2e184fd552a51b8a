"""What ``fcctl run`` and ``fcctl tune`` share: the options of a launch, and the way from a plan to the run's end."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.amounts import DOLLARS, PRICE_OPTIONS
from orchestrator.cli.context import Cli

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from orchestrator.cli.results.comparing import Comparing
    from orchestrator.machines.connect.reconnect import ReconnectingHost
    from orchestrator.machines.provision.wake_options import AcceptedPrices, StartOptions
    from orchestrator.machines.targets import Target
    from orchestrator.results.records import RunRecord
    from orchestrator.runs.job.prepare import Prepared, RunRequest
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.run import Finished
    from orchestrator.runs.services import Services

T = TypeVar("T")

_ON = click.option("--on", "target", metavar="TARGET", help="Where to run; the workspace's default target otherwise.")
_ON_SEVERAL = click.option(
    "--on",
    "targets",
    multiple=True,
    metavar="TARGET",
    help="Where to run; the workspace's default target otherwise. Several machines: once for each.",
)
_OPTIONS = (
    click.option("-d", "--detach", is_flag=True, help="Return as soon as the host has the run; print its id."),
    click.option("--dry-run", is_flag=True, help="Print the plan and stop: nothing is sent or started."),
    click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Replace a value of the env."),
    click.option("--budget", type=DOLLARS, metavar="USD", help="What this run may cost."),
    click.option(
        "--stop-at-budget", is_flag=True, help="Start even if it may cost more; it is ended at its tightest cap."
    ),
    click.option("--restart", is_flag=True, help="Stop a cloud machine that runs already; it gets a time limit anew."),
    click.option("--allow-unfenced", is_flag=True, help="Use a cloud machine that runs without a time limit."),
)


@dataclass(frozen=True)
class Launching:
    """How a run is to be launched, as the options say."""

    target: str | None = None
    detach: bool = False
    dry_run: bool = False
    settings: tuple[str, ...] = ()
    budget: float | None = None
    stop_at_budget: bool = False
    restart: bool = False
    allow_unfenced: bool = False
    accept_price: bool = False
    accept_old_prices: bool = False
    #: Further targets, of a verb that may take several.
    others: tuple[str, ...] = ()

    @property
    def waking(self) -> StartOptions:
        from orchestrator.machines.provision.wake_options import StartOptions

        return StartOptions(self.restart, self.allow_unfenced)

    def only(self, *names: str) -> Launching:
        """The same without all that does not belong to going on with a run, but for the fields ``names``."""
        kept = ("accept_price", "accept_old_prices", *names)
        return Launching(**{name: getattr(self, name) for name in kept})

    @property
    def accepted(self) -> AcceptedPrices:
        from orchestrator.machines.provision.wake_options import AcceptedPrices

        return AcceptedPrices(self.accept_price, self.accept_old_prices)


def launching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb the options of a launch; it gets them as ``how``."""
    return _launching(function, _ON)


def launching_on_several(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a verb that may take several targets."""
    return _launching(function, _ON_SEVERAL)


def _launching(function: Callable[..., Any], on: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def with_options(*args: Any, **given: Any) -> Any:
        target, *others = given.pop("targets", ()) or (given.pop("target", None),)
        how = {field.name: given.pop(field.name) for field in fields(Launching) if field.name in given}
        return function(*args, how=Launching(target=target, others=tuple(others), **how), **given)

    for option in reversed((on, *_OPTIONS, *PRICE_OPTIONS)):
        with_options = option(with_options)
    return with_options


def launch(
    cli: Cli,
    how: Launching,
    wanted: Callable[[Target], RunRequest],
    compare: Callable[[Services], Comparing] | None = None,
) -> None:
    """Plan what is ``wanted`` on the target, and see it home.

    Args:
        wanted: called while the login is under way.
        compare: what to compare with, known to be there before anything is sent or paid for.
    """
    from orchestrator import app

    workspace = cli.workspace()
    on = workspace.target(how.target)
    hosts = app.connector()
    with app.observing(cli) as observer, app.link(hosts, on, observer) as link:
        if how.target is None and (several := workspace.config.configured)[1:]:
            observer.note(
                f"on {on.name}, this computer: fcctl.toml names {' and '.join(several)}, and --on chooses one"
            )
        if not how.dry_run and app.may_be_up(on):
            link.open_soon()  # the host takes its time; all that follows is loaded and read meanwhile
            hosts.prepare()
        services = app.services(cli, observer, hosts)
        reading = ahead(lambda: services.source.read(workspace.root))
        from orchestrator.cli.prices import own_price

        pricing = ahead(lambda: own_price(services, on, workspace.config.budget, how.accepted))
        comparing = compare(services) if compare else None
        from orchestrator.runs.job.prepare import prepare

        config, asked = workspace.config, wanted(on)
        observer.phase("source", "reading")
        source, budget = reading.result(), pricing.result()
        prepared = prepare(services, workspace.root, config.project.name, budget, asked, source)
        if how.dry_run:
            observer.close()
            _show_plan(cli, prepared)
            return
        with observer.aside():
            confirm(cli, prepared.saved, capped=prepared.capped)
        _go(cli, services, link, prepared, how.waking, comparing, detach=how.detach)


def ahead(work: Callable[[], T]) -> Future[T]:
    """``work`` in a thread of its own: while it waits for others, more is loaded here.

    A daemon: a mistake that is found meanwhile ends the command at once.
    """
    from concurrent.futures import Future

    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for the result
            done.set_exception(error)

    threading.Thread(target=run, daemon=True, name="fcctl-ahead").start()
    return done


def confirm(cli: Cli, saved: SavedPlan, *, capped: bool) -> None:
    """Ask before anything is spent; not where the user has set a cap, which the plan is held to."""
    if saved.fence_s is None or saved.target.kind == "sandbox" or saved.worst_case_usd == 0:
        return
    text = (
        f"{saved.plan.job} on {saved.target.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops the"
        f" machine after {saved.fence_s / 60:.0f} minutes"
    )
    if saved.stop_at_usd is not None:
        text += f", and the run is ended before it has cost ${saved.stop_at_usd:.2f}"
    if capped:
        cli.note(text)
    else:
        cli.confirm(text)


def _go(
    cli: Cli,
    services: Services,
    link: ReconnectingHost,
    prepared: Prepared,
    waking: StartOptions,
    comparing: Comparing | None,
    *,
    detach: bool,
) -> None:
    from orchestrator.hosts.recover import remind
    from orchestrator.runs.run import run

    remind(services)
    saved, source = prepared.saved, prepared.source
    begun = None if cli.quiet else partial(services.observer.note, f"run {saved.plan.run_id}")
    goes = partial(run, services, link, saved, source, detach=detach, waking=waking, begun=begun)
    collect_and_finish(cli, services, goes, saved, comparing)


def collect_and_finish(
    cli: Cli,
    services: Services,
    goes: Callable[[], Finished | None],
    saved: SavedPlan | None = None,
    comparing: Comparing | None = None,
    tell: Callable[[RunRecord, Path], None] | None = None,
) -> None:
    """Print how the run ended (``tell``: in another way), or that it goes on without this terminal."""
    from orchestrator.cli.run_end import report
    from orchestrator.runs.run import Detached, NeverSubmitted

    try:
        finished = goes()
    except Detached as e:
        services.observer.close()
        raise KeyboardInterrupt(print_detached(cli, e.run_id)) from None
    except NeverSubmitted as e:
        from orchestrator.cli.interrupted import print_never_begun

        services.observer.close()
        raise KeyboardInterrupt(print_never_begun(cli, services.store, e.record)) from None
    services.observer.close()
    if finished is None:
        _say_submitted(cli, saved.plan.run_id if saved else services.store.resolve("last"))
    elif comparing is not None and finished.record.status in ("passed", "incomplete"):
        comparing.report(cli, services, finished.record)
    else:
        (tell or partial(report, cli))(finished.record, services.store.folder(finished.record.run_id))


def print_detached(cli: Cli, run_id: str) -> str:
    """Tell what Ctrl-C did, and the two ways on; returns it too."""
    message = (
        f"detached: run {run_id} goes on without this terminal\n"
        f"  follow it:  fcctl attach {run_id}\n"
        f"  stop it:    fcctl cancel {run_id}"
    )
    cli.note(message)
    return message


def _say_submitted(cli: Cli, run_id: str) -> None:
    if cli.json:
        cli.emit({"run_id": run_id, "status": "submitted", "left_on": cli.left_on_json()})
        return
    click.echo(run_id)
    cli.note(f"submitted; follow it with: fcctl attach {run_id}")


def _show_plan(cli: Cli, prepared: Prepared) -> None:
    from orchestrator.money.caps import as_gcp
    from orchestrator.money.prices.spot import spot_preview
    from orchestrator.views.tables.plan import plan_json, print_plan

    machine = as_gcp(prepared.saved.target)
    spot = spot_preview(machine, cli.workspace().config.budget.prices) if machine is not None else None
    if cli.json:
        cli.emit(plan_json(prepared, spot))
    else:
        print_plan(prepared, cli.console, spot)
