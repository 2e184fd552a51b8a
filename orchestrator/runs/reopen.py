"""Reopens a run whose controller is gone; cancels it, gives it up, or starts its machine again for its results; and
estimates when a run that has not ended will have."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from fcctl_remote import wire
from orchestrator.base import models
from orchestrator.base.clock import wait_for
from orchestrator.base.errors import ConflictError, FcctlError, HostFault, HostUnreachable, MachineStopped, RunNotFound
from orchestrator.base.journal import LOOK_S
from orchestrator.base.sanitize import clean
from orchestrator.machines.connect.reconnect import Hurry, ReconnectingHost
from orchestrator.machines.targets import Target
from orchestrator.results.records import RunRecord
from orchestrator.runs.job.saved_plan import SavedPlan, helped_by, read_saved
from orchestrator.runs.run import Driver
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


#: What a record raises that is not of the form which it should have.
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ActiveState:
    """What ``fcctl ps`` shows of a run that is not complete."""

    run_id: str
    job: str
    target: str
    state: Literal["followed", "queued", "running", "ended", "interrupted", "unreachable", "waiting", "broken"]
    summary: wire.RunSummary | None = None
    detail: str | None = None


def new_link(
    services: Services, target: Target, *, patience_s: float | None = None, hurry: Hurry | None = None
) -> ReconnectingHost:
    """A link to ``target``; ``patience_s`` replaces its ``reconnect_s``."""
    if patience_s is not None:
        target = target.model_copy(update={"reconnect_s": patience_s})
    return ReconnectingHost(services.hosts, target, services.clock, services.observer, hurry)


@contextmanager
def resumed(
    services: Services, run_id: str, *, patience_s: float | None = None, hurry: Hurry | None = None, wait_s: float = 0.0
) -> Iterator[Driver]:
    """A driver for an active run that nobody follows. ``patience_s`` replaces the target's ``reconnect_s``; ``hurry``
    limits the first answer; ``wait_s`` is for another fcctl that owns the run only to look at it. Raises ConflictError
    if another fcctl follows it, RunNotFound if it is not active."""
    active = wait_for(lambda: services.store.claim(run_id), wait_s, services.clock)
    if active is None:
        raise ConflictError(
            f"another fcctl process follows run {run_id}",
            hint=f"to see its log: fcctl logs -f {run_id}; to stop it: fcctl cancel {run_id}",
        )
    link: ReconnectingHost | None = None
    try:
        saved = _readable(run_id, active.plan)
        link = new_link(services, saved.target, patience_s=patience_s, hurry=hurry)
        yield Driver(services, link, active, "resume")
    finally:
        active.release()
        if link is not None:
            link.close()


def attach(services: Services, run_id: str) -> RunRecord:
    """Follows an active run to its end and collects it. KeyboardInterrupt: the user leaves, the run continues."""
    try:
        with resumed(services, run_id, wait_s=LOOK_S) as driver:
            services.left_on.had_by(run_id)
            return driver.finish()
    except RunNotFound:
        return services.store.get(run_id)  # another fcctl has completed it meanwhile


def broken(run_id: str, error: Exception, job: str = "-", target: str = "-") -> ActiveState:
    """The state of a run that cannot be read or completed, for the reason that ``error`` gives."""
    if isinstance(error, FcctlError):
        detail = error.one_line
    else:
        _log.error("run %s", run_id, exc_info=error)
        detail = f"unreadable: {type(error).__name__}: {error}"
    return ActiveState(run_id, job, target, "broken", None, detail)


def saved_plan(services: Services, run_id: str) -> SavedPlan | None:
    """Returns an active run's plan; None without one. Raises FcctlError if another version wrote it in another form."""
    raw = services.store.plan_of(run_id)
    return _readable(run_id, raw) if raw is not None else None


def _readable(run_id: str, raw: dict[str, Any]) -> SavedPlan:
    try:
        return SavedPlan.model_validate(raw)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        raise FcctlError(
            f"the plan of run {run_id} is invalid",
            cause=f"{'.'.join(map(str, first['loc']))}: {models.reason(first)}",
            hint="another version of fcctl wrote this plan: use that version to collect the run",
        ) from e


def known(services: Services) -> list[ActiveState]:
    """The active runs as this computer knows them; asks no host."""
    states = []
    for run_id in services.store.active():
        try:
            saved = saved_plan(services, run_id)
            if saved is None:
                continue
            state: Literal["interrupted", "followed"] = "interrupted"
            if services.store.is_followed(run_id):
                state = "followed"
            elif services.store.is_complete(run_id):
                continue  # its owner completed it after the runs were listed
        except (FcctlError, *UNREADABLE) as e:  # one run must not hide the others
            states.append(broken(run_id, e))
            continue
        states.append(ActiveState(run_id, saved.plan.job, saved.target.name, state))
    return states


def with_members(store: FileStore, run_ids: Sequence[str]) -> list[str]:
    """``run_ids``, and the runs that do nothing but help one of these."""
    plans = [(store.plan_of(run_id) or {}).get("plan") or {} for run_id in run_ids]
    helped = {*run_ids, *(plan["resume_from"] for plan in plans if plan.get("resume_from"))}
    helping = [r for r in store.active() if helped_by(store.plan_of(r) or {}) in helped]
    return list(dict.fromkeys([*run_ids, *helping]))


