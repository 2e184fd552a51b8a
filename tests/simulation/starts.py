"""``fcctl run`` in an episode, and what it may cost as far as the episode knows."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

from orchestrator.money.caps import Budget
from orchestrator.runs.job.job import Job, Needs, Step
from orchestrator.runs.job.prepare import Prepared, RunRequest, prepare
from orchestrator.runs.reopen import new_link
from orchestrator.runs.run import Finished, run
from orchestrator.runs.services import Services
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace


#: Between the plan, which is held to the caps, and the run's first line on the disk: the plan is shown, seconds.
READ_S = 0.2


def start_run(
    episode: Episode, services: Services, workspace: Workspace, *, detach: bool = False, budget: Budget | None = None
) -> Finished | None:
    """``fcctl run``; what it came to, None if it is left alone on purpose."""
    prepared = _prepared(episode, services, workspace, budget or episode.budget)
    saved, stop_at = prepared.saved, episode.schedule.stop_at
    if saved.session is None or saved.session_abroad:  # else it is the session's money
        worst_usd = sum(one.worst_case_usd for one in (saved, saved.builder) if one is not None)
        name = services.store.actor.name  # type: ignore[attr-defined]
        # Processes beside the first have one name, and what all of them spent is compared with the sum.
        episode.named[name] = episode.named.get(name, 0.0) + worst_usd
        if stop_at is not None and worst_usd > stop_at:
            raise Violation(f"a run that stops at ${stop_at} is let cost more")
    episode.runs.append(saved.plan.run_id)
    episode.run_of[services.store.actor.name] = saved.plan.run_id  # type: ignore[attr-defined]
    link = new_link(services, workspace.target)
    if services.book.known("sim-project", "vm") is not None:
        link.open_soon()
    episode.world.advance(READ_S)
    return run(services, link, saved, prepared.source, detach=detach)


def _prepared(episode: Episode, services: Services, workspace: Workspace, budget: Budget) -> Prepared:
    steps = [
        Step(id="build", run="x", timeout="3m", activity="build"),
        Step(id="test", run="x", timeout="4m"),
        Step(id="bench", run="x", timeout="8m", activity="bench"),
    ]
    stop_at, builder = episode.schedule.stop_at, None
    if episode.schedule.builder:
        compiles = Step(id="compile", run="x", timeout="2m", where="controller", needs=Needs(tools=["nvcc"]))
        steps.insert(0, compiles)
        builder = workspace.target.model_copy(update={"name": "builder", "instance": f"{workspace.target.instance}-b"})
        episode.targets[builder.instance] = builder
    episode.world.advance(0.01)  # an attempt is known by the moment it was planned
    job = Job(job="bench", steps=steps)
    wanted = RunRequest(job, workspace.target, {}, None, stop_at, stop_at is not None, builder=builder)
    with mock.patch("orchestrator.runs.builder.is_needed", return_value=True):
        return prepare(services, workspace.root, workspace.root.name, budget, wanted)
