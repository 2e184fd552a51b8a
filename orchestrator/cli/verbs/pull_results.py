"""``fcctl pull-results``: collects what is not collected yet."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from orchestrator.app import opened
from orchestrator.base.errors import FcctlError, HostUnreachable, MachineStopped, RunNotFinished, plural
from orchestrator.cli.context import Cli, CliCommand, accepting_prices

if TYPE_CHECKING:
    from orchestrator.machines.targets import AcceptedPrices
    from orchestrator.runs.reopen import ActiveState, Remaining
    from orchestrator.runs.services import Services


@click.command("pull-results", cls=CliCommand)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--wait", is_flag=True, help="Wait for runs that are still active.")
@click.option("--wake", is_flag=True, help="Start a stopped cloud machine to fetch the results from its disk.")
@accepting_prices
def pull_results(cli: Cli, runs: tuple[str, ...], wait: bool, wake: bool, accepted: AcceptedPrices) -> None:
    """Collect the results of RUNs, or of every run that has ended and is not collected yet.

    You can repeat this command: verified files are not sent again, and an interrupted transfer continues where it
    stopped. Results on the disk of a machine that is off stay there; fcctl prints what it costs to fetch them, and
    `--wake` fetches them.
    """
    from orchestrator.hosts.recover import recover
    from orchestrator.runs.reopen import attach, remaining

    with opened(cli) as services:
        ids = [services.store.resolve(name) for name in runs] if runs else services.store.active()
        here = [run_id for run_id in ids if services.store.is_complete(run_id)]
        waiting = [run_id for run_id in ids if run_id not in here]
        failures: dict[str, FcctlError] = {}
        left: list[ActiveState] = []
        if wait:
            for run_id in waiting:
                try:
                    attach(services, run_id)
                except FcctlError as error:  # the others may be on hosts that answer
                    failures[run_id] = error
        left = recover(services, [] if wait else waiting, releases="all")
        if wake:
            left = _wake(cli, services, left, failures, accepted)
        pulled = [run_id for run_id in waiting if services.store.is_complete(run_id)]
        off, waiting_for = _off(services, left), remaining(services, left)
        folders = {run_id: str(services.store.folder(run_id)) for run_id in [*here, *pulled]}
    problem = next((error for run_id, error in failures.items() if run_id not in pulled), None)
    problem = problem or off or _problem(left, len(ids), named=bool(runs))
    if cli.json:
        active = [run_id for run_id in waiting if run_id not in pulled]
        error_json = problem.as_json()["error"] if problem else None
        cli.emit({
            "pulled": pulled, "already_here": here, "active": active, "folders": folders, "error": error_json,
            "remaining": [asdict(run) for run in waiting_for], "left_on": cli.left_on_json(),
        })  # fmt: skip
        raise SystemExit(problem.exit_code if problem else 0)
    for run_id in pulled:
        click.echo(folders[run_id])
    for run_id in here:
        cli.note(f"{run_id} is already collected: {folders[run_id]}")
    _say_remaining(cli, waiting_for)
    if not ids:
        cli.note("nothing to pull: every run is collected")
    if problem:
        raise problem


def _say_remaining(cli: Cli, runs: list[Remaining]) -> None:
    """Which runs have not ended, and when to come back."""
    from orchestrator.views.live.active import remaining_text

    for run in runs:
        cli.note(f"{run.run_id} {remaining_text(run)}")
    if runs:
        names = runs[0].run_id if len(runs) == 1 else ""
        cli.note(f"run this command again then, or wait: fcctl pull-results --wait {names}".rstrip())


def _wake(
    cli: Cli, services: Services, left: list[ActiveState], failures: dict[str, FcctlError], accepted: AcceptedPrices,
) -> list[ActiveState]:  # fmt: skip
    """Fetch what is on machines that are off; the states of the others."""
    from orchestrator.runs.cost.estimate import with_own_rates
    from orchestrator.runs.reopen import fetch, saved_plan

    asleep = [state.run_id for state in left if state.state == "waiting"]
    budget, plans = cli.workspace().config.budget, {}
    for run_id in asleep:
        try:
            if (plan := saved_plan(services, run_id)) is not None:
                plans[run_id] = with_own_rates(services, plan, budget, accepted)
        except FcctlError as error:
            failures[run_id] = error
    cost = sum(0.0 if plan.target.kind == "sandbox" else plan.wake_usd for plan in plans.values())
    if cost > 0:
        with services.observer.aside():
            cli.confirm(f"starting {plural(len(plans), 'machine')} to fetch results costs ${cost:.2f} at most")
    for run_id, plan in plans.items():
        try:
            fetch(services, run_id, plan)
        except FcctlError as error:
            failures[run_id] = error
    return [state for state in left if state.state != "waiting"]


def _off(services: Services, left: list[ActiveState]) -> FcctlError | None:
    """What is to be said of a run that waits on a machine that is off."""
    from orchestrator.runs.reopen import saved_plan

    state = next((state for state in left if state.state == "waiting"), None)
    saved = saved_plan(services, state.run_id) if state is not None else None
    if state is None or saved is None:
        return None
    status = (state.detail or "").partition(":")[0]
    return MachineStopped(
        f"the results of {state.run_id} are on the disk of {state.target}, which is off",
        how="off",
        status=status,
        cause=state.detail,
        hint=f"to fetch them for ${saved.wake_usd:.2f} at most: fcctl pull-results --wake {state.run_id}; to resume"
        f" the run: {saved.again}",
    )


def _problem(left: list[ActiveState], asked: int, *, named: bool) -> FcctlError | None:
    """The error about runs that were not collected; about an active one only if it was named."""
    unreachable = [s for s in left if s.state == "unreachable"]
    if unreachable:
        return HostUnreachable(
            f"could not collect {len(unreachable)} of {plural(asked, 'run')}: {unreachable[0].target} is unreachable",
            reason="timeout",
            cause=unreachable[0].detail,
            hint="try again later; if the host no longer exists, close the run as lost: fcctl cancel --give-up"
            " " + unreachable[0].run_id,
        )
    broken = [s for s in left if s.state == "broken"]
    if broken:
        return FcctlError(
            f"could not collect {len(broken)} of {plural(asked, 'run')}; the first is {broken[0].run_id}",
            cause=broken[0].detail,
            hint=f"correct the cause, then: fcctl pull-results {broken[0].run_id}",
        )
    if left and named:
        return RunNotFinished(
            f"{left[0].run_id} is still active ({left[0].state})",
            hint=f"to follow it: fcctl attach {left[0].run_id}; to wait for it: fcctl pull-results --wait"
            f" {left[0].run_id}",
        )
    return None
