"""Pick up what an earlier controller left: killed, detached or asleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from fcctl_remote import wire
from orchestrator.domain.lifecycle import Move, decide
from orchestrator.domain.records import RunRecord
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.domain.target import Target
from orchestrator.errors import ConflictError, FcctlError, HostError, MachineStopped, RunNotFound
from orchestrator.ports import Services
from orchestrator.workflows.drive import Driver
from orchestrator.workflows.link import Link
from orchestrator.workflows.moves import Moves

if TYPE_CHECKING:
    from orchestrator.workflows.debts import Effort

Links = Callable[[Target], Link]


@dataclass(frozen=True)
class ActiveState:
    """What ``fcctl ps`` shows of a run that is not complete."""

    run_id: str
    job: str
    target: str
    state: Literal["followed", "queued", "running", "ended", "interrupted", "unreachable", "waiting", "broken"]
    summary: wire.RunSummary | None = None
    detail: str | None = None


def new_link(services: Services, target: Target, *, patience_s: float | None = None) -> Link:
    """A link to ``target``; ``patience_s`` replaces its ``reconnect_s``."""
    if patience_s is not None:
        target = target.model_copy(update={"reconnect_s": patience_s})
    return Link(services.hosts, target, services.clock, services.observer)


@contextmanager
def resumed(
    services: Services, run_id: str, *, patience_s: float | None = None, doubt: Callable[[], None] | None = None
) -> Iterator[Driver]:
    """A driver for an active run, taken over from whoever left it.

    Args:
        patience_s: instead of the target's ``reconnect_s``.
        doubt: one of :attr:`Link.doubts`.

    Raises:
        ConflictError: another fcctl is following this run right now.
        RunNotFound: there is no such active run.
    """
    active = services.store.claim(run_id)
    if active is None:
        raise ConflictError(
            f"run {run_id} is being followed by another fcctl",
            hint=f"watch it with: fcctl logs -f {run_id}, or stop it with: fcctl cancel {run_id}",
        )
    link: Link | None = None
    try:
        saved = _readable(run_id, active.plan)
        link = new_link(services, saved.target, patience_s=patience_s)
        link.doubts += [doubt] if doubt is not None else []
        yield Driver(Moves(services, link, active, "resume"))
    finally:
        active.release()
        if link is not None:
            link.close()


def attach(services: Services, run_id: str) -> RunRecord:
    """Follow an active run to its end and collect it.

    Raises:
        KeyboardInterrupt: the user left again; the run goes on.
    """
    with resumed(services, run_id) as driver:
        record = driver.finish()
    if record is None:
        raise RuntimeError("a run that is waited for has an end")
    return record


def settle(services: Services, run_ids: Sequence[str] | None = None, *, debts: Effort = "moment") -> list[ActiveState]:
    """Complete every active run that has ended; say how the others stand.

    This is what makes a killed controller harmless: ``run``, ``ps`` and ``pull-results`` begin with it. Nothing is
    started, nothing is waited for, and one unreachable host does not keep the others from being settled.

    Args:
        debts: how much is done about machines that could not be stopped.
    """
    states = []
    if run_ids is None and services.sessions.open():
        from orchestrator.workflows.session import settle as settle_sessions

        settle_sessions(services)
    for run_id in services.store.active() if run_ids is None else run_ids:
        state = _settle_one(services, run_id)
        if state is not None:
            states.append(state)
    if services.store.owed():
        from orchestrator.workflows.debts import pay

        pay(services, debts)
    return states


def _settle_one(services: Services, run_id: str) -> ActiveState | None:
    try:
        saved = saved_plan(services, run_id)
    except FcctlError as e:
        return _broken(run_id, e)
    if saved is None:
        return _discard_unplanned(services, run_id)
    job, target = saved.plan.job, saved.target.name
    try:
        with resumed(services, run_id, patience_s=0.0) as driver:
            driver.join()
            if decide(driver.state, "resume") not in (Move.FOLLOW, Move.WAIT):
                services.observer.note(f"picking up {run_id}, which an earlier fcctl left")
            if driver.finish(wait=False) is not None:
                return None
            summary = driver.ask()
        state: Literal["queued", "running"] = "queued" if summary and summary.status == "queued" else "running"
        return ActiveState(run_id, job, target, state, summary)
    except ConflictError:
        return ActiveState(run_id, job, target, "followed", _look(services, saved))
    except RunNotFound:
        return None  # another controller completed it meanwhile
    except MachineStopped as e:
        return ActiveState(run_id, job, target, "waiting", None, f"{e.status}: {e.message}")
    except HostError as e:
        return ActiveState(run_id, job, target, "unreachable", None, e.cause or e.message)
    except FcctlError as e:
        return _broken(run_id, e, job, target)


def _broken(run_id: str, error: FcctlError, job: str = "-", target: str = "-") -> ActiveState:
    detail = f"{error.message}: {error.cause}" if error.cause else error.message
    return ActiveState(run_id, job, target, "broken", None, detail)


def _discard_unplanned(services: Services, run_id: str) -> ActiveState | None:
    """A folder without a plan: its controller was killed while it made it, so nothing can have happened."""
    try:
        active = services.store.claim(run_id)
    except RunNotFound:
        return None
    if active is not None:
        active.discard()
    return None


def saved_plan(services: Services, run_id: str) -> SavedPlan | None:
    """An active run's plan; None if it has none (or none that is JSON).

    Raises:
        FcctlError: another version of fcctl wrote it in another form.
    """
    raw = services.store.plan_of(run_id)
    return _readable(run_id, raw) if raw is not None else None


def _readable(run_id: str, raw: dict[str, Any]) -> SavedPlan:
    try:
        return SavedPlan.model_validate(raw)
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False, include_context=False)[0]
        raise FcctlError(
            f"the plan of run {run_id} cannot be read",
            cause=f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}",
            hint="another version of fcctl wrote it: use that one to bring this run home",
        ) from e


def _look(services: Services, saved: SavedPlan) -> wire.RunSummary | None:
    """How a run that another fcctl follows stands, asked on a link of our own; None if the host has no answer yet."""
    link = new_link(services, saved.target, patience_s=0.0)
    try:
        found = link.call(lambda s: s.status([saved.plan.run_id]))
    except FcctlError:
        return None
    finally:
        link.close()
    return found[0] if found else None


def known(services: Services) -> list[ActiveState]:
    """The active runs as this machine alone knows them: no host is asked, nothing waits."""
    states = []
    for run_id in services.store.active():
        try:
            saved = saved_plan(services, run_id)
        except FcctlError as e:
            states.append(_broken(run_id, e))
            continue
        if saved is None:
            continue
        state: Literal["interrupted", "followed"] = "interrupted" if _unowned(services, run_id) else "followed"
        states.append(ActiveState(run_id, saved.plan.job, saved.target.name, state))
    return states


def _unowned(services: Services, run_id: str) -> bool:
    try:
        active = services.store.claim(run_id)
    except RunNotFound:
        return False
    if active is not None:
        active.release()
    return active is not None


def remind(services: Services) -> None:
    """Name the runs that nobody follows, for a command that is about something else."""
    left = [s.run_id for s in known(services) if s.state == "interrupted"]
    if left:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        services.observer.note(f"{left[0]}{more} not collected yet: fcctl ps, or fcctl pull-results")
