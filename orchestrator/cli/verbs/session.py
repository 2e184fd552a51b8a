"""``fcctl session``: a machine kept warm for interactive work, within one budget."""

from __future__ import annotations

import sys

import click

from orchestrator import app
from orchestrator.base.errors import NotFoundError, UsageError, did_you_mean
from orchestrator.cli.context import Cli
from orchestrator.cli.options import DOLLARS, POSITIVE, Finite, accepting_prices
from orchestrator.leases.find import OpenSession, underway
from orchestrator.machines.provision.wake_options import AcceptedPrices
from orchestrator.runs.cost.estimate import with_own_price
from orchestrator.runs.job.prepare import tree_name
from orchestrator.runs.services import Services
from orchestrator.sessions import session as workflow
from orchestrator.sessions.plan import plan_session
from orchestrator.sessions.session import SessionStatus, recover, standing
from orchestrator.views.figures import duration
from orchestrator.views.tables.hosts import session_json, session_line

#: Between two looks of the live line at the machine, and between two of its frames, seconds.
LOOK_S, FRAME_S = 15.0, 1.0


@click.group()
def session() -> None:
    """Keep a machine warm for several runs, within one budget."""


@session.command()
@click.option("--on", "target", metavar="TARGET", help="Whose machine; the workspace's default target otherwise.")
@click.option(
    "--budget", type=DOLLARS, metavar="USD",
    help="The most all of it may cost; per_session_usd of [budget] otherwise.",
)  # fmt: skip
@click.option("--max-hours", type=POSITIVE, metavar="H", help="No longer than this, even if the budget lasts.")
@click.option(
    "--idle-minutes", type=Finite(min=2, max=24 * 60), default=15.0, show_default=True, metavar="N",
    help="The machine stops itself when no run was on it for so long.",
)  # fmt: skip
@click.option("--restart", is_flag=True, help="Stop the machine if it is on; it gets a time limit anew.")
@accepting_prices
@click.pass_obj
def start(
    cli: Cli,
    target: str | None,
    budget: float | None,
    max_hours: float | None,
    idle_minutes: float,
    restart: bool,
    accepted: AcceptedPrices,
) -> None:
    """Wake TARGET's machine and keep it warm for what the budget buys.

    Runs on it find it warm, leave it on, and are refused if they may cost more than is left. The cloud stops it when
    the budget is spent, and it stops itself when it idles, whether or not this computer is there.
    """
    workspace = cli.workspace()
    wanted = workspace.target(target)
    with app.opened(cli) as services:
        caps = with_own_price(services, wanted, workspace.config.budget, accepted)
        name = tree_name(workspace.config.project.name, workspace.root)
        saved = plan_session(services, caps, wanted, budget, max_hours, idle_minutes, name)
        cli.note(
            f"{wanted.name} may cost ${saved.worst_case_usd:.2f} at most: the cloud stops it after"
            f" {duration(saved.fence_s)}, and it stops itself after {idle_minutes:g} idle minutes"
        )
        opened = workflow.start(services, saved, restart=restart)
        services.observer.close()
    if cli.show({**_opened_json(opened), "left_on": cli.left_on_json()}):
        return
    click.echo(saved.session_id)
    cli.note(f"{wanted.name} is warm: fcctl run JOB --on {wanted.name}; fcctl hosts ssh {wanted.name}")
    cli.note("how it stands: fcctl session status; end it: fcctl session stop")


@session.command()
@click.option("--keep", is_flag=True, help="While this is open, the machine does not stop itself for idling.")
@click.option("--once", is_flag=True, help="Print it and return, on a terminal too.")
@click.pass_obj
def status(cli: Cli, keep: bool, once: bool) -> None:
    """What each open session burns, has spent and has left; a live line on a terminal, until Ctrl-C.

    Looking changes nothing and keeps nothing awake; `--keep` does. Sessions that are over by now are closed.
    """
    live = sys.stdout.isatty() and not cli.json and not once
    with app.opened(cli, quiet=True) as services:
        while True:
            stands = _look(services, keep=keep)
            if cli.json:
                cli.emit({"sessions": [session_json(s, services.clock.now()) for s in stands]})
                return
            if not stands:
                cli.note("no session is open")
                return
            if not live:
                _print(cli, services, stands)
                return
            _live(cli, services, stands)


def _look(services: Services, *, keep: bool) -> list[SessionStatus]:
    recover(services, look_at_all=True)
    return [standing(services, one, keep=keep) for one in underway(services.sessions)]


def _print(cli: Cli, services: Services, stands: list[SessionStatus]) -> None:
    for one in stands:
        cli.console.print(session_line(one, services.clock.now()), highlight=False, soft_wrap=True)


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
@click.option("--force", is_flag=True, help="Even if a run is on it.")
@click.pass_obj
def stop(cli: Cli, name: str | None, target: str | None, force: bool) -> None:
    """Stop the session's machine, wait until it is off, and say what it cost. Refused while a run is on it."""
    with app.opened(cli) as services:
        session_id = _named(services, name, target)
        record = workflow.stop(services, session_id, force=force)
        services.observer.close()
    if cli.show({**record.model_dump(mode="json"), "left_on": cli.left_on_json()}):
        return
    cli.note(f"session {record.session_id} is over: ${record.usd:.2f} of ${record.budget_usd:.2f}, "
             f"{len(record.runs)} runs")  # fmt: skip


def _named(services: Services, name: str | None, target: str | None) -> str:
    """The one session that is meant. Raises NotFoundError, UsageError."""
    candidates = [s.saved for s in underway(services.sessions) if target in (None, s.saved.target.name)]
    ids = [saved.session_id for saved in candidates if name is None or name in saved.session_id]
    if not ids:
        hint = did_you_mean(name, [s.session_id for s in candidates]) if name else "fcctl session status"
        raise NotFoundError("no such session is open", hint=hint)
    if len(ids) > 1:
        raise UsageError(f"{len(ids)} sessions are open", hint=f"say which: fcctl session stop {ids[0]}")
    return ids[0]


def _opened_json(opened: OpenSession) -> dict[str, object]:
    saved, machine = opened.saved, opened.machine
    return {
        "session_id": saved.session_id,
        "target": saved.target.name,
        "budget_usd": saved.budget_usd,
        "worst_usd": saved.worst_case_usd,
        "fence_s": saved.fence_s,
        "idle_minutes": saved.idle_minutes,
        "instance": machine.name if machine else None,
        "zone": machine.zone if machine else None,
        "deadline": machine.deadline if machine else None,
    }
