"""What a user types in an episode, carried out by the true workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError
from orchestrator.hosts.recover import settle
from orchestrator.leases.find import underway
from orchestrator.runs.cancel import cancel
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import attach, saved_plan
from orchestrator.runs.resume_run import go_on
from orchestrator.runs.services import Services
from orchestrator.runs.wake import fetch, waking_usd
from orchestrator.sessions import session as sessions
from orchestrator.sessions.plan import plan_session
from orchestrator.tune.fleet.resume import check_alone
from tests.simulation import firings
from tests.simulation.accounts import check_start_fits
from tests.simulation.prunes import prune_all
from tests.simulation.starts import start_run
from tests.simulation.world import Actor

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

SESSION_USD = 0.8
#: How often ``schedule serve`` ticks in an episode, and every how many seconds.
SERVED, SERVED_EVERY_S = 8, 600.0


def carry_out(episode: Episode, what: str, workspace: Workspace, services: Services, actor: Actor) -> None:
    """One command, as its verb does it."""
    if what in ("run", "detach"):
        start_run(episode, services, workspace, detach=what == "detach")
        return
    if what == "session":
        _start_session(episode, services)
        return
    if what in ("tick", "serve"):
        for _ in range(SERVED if what == "serve" else 1):
            firings.tick(episode, services, workspace, actor)
            services.clock.sleep(SERVED_EVERY_S)
        return
    if what == "prune":
        prune_all(episode, workspace, services)
        return
    states = settle(services)
    if what == "session stop":
        for found in list(underway(services.sessions)):
            sessions.stop(services, found.saved.session_id, force=True)
        return
    each: dict[str, Callable[[str], object]] = {
        "attach": lambda run_id: attach(services, run_id),
        "cancel": lambda run_id: cancel(services, run_id, reason="cancelled by the user"),
        "wake": lambda run_id: _fetch(episode, services, run_id),
        "go on": lambda run_id: go_on(services, run_id, lambda saved: _agree(episode, saved), check_alone),
    }
    wanted = [s.run_id for s in states if s.state == "waiting" or what in ("attach", "cancel")]
    for run_id in wanted if what in each else ():
        try:
            each[what](run_id)
        except FcctlError as e:
            episode.note(f"{what} {run_id}: {e.message}")


def _start_session(episode: Episode, services: Services) -> None:
    episode.world.advance(0.01)
    saved = plan_session(services, episode.budget, episode.here.target, SESSION_USD, None, 10.0, "sim")
    check_start_fits(episode, saved.worst_case_usd, episode.here)
    episode.allowed += saved.worst_case_usd
    sessions.start(services, saved)


def _fetch(episode: Episode, services: Services, run_id: str) -> None:
    saved = saved_plan(services, run_id)
    episode.allowed += waking_usd(saved) if saved is not None else 0.0
    fetch(services, run_id)


def _agree(episode: Episode, saved: SavedPlan) -> None:
    episode.allowed += saved.worst_case_usd