def cancel(services: Services, run_id: str, *, reason: str, grace_s: float = 10.0) -> RunRecord | None:
    """Ends the run at its host and collects it; None: another fcctl follows the run and collects it, or has just done
    so. Raises RunNotFound if it is not active, HostError if the host cannot be reached."""
    try:
        return _cancel(services, run_id, reason, grace_s)
    except FcctlError:
        if not services.store.is_complete(run_id):
            raise
        return services.store.get(run_id)  # it has just ended


def _cancel(services: Services, run_id: str, reason: str, grace_s: float) -> RunRecord | None:
    saved = saved_plan(services, run_id)
    if saved is None:
        raise RunNotFound(f"no active run {run_id}", hint="to list active runs: fcctl ps")
    try:
        with resumed(services, run_id) as driver:
            services.left_on.had_by(run_id)
            try:
                if driver.submitted:
                    driver.cancel(reason, grace_s)
                return driver.finish()
            except MachineStopped:
                if saved.fleet_of is None and saved.builds_for is None:
                    raise
                return driver.give_up(reason, disk=False)  # it only helped a run: what is there is of no use
    except ConflictError:
        link = new_link(services, saved.target, patience_s=0.0)
        try:
            link.call(lambda s: s.cancel(run_id, reason, grace_s=grace_s))
        except HostFault as e:
            if e.fault != "not_found":
                raise
            raise _on_its_way(run_id, saved) from e
        except HostUnreachable as e:
            if saved.fence_s is None:
                raise
            raise _on_its_way(run_id, saved) from e  # its machine is being started or released
        finally:
            link.close()
        with suppress(ConflictError, RunNotFound), resumed(services, run_id, wait_s=LOOK_S) as driver:
            return driver.finish()  # the other one only looked at it
        return None


def _on_its_way(run_id: str, saved: SavedPlan) -> ConflictError:
    return ConflictError(
        f"run {run_id} has not started on {saved.target.name} yet",
        cause="another fcctl process is starting or releasing its machine",
        hint="press Ctrl-C in that process, or try again in a minute",
    )


def give_up(services: Services, run_id: str) -> RunRecord:
    """Ends an active run as ``lost`` without asking its host. Raises ConflictError if another fcctl follows it."""
    with resumed(services, run_id, wait_s=LOOK_S) as driver:
        if not driver.submitted:
            return driver.abandon("closed by the user before it was submitted", "cancelled")
        return driver.give_up("closed as lost by the user; the host was not contacted")


def fetch(services: Services, run_id: str, planned: SavedPlan | None = None) -> RunRecord:
    """Starts the machine of a run that waits for it, collects the run and releases the machine. ``planned`` has the
    machine's current price. Raises BudgetError if the caps do not allow it."""
    with resumed(services, run_id, wait_s=LOOK_S) as driver:
        if driver.waits:
            planned = planned or driver.saved
            from orchestrator.runs.cost.spending import set_aside_wake

            set_aside_wake(services, planned, planned.wake_usd)
            driver.wake(planned.wake_s, planned)
        return driver.finish()


#: Earlier runs that count, the newest first.
RUNS_BEFORE = 10


@dataclass(frozen=True)
class Remaining:
    """A run that is queued or running. Times are seconds from now; of a queued one, from when it begins."""

    run_id: str
    target: str
    queued: bool
    #: The run that has the machine.
    behind: str | None = None
    #: ``bench 4/5``.
    step: str | None = None
    #: The median of earlier runs that passed; None: without one, or if it takes longer.
    expected_s: float | None = None
    #: Until the timeouts of its steps are over; None: its host did not say how far it is.
    at_most_s: float | None = None


def remaining(services: Services, states: Sequence[ActiveState]) -> list[Remaining]:
    """Of the runs that are queued or running, by whomever they are followed."""
    return [_of(services, state) for state in states if state.state in ("queued", "running", "followed")]


def _of(services: Services, state: ActiveState) -> Remaining:
    summary, now = state.summary, services.clock.now()
    if summary is None:
        return Remaining(state.run_id, state.target, queued=state.state == "queued")
    queued = summary.status == "queued"
    expected_s = _usual_s(services, state)
    if expected_s is not None and not queued:
        expected_s -= now - summary.created
    return Remaining(
        state.run_id,
        state.target,
        queued,
        clean(summary.behind, 63) if summary.behind else None,
        f"{clean(summary.step, 24)} {summary.step_index + 1}/{summary.step_count}" if summary.step else None,
        expected_s if expected_s is not None and expected_s > 0 else None,
        _at_most_s(services, state, now),
    )


def _usual_s(services: Services, state: ActiveState) -> float | None:
    """What earlier runs of the job on the target took, those that passed."""
    rows = services.store.rows(limit=RUNS_BEFORE, job=state.job, target=state.target, status="passed")
    from statistics import median

    return median(row.duration_s for row in rows) if rows else None


def _at_most_s(services: Services, state: ActiveState, now: float) -> float | None:
    """The timeouts of the steps that are left, less what the current one has used."""
    summary, saved = state.summary, read_saved(services.store, state.run_id)
    if summary is None or saved is None:
        return None
    spans = [step.timeout_s * (step.retries + 1) for step in saved.plan.steps]
    used = sum(spans[: summary.step_index])
    if summary.step_started is not None and summary.step_index < len(spans):
        used += min(max(0.0, now - summary.step_started), spans[summary.step_index])
    return max(0.0, min(sum(spans), saved.worst_case_minutes * 60) - used)
