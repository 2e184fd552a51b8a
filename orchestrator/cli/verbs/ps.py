"""``fcctl ps``: the runs that are not complete."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli


@click.command()
@click.option("--offline", is_flag=True, help="Ask no host: only what this machine knows.")
@click.pass_obj
def ps(cli: Cli, offline: bool) -> None:
    """List active runs, after completing those that have ended.

    A run whose fcctl was killed or detached is picked up here: if its host says it is over, its results are brought
    home; if it was never submitted, it is closed. A host that does not answer within 5 s is unreachable.

    Beside each is what it has cost so far and at worst; below, machines that are on with dollars an hour, as far as
    this computer knows, and what was spent today of the day's cap.
    """
    from orchestrator.app import opened
    from orchestrator.hosts.recover import recover
    from orchestrator.machines.connect.reconnect import Hurry
    from orchestrator.runs.cost.money_now import money_now
    from orchestrator.runs.cost.so_far import cost_so_far
    from orchestrator.runs.reopen import known
    from orchestrator.views.live.active import print_active

    with opened(cli, quiet=True) as services:
        states = known(services) if offline else recover(services, hurry=Hurry())
        now, store, money = services.clock.now(), services.store, money_now(services)
        found = {state.run_id: cost_so_far(store, state.run_id, now) for state in states}
        costs = {run_id: cost for run_id, cost in found.items() if cost is not None}
    if cli.json:
        from fcctl_remote import wire

        none = {"usd": None, "usd_per_hour": None, "worst_case_usd": None}
        runs = [
            {**wire.encode(vars(state)), **(costs[state.run_id].as_json() if state.run_id in costs else none)}
            for state in states
        ]
        cli.emit({"runs": runs, **money.as_json(now)})
        return
    print_active(states, cli.console, now, costs, money)
