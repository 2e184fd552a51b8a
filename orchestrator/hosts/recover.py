"""Completes runs that an earlier fcctl left and that have ended; reports the state of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from orchestrator.base.errors import ConflictError, FcctlError, HostError, MachineStopped, RunNotFound
from orchestrator.runs.lifecycle import Action, decide
from orchestrator.runs.reopen import UNREADABLE, ActiveState, broken, known, new_link, resumed, saved_plan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.machines.connect.reconnect import Hurry
    from orchestrator.runs.job.saved_plan import SavedPlan
    from orchestrator.runs.machine.pending_releases import Effort


def recover(
    services: Services, run_ids: Sequence[str] | None = None, *, releases: Effort = "moment", hurry: Hurry | None = None
) -> list[ActiveState]:
    """Completes every active run that has ended; reports the state of the others. ``run``, ``ps`` and ``pull-results``
    begin with it, so that a killed controller does no harm. It starts nothing and waits for nothing; an unreachable
    host does not block the others.

    Args:
        releases: how much effort goes into pending releases.
        hurry: how long a host may take to answer; one that takes longer counts as unreachable.
    """
    states = []
    if run_ids is None and services.sessions.open():
        from orchestrator.sessions.session import recover as settle_sessions

        settle_sessions(services)
    for run_id in services.store.active() if run_ids is None else run_ids:
        try:
            state = _settle_one(services, run_id, hurry)
        except UNREADABLE as e:  # one unreadable run does not hide the others
            state = broken(run_id, e)
        if state is not None:
            states.append(state)
    if services.store.pending_releases():
        from orchestrator.runs.machine.pending_releases import retry_releases

        retry_releases(services, releases)
    return states


def _settle_one(services: Services, run_id: str, hurry: Hurry | None) -> ActiveState | None:
    try:
        saved = saved_plan(services, run_id)
        if saved is None:
            return _discard_unplanned(services, run_id)
    except FcctlError as e:
        return broken(run_id, e)
    job, target = saved.plan.job, saved.target.name
    try:
        with resumed(services, run_id, patience_s=0.0, hurry=hurry) as driver:
            driver.join()
            if decide(driver.state, "resume") not in (Action.FOLLOW, Action.WAIT):
                services.observer.note(f"recovering {run_id}, whose fcctl was killed")
            if driver.finish(wait=False) is not None:
                return None
            summary = driver.ask()
        state: Literal["queued", "running"] = "queued" if summary and summary.status == "queued" else "running"
        return ActiveState(run_id, job, target, state, summary)
    except ConflictError:
        return _followed(services, saved, hurry)
    except RunNotFound:
        return None  # another controller completed it meanwhile
    except MachineStopped as e:
        return ActiveState(run_id, job, target, "waiting", None, f"{e.status}: {e.message}")
    except HostError as e:
        return ActiveState(run_id, job, target, "unreachable", None, e.cause or e.message)
    except FcctlError as e:
        return broken(run_id, e, job, target)


def _followed(services: Services, saved: SavedPlan, hurry: Hurry | None) -> ActiveState | None:
    """The state of a run that another fcctl follows; None: that one has completed it while the host was asked."""
    run_id, summary = saved.plan.run_id, _look(services, saved, hurry)
    if services.store.is_complete(run_id):
        return None
    return ActiveState(run_id, saved.plan.job, saved.target.name, "followed", summary)


def _look(services: Services, saved: SavedPlan, hurry: Hurry | None) -> wire.RunSummary | None:
    """The state of a run that another fcctl follows, over a connection of our own; None if the host does not answer."""
    link = new_link(services, saved.target, patience_s=0.0, hurry=hurry)
    try:
        summaries = link.ask(lambda s: s.status([saved.plan.run_id]))
    except FcctlError:
        return None
    finally:
        link.close()
    return summaries[0] if summaries else None


def _discard_unplanned(services: Services, run_id: str) -> ActiveState | None:
    """Discards a run folder without a plan: its controller was killed before anything else happened."""
    try:
        active = services.store.claim(run_id)
    except RunNotFound:
        return None
    if active is not None:
        active.discard()
    return None


def remind(services: Services) -> None:
    """Names the runs that no fcctl follows, for a command about something else."""
    left = [s.run_id for s in known(services) if s.state == "interrupted"]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        services.observer.note(
            f"{left[0]}{more} not collected yet; see them: fcctl ps; collect them: fcctl pull-results"
        )
