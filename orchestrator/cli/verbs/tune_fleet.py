"""``fcctl tune`` on several machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from orchestrator import app
from orchestrator.base.errors import UsageError
from orchestrator.cli import launching
from orchestrator.cli.context import Cli
from orchestrator.cli.failures import report_run
from orchestrator.cli.launching import Launching
from orchestrator.hosts.recover import remind
from orchestrator.machines.connect.tunnels import SshTunnels
from orchestrator.machines.targets import AcceptedPrices, Target
from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.estimate import with_own_price
from orchestrator.runs.job.prepare import Prepared, RunRequest
from orchestrator.runs.run import Finished, run
from orchestrator.runs.services import Services
from orchestrator.runs.source.revision import Revision
from orchestrator.tune.fleet import FleetCoordinator, FleetPlanner, plan
from orchestrator.tune.fleet_rules import machines
from orchestrator.views.tables.plan import fleet_json, print_fleet


def hosts_of(cli: Cli, how: Launching, count: int | None) -> list[Target]:
    """The machines that the command line names; the search is on the first one. Raises UsageError: it names them in a
    way that cannot be."""
    workspace = cli.workspace()
    named = [workspace.target(name) for name in (how.target, *how.others)]
    if count is None or count == 1:
        return named
    if len(named) > 1:
        raise UsageError("--hosts cannot be used with several --on", hint="use only one of the two")
    return machines(named[0], count)


def launch(
    cli: Cli, how: Launching, wanted: Callable[[Target], RunRequest], there: Revision | None, hosts: Sequence[Target],
) -> None:  # fmt: skip
    """Plans the search on ``hosts[0]`` and members on the others, runs and collects all of it."""
    if how.detach:
        raise UsageError(
            "--detach cannot be used with several machines: they reach each other through this command",
            hint="keep this command running in tmux or with nohup; or search on one machine",
        )
    with app.observing(cli) as observer:
        services = app.services(cli, observer)
        place = _place(cli, services, hosts, how.accepted)
        plans = plan(services, place, wanted(hosts[0]), hosts[1:], there.read() if there else None)
        if how.dry_run:
            observer.close()
            cli.show(fleet_json(plans), lambda: print_fleet(plans, cli.console))
            return
        with observer.aside():
            _confirm(cli, plans.all)
        remind(services)
        saved, source = plans.search.saved, plans.search.source
        if not cli.quiet:
            observer.note(f"run {saved.plan.run_id}, with {', '.join(host.name for host in hosts[1:])}")
        leader = FleetCoordinator(partial(app.services, cli), SshTunnels(app.connector()), plans, how.waking, observer)
        own = leader.services

        def search() -> Finished | None:
            return run(own, leader.link(), saved, source, waking=how.waking)

        _collect_and_finish(cli, leader, search)


def _confirm(cli: Cli, plans: Sequence[Prepared]) -> None:
    capped = all(one.capped for one in plans if one.saved.worst_case_usd)
    launching.confirm(cli, [one.saved for one in plans], capped=capped)


def _place(cli: Cli, services: Services, hosts: Sequence[Target], accepted: AcceptedPrices) -> FleetPlanner:
    """The workspace, with the price that each of the machines has."""
    workspace = cli.workspace()
    budget = workspace.config.budget
    for host in hosts:
        budget = with_own_price(services, host, budget, accepted)
    return FleetPlanner(workspace.root, workspace.config.project.name, budget)


def _collect_and_finish(cli: Cli, leader: FleetCoordinator, search: Callable[[], Finished | None]) -> None:
    def tell(record: RunRecord, folder: Path) -> None:
        for member in leader.members.values():
            cost = f", ${member.usd:.2f}" if member.usd else ""
            cli.note(f"host {member.name}: {member.status}{cost}  {member.run_id}")
        members = [
            {"host": m.name, "runs": [m.run_id], "status": m.status, "usd": round(m.usd, 6)}
            for m in leader.members.values()
        ]
        report_run(cli, record, folder, {"members": members})

    launching.collect_and_finish(
        cli, leader.services, lambda: leader.coordinate(search), tell=tell, members=leader.members
    )
