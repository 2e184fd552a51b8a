"""``fcctl tune`` on several machines: what it would cost, agreeing to that, and seeing all of them home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import UsageError
from orchestrator.cli.context import Cli
from orchestrator.cli.prices import own_price

if TYPE_CHECKING:
    from orchestrator.base.observer import Observer
    from orchestrator.cli.launching import Launching
    from orchestrator.machines.provision.wake_options import AcceptedPrices
    from orchestrator.machines.targets import Target
    from orchestrator.runs.job.prepare import Prepared, RunRequest
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.run import Finished
    from orchestrator.runs.services import Services
    from orchestrator.tune.fleet.fleet import FleetCoordinator
    from orchestrator.tune.fleet.plan import FleetPlanner, Plans


def hosts_of(cli: Cli, how: Launching, count: int | None) -> list[Target]:
    """The machines that the command line names; the search is on the first one.

    Raises:
        UsageError: it names them in a way that cannot be.
    """
    workspace = cli.workspace()
    named = [workspace.target(name) for name in (how.target, *how.others)]
    if count is None or count == 1:
        return named
    from orchestrator.tune.fleet.rules import machines

    if len(named) > 1:
        raise UsageError("--hosts makes machines like one target, and --on names several", hint="give one of the two")
    return machines(named[0], count)


def launch(cli: Cli, how: Launching, wanted: Callable[[Target], RunRequest], hosts: Sequence[Target]) -> None:
    """Plan the search on ``hosts[0]`` and members on the others, and see all of it home."""
    from orchestrator import app
    from orchestrator.hosts.recover import remind
    from orchestrator.machines.connect.tunnels import SshTunnels
    from orchestrator.runs.run import run
    from orchestrator.tune.fleet.fleet import FleetCoordinator
    from orchestrator.tune.fleet.plan import plan

    if how.detach:
        raise UsageError(
            "several machines reach each other through this fcctl, which --detach would end",
            hint="leave it running: nohup, tmux or a terminal of its own; or search on one machine",
        )
    with app.observing(cli) as observer:
        services = app.services(cli, observer)
        place = _place(cli, services, hosts, how.accepted)
        plans = plan(services, place, wanted(hosts[0]), hosts[1:])
        if how.dry_run:
            observer.close()
            _show(cli, plans)
            return
        with observer.aside():
            confirm(cli, plans.all)
        remind(services)
        saved, source = plans.search.saved, plans.search.source
        if not cli.quiet:
            observer.note(f"run {saved.plan.run_id}, with {', '.join(host.name for host in hosts[1:])}")
        leader = FleetCoordinator(_maker(cli), SshTunnels(app.connector()), place, plans, how.waking, observer)
        own = leader.services

        def search() -> Finished | None:
            return run(own, leader.link(), saved, source, waking=how.waking)

        _see_home(cli, leader, search)


def resume(cli: Cli, name: str, accepted: AcceptedPrices) -> None:
    """Go on with a search that lost its fcctl, or whose machine was stopped: with all of its machines again."""
    from orchestrator import app
    from orchestrator.machines.connect.tunnels import SshTunnels
    from orchestrator.machines.provision.wake_options import StartOptions
    from orchestrator.runs.cost.own_price import with_own_rates
    from orchestrator.runs.reopen import saved_plan
    from orchestrator.tune.fleet.fleet import FleetCoordinator
    from orchestrator.tune.fleet.resume import go_on_with, plans_of

    with app.observing(cli) as observer:
        services = app.services(cli, observer)
        run_id = services.store.resolve(name)
        search = saved_plan(services, run_id)
        hosts = search.fleet.members if search is not None and search.fleet is not None else []
        place = _place(cli, services, hosts, accepted)
        plans, left = plans_of(services, place, run_id)
        fresh = [p for p in plans.members if p.saved.plan.run_id not in left.get(p.saved.target.name, ())]
        with observer.aside():
            confirm(cli, fresh)
        leader = FleetCoordinator(
            _maker(cli), SshTunnels(app.connector()), place, plans, StartOptions(), observer, left
        )

        def asked(saved: Any) -> None:
            from orchestrator.cli.launching import confirm as agree_on_one

            with observer.aside():
                agree_on_one(cli, saved, capped=place.budget.per_run_usd is not None)

        def priced(saved: SavedPlan) -> SavedPlan:
            return with_own_rates(services, saved, place.budget, accepted)

        _see_home(cli, leader, lambda: go_on_with(leader.services, run_id, asked, leader.check_away, priced))


def confirm(cli: Cli, plans: Sequence[Prepared]) -> None:
    """Ask before anything is spent: once, for all of them together. Not where caps say what each may cost."""
    costly = [
        p for p in plans if p.saved.fence_s is not None and p.saved.target.kind != "sandbox" and p.saved.worst_case_usd
    ]
    if not costly:
        return
    each = [
        f"  {p.saved.target.name}: ${p.saved.worst_case_usd:.2f}, the cloud stops it after"
        f" {(p.saved.fence_s or 0) / 60:.0f} minutes"
        for p in costly
    ]
    total = sum(p.saved.worst_case_usd for p in costly)
    text = "\n".join([f"the search on {len(plans)} machines may cost ${total:.2f} at most", *each])
    if all(p.capped for p in costly):
        cli.note(text)
    else:
        cli.confirm(text)


def _place(cli: Cli, services: Services, hosts: Sequence[Target], accepted: AcceptedPrices) -> FleetPlanner:
    """The workspace, with the price that each of the machines has."""
    from orchestrator.tune.fleet.plan import FleetPlanner

    workspace = cli.workspace()
    budget = workspace.config.budget
    for host in hosts:
        budget = own_price(services, host, budget, accepted)
    return FleetPlanner(workspace.root, workspace.config.project.name, budget)


def _maker(cli: Cli) -> Callable[[Observer], Services]:
    """What workflows may touch, anew for each thread, with an observer of its own."""
    from orchestrator import app

    return lambda observer: app.services(cli, observer)


def _see_home(cli: Cli, leader: FleetCoordinator, search: Callable[[], Finished | None]) -> None:
    from orchestrator.cli.run_end import report
    from orchestrator.runs.run import Detached, NeverSubmitted

    try:
        finished = leader.coordinate(search)
    except Detached as left:
        leader.observer.close()
        raise KeyboardInterrupt(_say_left(cli, left.run_id, leader)) from None
    except NeverSubmitted as over:
        from orchestrator.cli.interrupted import print_never_begun

        leader.observer.close()
        said = print_never_begun(cli, leader.services.store, over.record, list(leader.members.values()))
        raise KeyboardInterrupt(said) from None
    leader.observer.close()
    if finished is None:
        raise RuntimeError("a search that is waited for has an end")
    for member in leader.members.values():
        cost = f", ${member.usd:.2f}" if member.usd else ""
        cli.note(f"host {member.name}: {member.status}{cost}  {' '.join(member.runs)}")
    members = [
        {"host": m.name, "runs": m.runs, "status": m.status, "usd": round(m.usd, 6)} for m in leader.members.values()
    ]
    store = leader.services.store
    report(cli, finished.record, store.folder(finished.record.run_id), {"members": members})


def _say_left(cli: Cli, run_id: str, leader: FleetCoordinator) -> str:
    others = ", ".join(leader.members)
    message = (
        f"detached: the search {run_id} goes on without this terminal, without {others}\n"
        f"  with them again:  fcctl tune --resume {run_id}\n"
        f"  only follow it:   fcctl attach {run_id}\n"
        f"  stop it:          fcctl cancel {run_id}"
    )
    cli.note(message)
    return message


def _show(cli: Cli, plans: Plans) -> None:
    from orchestrator.views.tables.plan import fleet_json, print_fleet

    if cli.json:
        cli.emit(fleet_json(plans))
    else:
        print_fleet(plans, cli.console)
