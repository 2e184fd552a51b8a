"""``fcctl session``: a machine kept warm for interactive work, within one budget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from orchestrator import app
from orchestrator.base.errors import NotFoundError, UsageError, did_you_mean, plural
from orchestrator.cli.context import DOLLARS, POSITIVE, Cli, CliGroup, Finite, accepting_prices
from orchestrator.leases.session_rules import OpenSession, ended, underway
from orchestrator.machines.targets import AcceptedPrices
from orchestrator.runs.cost.estimate import with_own_price
from orchestrator.runs.services import Services
from orchestrator.sessions import session as workflow
from orchestrator.sessions.plan import plan_session
from orchestrator.sessions.session import SessionStatus, recover, so_far, standing
from orchestrator.views.figures import duration
from orchestrator.views.tables.hosts import session_json, session_line

if TYPE_CHECKING:
    from orchestrator.hosts.lost_session import LostSession

#: Between two looks of the live line at the machine, and between two of its frames, seconds.
LOOK_S, FRAME_S = 15.0, 1.0


@click.group(cls=CliGroup)
def session() -> None:
    """Keep a machine on for several runs, within one budget."""


@session.command()
@click.option(
    "--on", "target", metavar="TARGET", help="Target whose machine to use (default: the workspace's default target)."
)
@click.option("--budget", type=DOLLARS, metavar="USD",
              help="The most that the session may cost (default: per_session_usd of [budget]).")  # fmt: skip
@click.option("--max-hours", type=POSITIVE, metavar="H", help="Maximum duration, even if budget remains.")
@click.option("--idle-minutes", type=Finite(min=2, max=24 * 60), default=15.0, show_default=True, metavar="N",
              help="The machine stops itself when no run has used it for this time.")  # fmt: skip
@click.option("--restart", is_flag=True, help="Stop the machine first if it is on, and start it with a new time limit.")
@accepting_prices
def start(
    cli: Cli, target: str | None, budget: float | None, max_hours: float | None, idle_minutes: float, restart: bool,
    accepted: AcceptedPrices,
) -> None:  # fmt: skip
    """Start TARGET's machine and keep it on until the budget is spent.

    Runs on this target use the machine and leave it on. A run is refused if its worst case exceeds the remaining
    budget. The cloud stops the machine when the budget is spent, and the machine stops itself when idle, even if this
    computer is off.
    """
    workspace = cli.workspace()
    wanted = workspace.target(target)
    with app.opened(cli) as services:
        caps = with_own_price(services, wanted, workspace.config.budget, accepted)
        saved = plan_session(services, caps, wanted, budget, max_hours, idle_minutes, workspace.tree_name)
        cli.note(
            f"{wanted.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops it after"
            f" {duration(saved.fence_s)}, and the machine stops itself after {idle_minutes:g} idle minutes"
        )
        opened = workflow.start(services, saved, restart=restart)
        services.observer.close()
    if cli.show({**_opened_json(opened), "left_on": cli.left_on_json()}):
        return
    click.echo(saved.session_id)
    cli.note(f"{wanted.name} is on; to use it: fcctl run JOB --on {wanted.name}; fcctl hosts ssh {wanted.name}")
    cli.note("to see its state: fcctl session status; to stop it: fcctl session stop")


@session.command()
@click.option("--keep", is_flag=True, help="While this command runs, the machine does not stop itself when idle.")
@click.option("--once", is_flag=True, help="Print the status once and return, also on a terminal.")
def status(cli: Cli, keep: bool, once: bool) -> None:
    """Show dollars per hour, spent and remaining dollars of each open session; updates on a terminal until Ctrl-C.

    This does not count as use: an idle machine still stops itself, unless `--keep` is given. Ended sessions are closed.
    """
    live = sys.stdout.isatty() and not cli.json and not once
    with app.opened(cli, quiet=True) as services:
        while True:
            stands = _look(services, keep=keep)
            if cli.json:
                cli.emit({"sessions": [session_json(s, services.clock.now()) for s in stands]})
                return
            if not stands:
                cli.note("no open session")
                return
            if not live:
                for one in stands:
                    cli.console.print(session_line(one, services.clock.now()), highlight=False, soft_wrap=True)
                return
            _live(cli, services, stands)


def _look(services: Services, *, keep: bool) -> list[SessionStatus]:
    recover(services, look_at_all=True)
    return [standing(services, one, keep=keep) for one in underway(services.sessions)]


def _live(cli: Cli, services: Services, stands: list[SessionStatus]) -> None:
    """The lines, second by second, until it is time to ask the machine again."""
    from rich.live import Live

    until = services.clock.monotonic() + LOOK_S
    with Live(console=cli.console, auto_refresh=False, transient=True) as shown:
        while services.clock.monotonic() < until:
            now = services.clock.now()
            shown.update("\n".join(session_line(one, now) for one in stands), refresh=True)
            services.clock.sleep(FRAME_S)


@session.command()
@click.argument("name", required=False, metavar="[SESSION]")
@click.option("--on", "target", metavar="TARGET", help="The session of this target's machine.")
@click.option("--force", is_flag=True, help="Stop it even if a run uses it.")
def stop(cli: Cli, name: str | None, target: str | None, force: bool) -> None:
    """Stop the session's machine, wait until it is off, and print the cost. Refused while a run uses it."""
    with app.opened(cli) as services:
        found = _readable(services)
        is_readable = any(_is_meant(one.saved.session_id, one.saved.target.name, name, target) for one in found)
        lost = None if is_readable else _lost(cli, services, name, target)
        if lost is not None:
            _stop_lost(cli, services, lost, force=force)
            return
        session_id = _named(found, name, target)
        record = workflow.stop(services, session_id, force=force)
        services.observer.close()
    unread = services.unread.take() if cli.json else []
    if cli.show({**record.model_dump(mode="json"), "left_on": cli.left_on_json(), "unread": unread}):
        return
    cli.note(f"session {record.session_id} ended: ${record.usd:.2f} of ${record.budget_usd:.2f},"
    f" {plural(len(record.runs), 'run')}; its report: fcctl session report")  # fmt: skip


