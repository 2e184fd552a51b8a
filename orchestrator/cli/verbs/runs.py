"""``fcctl ps``, ``logs``, ``attach``, ``cancel`` and ``pull-results``."""

from __future__ import annotations

import os
import sys
from codecs import IncrementalDecoder, getincrementaldecoder
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from orchestrator.app import opened, terminal_command
from orchestrator.base.errors import (
    FcctlError,
    HostUnreachable,
    MachineStopped,
    RunNotFinished,
    RunNotFound,
    UsageError,
    plural,
)
from orchestrator.base.sanitize import LineCleaner
from orchestrator.cli.context import Cli, CliCommand, accepting_prices

if TYPE_CHECKING:
    from orchestrator.machines.targets import AcceptedPrices
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.reopen import ActiveState, Remaining
    from orchestrator.runs.services import Services


@click.command(cls=CliCommand)
@click.option("--offline", is_flag=True, help="Show only what this computer stored; do not query hosts.")
def ps(cli: Cli, offline: bool) -> None:
    """List active runs, after completing those that have ended.

    This also handles runs whose fcctl was killed or detached: if the run has ended, its results are collected; if it
    was never submitted, it is closed. A host that does not answer within 5 s is shown as unreachable.

    The list shows each run's cost so far and worst case. Below it: machines that are on, with dollars per hour, as this
    computer last saw them; and today's spending with the day's cap.
    """
    from orchestrator.hosts.recover import recover
    from orchestrator.machines.connect.reconnect import Hurry
    from orchestrator.runs.cost.machine_cost import cost_so_far
    from orchestrator.runs.cost.outlook import money_now
    from orchestrator.runs.reopen import known
    from orchestrator.views.top import print_active

    with opened(cli, quiet=True) as services:
        states = known(services) if offline else recover(services, hurry=Hurry())
        now, store, money = services.clock.now(), services.store, money_now(services)
        estimates = {state.run_id: cost_so_far(store, state.run_id, now) for state in states}
        costs = {run_id: cost for run_id, cost in estimates.items() if cost is not None}
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


@click.command(cls=CliCommand)
@click.argument("run", default="last")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run ends.")
@click.option("--step", metavar="STEP", help="Only this step.")
def logs(cli: Cli, run: str, follow: bool, step: str | None) -> None:
    """Print the logs of RUN's steps: an id, the first or last characters of one, or `last`.

    On a terminal, control characters are removed; a pipe or a file gets the original bytes. With --json,
    each line is `{run_id, step, text}`; the texts of a step, concatenated, are its log.
    """
    from orchestrator.runs.logs import read_logs

    if cli.json:
        _as_json(cli, run, step, wait=follow)
        return
    out = sys.stdout.buffer
    cleaner = LineCleaner() if sys.stdout.isatty() else None
    with opened(cli, quiet=True) as services:
        run_id = services.store.resolve(run)
        shown, written = None, 0
        for piece in read_logs(services, run_id, step, wait=follow):
            if step is None and piece.step != shown and not cli.quiet:
                sys.stdout.flush()
                out.write(f"==> {piece.step} <==\n".encode())
            shown = piece.step
            written += len(piece.data)
            out.write(cleaner.feed(piece.data) if cleaner else piece.data)
            out.flush()
    if not written:
        cli.note(f"the run has no log output; for its status: fcctl ps, or fcctl results show {run_id}")


def _as_json(cli: Cli, run: str, step: str | None, *, wait: bool) -> None:
    from orchestrator.runs.logs import read_logs

    # A piece may end within a character; what begins it waits for the next one.
    decoders: dict[str, IncrementalDecoder] = {}
    with opened(cli, quiet=True) as services:
        run_id = services.store.resolve(run)
        for piece in read_logs(services, run_id, step, wait=wait):
            decoder = decoders.setdefault(piece.step, getincrementaldecoder("utf-8")("replace"))
            if text := decoder.decode(piece.data):
                cli.emit({"run_id": run_id, "step": piece.step, "text": text})
        for name, decoder in decoders.items():
            if text := decoder.decode(b"", final=True):
                cli.emit({"run_id": run_id, "step": name, "text": text})


