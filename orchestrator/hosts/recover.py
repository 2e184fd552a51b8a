"""Complete the runs that an earlier fcctl left and that have ended; say how the others stand."""

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
    services: Services,
    run_ids: Sequence[str] | None = None,
    *,
    debts: Effort = "moment",
    hurry: Hurry | None = None,
) -> list[ActiveState]:
    """Complete every active run that has ended; say how the others stand.

    This is what makes a killed controller harmless: ``run``, ``ps`` and ``pull-results`` begin with it. Nothing is
    started, nothing is waited for, and one unreachable host does not keep the others from being settled.

    Args:
        debts: how much is done about machines that could not be stopped.
        hurry: how long a host may take to answer; one that takes longer is unreachable.
    """
    states = []
    if run_ids is None and services.sessions.open():
        from orchestrator.sessions.session import recover as settle_sessions

        settle_sessions(services)
    for run_id in services.store.active() if run_ids is None else run_ids:
        try:
            state = _settle_one(services, run_id, hurry)
        except UNREADABLE as e:  # one run must not hide the others
            state = broken(run_id, e)
        if state is not None:
            states.append(state)
    if services.store.owed():
        from orchestrator.runs.machine.pending_releases import retry_releases

        retry_releases(services, debts)
    return states


def _settle_one(services: Services, run_id: str, hurry: Hurry | None) -> ActiveState | None:
    try:
        saved = saved_plan(services, run_id)
    except FcctlError as e:
        return broken(run_id, e)
    if saved is None:
        return _discard_unplanned(services, run_id)
    job, target = saved.plan.job, saved.target.name
    try:
        with resumed(services, run_id, patience_s=0.0, hurry=hurry) as driver:
            driver.join()
            if decide(driver.state, "resume") not in (Action.FOLLOW, Action.WAIT):
                services.observer.note(f"picking up {run_id}, which an earlier fcctl left")
            if driver.finish(wait=False) is not None:
                return None
            summary = driver.ask()
        state: Literal["queued", "running"] = "queued" if summary and summary.status == "queued" else "running"
        return ActiveState(run_id, job, target, state, summary)
    except ConflictError:
        return ActiveState(run_id, job, target, "followed", _look(services, saved, hurry))
    except RunNotFound:
        return None  # another controller completed it meanwhile
    except MachineStopped as e:
        return ActiveState(run_id, job, target, "waiting", None, f"{e.status}: {e.message}")
    except HostError as e:
        return ActiveState(run_id, job, target, "unreachable", None, e.cause or e.message)
    except FcctlError as e:
        return broken(run_id, e, job, target)


def _look(services: Services, saved: SavedPlan, hurry: Hurry | None) -> wire.RunSummary | None:
    """How a run that another fcctl follows stands, asked on a link of our own; None if the host has no answer yet."""
    link = new_link(services, saved.target, patience_s=0.0, hurry=hurry)
    try:
        found = link.ask(lambda s: s.status([saved.plan.run_id]))
    except FcctlError:
        return None
    finally:
        link.close()
    return found[0] if found else None


def _discard_unplanned(services: Services, run_id: str) -> ActiveState | None:
    """A folder without a plan: its controller was killed while it made it, so nothing can have happened."""
    try:
        active = services.store.claim(run_id)
    except RunNotFound:
        return None
    if active is not None:
        active.discard()
    return None


def remind(services: Services) -> None:
    """Name the runs that nobody follows, for a command that is about something else."""
    left = [s.run_id for s in known(services) if s.state == "interrupted"]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        services.observer.note(f"{left[0]}{more} not collected yet: fcctl ps, or fcctl pull-results")