@session.command()
@click.argument("name", required=False, metavar="[SESSION]")
def report(cli: Cli, name: str | None) -> None:
    """Print the report of SESSION (default: the last), as Markdown, for the person who continues the work.

    Its runs, the best results, runs that did not pass, cost by activity, open targets, next levers and next commands.
    Each session writes it when it ends: report.md and report.json in results/sessions/SESSION/.
    """
    from orchestrator.views.report.session import markdown, report_of

    with app.opened(cli, quiet=True) as services:
        records = [*ended(services.sessions), *(so_far(services, one) for one in underway(services.sessions))]
        found = [one for one in sorted(records, key=lambda one: one.created) if name is None or name in one.session_id]
        if not found:
            hint = (
                did_you_mean(name, [one.session_id for one in records]) if name and records else "fcctl session start"
            )
            raise NotFoundError(f"no session '{name}'" if name else "this workspace has had no session", hint=hint)
        made = report_of(cli.workspace(), services, found[-1])
    cli.show(made.as_json(), lambda: click.echo(markdown(made), nl=False))


def _readable(services: Services) -> list[OpenSession]:
    found: list[OpenSession] = []
    with services.unread.noted():
        found += underway(services.sessions)
    return found


def _lost(cli: Cli, services: Services, name: str | None, target: str | None) -> LostSession | None:
    """The session that is meant, if the ledger alone has it. Raises UsageError."""
    from orchestrator.hosts.lost_session import lost_sessions

    candidates = [
        one for one in lost_sessions(services, cli.workspace().config.targets)
        if _is_meant(one.session_id, one.target.name, name, target)
    ]  # fmt: skip
    _only([one.session_id for one in candidates])
    return candidates[0] if candidates else None


def _stop_lost(cli: Cli, services: Services, lost: LostSession, *, force: bool) -> None:
    from orchestrator.hosts.lost_session import stop as stop_lost

    done = stop_lost(services, lost, workspace=cli.workspace().label, force=force)
    services.observer.close()
    stopped = [{"zone": one.zone, "how": one.how} for one in done]
    document = {"session_id": lost.session_id, "target": lost.target.name, "stopped": stopped}
    unread = services.unread.take() if cli.json else []
    if not cli.show({**document, "left_on": cli.left_on_json(), "unread": unread}):
        cli.note(
            f"the machine of session {lost.session_id} is off; the session's files cannot be read, so that it has no"
            " report; its cost: fcctl cost ledger"
        )


def _is_meant(session_id: str, of_target: str, name: str | None, target: str | None) -> bool:
    return target in (None, of_target) and (name or "") in session_id


def _only(ids: list[str]) -> None:
    """Raises UsageError if there are several."""
    if len(ids) > 1:
        raise UsageError(f"{len(ids)} sessions are open", hint=f"name one: fcctl session stop {ids[0]}")


def _named(found: list[OpenSession], name: str | None, target: str | None) -> str:
    """The one session that is meant. Raises NotFoundError, UsageError."""
    candidates = [s.saved for s in found if target in (None, s.saved.target.name)]
    ids = [saved.session_id for saved in candidates if name is None or name in saved.session_id]
    if not ids:
        hint = (
            did_you_mean(name, [s.session_id for s in candidates]) if name else "to see what is on: fcctl hosts audit"
        )
        of_target = f" of target '{target}'" if target else ""
        raise NotFoundError(
            f"no open session '{name}'{of_target}" if name else f"no session{of_target} is open", hint=hint
        )
    _only(ids)
    return ids[0]


def _opened_json(opened: OpenSession) -> dict[str, object]:
    saved, machine = opened.saved, opened.machine
    return {
        "session_id": saved.session_id, "target": saved.target.name, "budget_usd": saved.budget_usd,
        "worst_usd": saved.worst_case_usd, "fence_s": saved.fence_s, "idle_minutes": saved.idle_minutes,
        "instance": machine.name if machine else None, "zone": machine.zone if machine else None,
        "deadline": machine.deadline if machine else None,
    }  # fmt: skip
