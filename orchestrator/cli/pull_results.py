"""``fcctl pull-results``: bring home what is not home yet."""

from __future__ import annotations

import click

from orchestrator.cli.context import Cli


@click.command("pull-results")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--wait", is_flag=True, help="Wait for runs that still go on.")
@click.pass_obj
def pull_results(cli: Cli, runs: tuple[str, ...], wait: bool) -> None:
    """Collect the results of RUNs, or of every run that has ended and is not here yet.

    Safe to repeat: what is here and verified is not sent again, what was cut off goes on where it stopped.
    """
    from orchestrator.app import opened
    from orchestrator.errors import HostUnreachable, RunNotFinished
    from orchestrator.workflows.resume import attach, settle

    with opened(cli) as services:
        ids = [services.store.resolve(name) for name in runs] if runs else services.store.active()
        here = [run_id for run_id in ids if services.store.is_complete(run_id)]
        waiting = [run_id for run_id in ids if run_id not in here]
        if wait:
            for run_id in waiting:
                attach(services, run_id)
            left = []
        else:
            left = settle(services, waiting)
        pulled = [run_id for run_id in waiting if services.store.is_complete(run_id)]
        folders = {run_id: str(services.store.folder(run_id)) for run_id in [*here, *pulled]}
    if cli.json:
        cli.emit({"pulled": pulled, "already_here": here, "active": [s.run_id for s in left], "folders": folders})
    else:
        for run_id in pulled:
            click.echo(folders[run_id])
        for run_id in here:
            cli.note(f"{run_id} is here already: {folders[run_id]}")
        if not ids:
            cli.note("nothing to pull: every run is here")
    gone = [s for s in left if s.state == "unreachable"]
    if gone:
        raise HostUnreachable(
            f"{len(gone)} of {len(ids)} runs could not be collected: {gone[0].target} is unreachable",
            reason="timeout",
            cause=gone[0].detail,
            hint="try again later, or end such a run with: fcctl cancel --give-up " + gone[0].run_id,
        )
    if left and runs:
        raise RunNotFinished(
            f"{left[0].run_id} has not ended ({left[0].state})",
            hint=f"fcctl attach {left[0].run_id} follows it; fcctl pull-results --wait {left[0].run_id} waits",
        )
