"""What a user types in an episode, carried out by the true workflows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError
from orchestrator.hosts.hosts import up, up_plan
from orchestrator.hosts.recover import recover
from orchestrator.leases.session_rules import underway
from orchestrator.runs.reopen import attach, cancel, fetch
from orchestrator.runs.resume_run import resume_run
from orchestrator.runs.services import Services
from orchestrator.sessions import session as sessions
from orchestrator.sessions.plan import plan_session
from tests.simulation import firings
from tests.simulation.deletions import delete_results
from tests.simulation.prunes import prune_all
from tests.simulation.starts import start_run
from tests.simulation.world import Actor

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

SESSION_USD = 0.8
#: Controllers that start a run at one moment, or so many seconds apart; minutes that ``hosts up`` asks for.
RUSH, CROWD_S, UP_MINUTES = 5, 5.0, 30.0
#: How often ``schedule serve`` ticks in an episode, and every how many seconds.
SERVED, SERVED_EVERY_S = 8, 600.0


def carry_out(episode: Episode, what: str, workspace: Workspace, services: Services, actor: Actor) -> None:
    """One command, as its verb does it."""
    verbs: dict[str, Callable[[], object]] = {
        "run": lambda: start_run(episode, services, workspace),
        "detach": lambda: start_run(episode, services, workspace, detach=True),
        "session": lambda: _start_session(episode, services),
        "rush": lambda: _rush(episode, workspace, services, 0.0),
        "crowd": lambda: _rush(episode, workspace, services, CROWD_S),
        "up": lambda: _up(episode, workspace, services),
        "prune": lambda: prune_all(episode, workspace, services),
        "delete": lambda: delete_results(episode, services),
        "tick": lambda: firings.tick(episode, services, workspace, actor),
        "serve": lambda: _serve(episode, workspace, services, actor),
    }
    if what in verbs:
        verbs[what]()
        return
    states = recover(services)
    if what == "session stop":
        for found in list(underway(services.sessions)):
            sessions.stop(services, found.saved.session_id, force=True)
        return
    each: dict[str, Callable[[str], object]] = {
        "attach": lambda run_id: attach(services, run_id),
        "cancel": lambda run_id: cancel(services, run_id, reason="cancelled by the user"),
        "wake": lambda run_id: fetch(services, run_id),
        "go on": lambda run_id: resume_run(services, run_id, lambda _: None),
    }
    wanted = [s.run_id for s in states if s.state == "waiting" or what in ("attach", "cancel")]
    for run_id in wanted if what in each else ():
        try:
            each[what](run_id)
        except FcctlError as e:
            episode.note(f"{what} {run_id}: {e.message}")


def _serve(episode: Episode, workspace: Workspace, services: Services, actor: Actor) -> None:
    for _ in range(SERVED):
        firings.tick(episode, services, workspace, actor)
        services.clock.sleep(SERVED_EVERY_S)


def _start_session(episode: Episode, services: Services) -> None:
    episode.world.advance(0.01)
    saved = plan_session(services, episode.budget, episode.here.target, SESSION_USD, None, 10.0, "sim")
    sessions.start(services, saved)


def _rush(episode: Episode, workspace: Workspace, services: Services, apart_s: float) -> None:
    """Several controllers of one workspace start a run ``apart_s`` after each other, each on a machine of its own."""
    for number in range(2, RUSH + 1):
        own = workspace.target.model_copy(update={"name": f"l4-{number}", "instance": f"vm-{number}"})
        episode.targets[own.name] = own
        beside = replace(workspace, target=own)
        start = partial(_start_beside, episode, beside, apart_s * (number - 1))
        episode.company.join(partial(episode.process, f"rush-{number}", beside, start))
    start_run(episode, services, workspace)


def _start_beside(episode: Episode, workspace: Workspace, wait_s: float, services: Services, _: Actor) -> None:
    services.clock.sleep(wait_s)
    start_run(episode, services, workspace)


def _up(episode: Episode, workspace: Workspace, services: Services) -> None:
    plan = up_plan(workspace.target, episode.budget, UP_MINUTES)
    up(services, workspace.target, plan, workspace=workspace.root.name)