@click.command(cls=CliCommand)
@click.argument("run", default="last")
@click.option("--tmux", is_flag=True, help="Open the run's tmux session on its host instead (leave it with C-b d).")
def attach(cli: Cli, run: str, tmux: bool) -> None:
    """Follow RUN to its end and collect it, as `fcctl run` does. Ctrl-C detaches again."""
    from orchestrator.cli.failures import report_run
    from orchestrator.cli.launching import keep_awake, print_detached
    from orchestrator.runs import reopen as resume

    if tmux and cli.json:
        raise click.UsageError("--tmux uses the terminal and cannot be used with --json")
    with opened(cli) as services:
        run_id = services.store.resolve(run)
        if not services.store.is_complete(run_id):
            if tmux:
                _open_tmux(run_id, resume.saved_plan(services, run_id))
            keep_awake()
            try:
                resume.attach(services, run_id)
            except KeyboardInterrupt:
                services.observer.close()
                raise KeyboardInterrupt(print_detached(cli, run_id)) from None
        record, folder = services.store.get(run_id), services.store.folder(run_id)
    report_run(cli, record, folder)


def _open_tmux(run_id: str, saved: SavedPlan | None) -> None:
    if saved is None:
        raise RunNotFound(f"no active run {run_id}", hint="to list active runs: fcctl ps")
    argv = terminal_command(saved.target, run_id)
    os.execvp(argv[0], argv)  # noqa: S606 - the terminal becomes tmux's


@click.command(cls=CliCommand)
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@click.option("--all", "everything", is_flag=True, help="Every active run.")
@click.option("--grace", "grace_s", type=click.FloatRange(0, 600), default=10.0, show_default=True, metavar="SECONDS",
              help="Time between SIGTERM and SIGKILL.")  # fmt: skip
@click.option(
    "--give-up", is_flag=True, help="For a host that no longer exists: do not contact it; close the run as lost."
)
def cancel(cli: Cli, runs: tuple[str, ...], everything: bool, grace_s: float, give_up: bool) -> None:
    """Stop RUNs and collect their results. The active step gets SIGTERM, then SIGKILL."""
    from orchestrator.runs.reopen import with_members

    if not runs and not everything:
        raise UsageError("no run named", hint="to list active runs: fcctl ps; to cancel all of them: --all")
    with opened(cli, quiet=True) as services:
        named = services.store.active() if everything else [services.store.resolve(name) for name in runs]
        ids = with_members(services.store, named)
        if not ids:
            cli.note("no active runs")
        results: list[dict[str, Any]] = []
        failed: list[FcctlError] = []
        for run_id in ids:
            if services.store.is_complete(run_id):
                results.append({"run_id": run_id, "status": services.store.get(run_id).status, "changed": False})
                cli.note(f"{run_id} has already ended: {services.store.get(run_id).status}")
                continue
            try:
                status = _end(services, run_id, grace_s, give_up=give_up)
            except FcctlError as error:  # one host that is away must not keep the runs of others going
                failed.append(error)
                results.append({"run_id": run_id, "status": None, "changed": False, "error": error.message})
                cli.note(f"{run_id}: not cancelled: {error.message}")
                continue
            results.append({"run_id": run_id, "status": status or "cancelling", "changed": True})
            cli.note(f"{run_id}: {status or 'cancelling; the fcctl process that follows the run collects its results'}")
    if failed and (len(ids) == 1 or not cli.json):
        raise failed[0]
    cli.show({"runs": results, "left_on": cli.left_on_json()})
    if failed:
        raise SystemExit(failed[0].exit_code)


def _end(services: Services, run_id: str, grace_s: float, *, give_up: bool) -> str | None:
    from orchestrator.runs import reopen as workflow

    if give_up:
        return workflow.give_up(services, run_id).status
    record = workflow.cancel(services, run_id, reason="cancelled by the user", grace_s=grace_s)
    return record.status if record else None


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
    from orchestrator.views.top import remaining_text

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
    """Returns the error for the first run whose results are on the disk of a machine that is off; None without one."""
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
