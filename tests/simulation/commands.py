"""What a user types in an episode, carried out by the true workflows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.base.errors import FcctlError
from orchestrator.hosts.recover import settle
from orchestrator.leases.find import underway
from orchestrator.money.caps import Budget
from orchestrator.runs.cancel import cancel
from orchestrator.runs.job.job import Job, Step
from orchestrator.runs.job.prepare import Prepared, Wanted, prepare
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import attach, new_link, saved_plan
from orchestrator.runs.resume_run import go_on
from orchestrator.runs.run import Finished, run
from orchestrator.runs.services import Services
from orchestrator.runs.wake import fetch, waking_usd
from orchestrator.sessions import session as sessions
from orchestrator.sessions.plan import plan_session
from orchestrator.tune.fleet.resume import check_alone
from tests.simulation import invariants
from tests.simulation.world import Actor, Violation

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

SESSION_USD = 0.8
#: How often ``schedule serve`` ticks in an episode, and every how many seconds.
SERVED, SERVED_EVERY_S = 8, 600.0


def carry_out(episode: Episode, what: str, services: Services, workspace: Workspace, actor: Actor) -> None:
    """One command, as its verb does it."""
    if what in ("run", "detach"):
        start_run(episode, services, workspace, detach=what == "detach")
        return
    if what == "session":
        _start_session(episode, services)
        return
    if what in ("tick", "serve"):
        from tests.simulation import firings

        for _ in range(SERVED if what == "serve" else 1):
            firings.tick(episode, services, workspace, actor)
            services.clock.sleep(SERVED_EVERY_S)
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


def start_run(
    episode: Episode, services: Services, workspace: Workspace, *, detach: bool = False, budget: Budget | None = None
) -> Finished | None:
    """``fcctl run``; what it came to, None if it is left alone on purpose."""
    prepared = _prepared(episode, services, workspace, budget or episode.budget)
    saved, stop_at = prepared.saved, episode.schedule.stop_at
    if saved.session is None or saved.session_abroad:  # else it is the session's money
        episode.allowed += saved.worst_case_usd
        if stop_at is not None and saved.worst_case_usd > stop_at:
            raise Violation(f"a run that stops at ${stop_at} is let cost more")
        invariants.check_start_fits(episode, saved.worst_case_usd, workspace)
    episode.runs.append(saved.plan.run_id)
    link = new_link(services, workspace.target)
    if services.book.known("sim-project", "vm") is not None:
        link.open_soon()
    return run(services, link, saved, prepared.source, detach=detach)


def _prepared(episode: Episode, services: Services, workspace: Workspace, budget: Budget) -> Prepared:
    steps = [
        Step(id="build", run="x", timeout="3m", activity="build"),
        Step(id="test", run="x", timeout="4m"),
        Step(id="bench", run="x", timeout="8m", activity="bench"),
    ]
    stop_at = episode.schedule.stop_at
    episode.world.advance(0.01)  # an attempt is known by the moment it was planned
    wanted = Wanted(Job(job="bench", steps=steps), workspace.target, {}, None, stop_at, stop_at is not None)
    return prepare(services, workspace.root, workspace.root.name, budget, wanted)


def _start_session(episode: Episode, services: Services) -> None:
    episode.world.advance(0.01)
    saved = plan_session(services, episode.budget, episode.here.target, SESSION_USD, None, 10.0, "sim")
    invariants.check_start_fits(episode, saved.worst_case_usd, episode.here)
    episode.allowed += saved.worst_case_usd
    sessions.start(services, saved)


def _fetch(episode: Episode, services: Services, run_id: str) -> None:
    saved = saved_plan(services, run_id)
    episode.allowed += waking_usd(saved) if saved is not None else 0.0
    fetch(services, run_id)


def _agree(episode: Episode, saved: SavedPlan) -> None:
    episode.allowed += saved.worst_case_usd
