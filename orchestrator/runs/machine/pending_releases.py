"""Who else a run shares its cloud machine with: other runs of this workspace, a session, a person who has started it
since. And pending releases: machines that could not be stopped after their run. Later commands try again,
``pull-results`` and ``hosts audit`` always, others at most every ten minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

from orchestrator.base import run_id as run_ids
from orchestrator.base.clock import epoch, in_thread
from orchestrator.base.errors import BudgetError, DiskError, FcctlError
from orchestrator.base.journal import JournalEntry
from orchestrator.base.observer import NoteKeeper
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.machine_lease import started_between
from orchestrator.leases.session_rules import OpenSession, everywhere, is_past, open_on
from orchestrator.machines.cloud import Machine
from orchestrator.machines.power_history import off_at
from orchestrator.machines.provision.ready import find_machine
from orchestrator.machines.provision.release import (
    InUse,
    ReleaseRequest,
    active_run,
    release,
    runs_on_host,
    waiting_runs,
)
from orchestrator.machines.targets import CloudTarget, Target, read_target
from orchestrator.money.audit import Claim, start_of
from orchestrator.money.caps import Cap, dollars
from orchestrator.runs.cost.owners import release_kept
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Stage, State, fold
from orchestrator.runs.services import Services


@dataclass(frozen=True)
class OtherRun:
    run_id: str
    state: State
    #: Whether an fcctl follows it.
    live: bool

    @property
    def uses_it(self) -> bool:
        return self.live and self.state.machine == "held" and self.state.stage < Stage.COLLECTED

    @property
    def is_releasing(self) -> bool:
        return self.live and self.state.machine == "leaving"

    @property
    def left_behind(self) -> bool:
        """Nobody follows it, and its machine may be on for it, or has what it left on its disk."""
        waits = self.state.machine == "released" and Stage.SUBMITTING <= self.state.stage <= Stage.ENDED
        return not self.live and (waits or self.state.machine in ("held", "leaving"))


def neighbours(services: Services, target: CloudTarget, own: str | None) -> list[OtherRun]:
    """The active runs on the machine that ``target`` means, but for ``own``."""
    store, found = services.store, []
    for run_id in store.active():
        if run_id == own or not is_for(store.plan_of(run_id), target.project, target.instance):
            continue
        live = store.is_followed(run_id)
        if not store.is_complete(run_id):  # it was active a moment ago
            found.append(OtherRun(run_id, fold(store.journal_of(run_id)), live=live))
    return found


def target_of_plan(plan: Mapping[str, Any] | None) -> Target | None:
    """The target that a plan was made for; None if it cannot be read."""
    try:
        return read_target((plan or {}).get("target"))
    except ValueError:  # another version's
        return None


def is_for(plan: Mapping[str, Any] | None, project: str, instance: str) -> bool:
    """Whether a plan was made for the machine of that name."""
    target = target_of_plan(plan)
    own = target.cloud if target is not None else None
    return own is not None and (own.project, own.instance) == (project, instance)


#: Who has it then, in journals.
PERSON = "a person who started it"


def off_before_a_person(
    services: Services, target: CloudTarget, seen: Machine, run_id: str, entries: Sequence[JournalEntry]
) -> tuple[bool, float | None]:
    """Whether a person has restarted the machine since, and when it went off before, epoch seconds. Asks the cloud only
    if it was started after the run's own start. Raises CloudError, AuthError."""
    claim = Claim(run_id, "over", turned_on=started_between(entries))
    if claim.turned_on is None or claim.is_of(seen) or not seen.billed:
        return False, None
    history = services.clouds.open(target).operations(seen.zone, seen.name)
    start = start_of(seen, history, [claim])
    if start.started_by != "person" or not start.certain:  # another fcctl's start must not leave it on for ever
        return False, None
    return True, off_at(history, seen.id, claim.turned_on[0])


def session_on(services: Services, target: Target) -> OpenSession | None:
    """Returns the open session of a target's machine, of any workspace of this user. Asks the cloud only if it should
    be over."""
    wanted = target.cloud
    if wanted is None:
        return None
    for found in everywhere(services.sessions):
        own = found.saved.target.cloud
        if own is None or (own.project, own.instance) != (wanted.project, wanted.instance):
            continue
        if found.abroad is None and is_past(services.clock, services.store, found):
            services.recover_sessions(services)
            if found.saved.session_id not in services.sessions.open():
                continue
        return found if found.stage == "open" else None
    return None


def within(services: Services, saved: SavedPlan, found: OpenSession) -> tuple[SavedPlan, Cap]:
    """Returns ``saved`` as a run of the session, and the cap that this sets. Raises BudgetError if nothing of the
    session is left."""
    minutes = found.saved.idle_minutes
    fetched = _fetched_usd(services, found)
    left = sessions.left_for_a_run(found.saved, found.machine, services.clock.now()) - fetched
    if left <= 0:
        raise BudgetError(
            f"the budget of session {found.saved.session_id} is spent",
            cause=f"fetching the results of its runs cost {dollars(fetched)} of it" if fetched else None,
            hint=f"{found.how_to_stop}; then start a new session",
        )
    plan = replace(saved.plan, idle_stop_s=minutes * 60)
    facts = {"plan": plan, "session": found.saved.session_id, "session_abroad": found.abroad is not None}
    kept = saved.model_copy(update=facts)
    return kept, Cap(name=f"the rest of session {found.saved.session_id}", usd=left)


def _fetched_usd(services: Services, found: OpenSession) -> float:
    """Dollars for fetching the results of the session's runs, of any workspace: the cloud bills them beside the
    machine."""
    booked = [usage for _, usage in services.spending.state().runs().values()]
    return sum(
        usage.cost.egress_usd
        for usage in booked
        if usage.machine is not None and found.machine is not None
        and usage.machine.instance_id == found.machine.instance_id
        and (epoch(usage.created) or 0.0) >= found.saved.created
    )  # fmt: skip


def visit(services: Services, session_id: str, run_id: str) -> None:
    """Have the session of another workspace know of a run of this one."""
    for book, name in services.sessions.abroad():
        if name == session_id:
            book.visited(session_id, run_id)


_HOLDS = TypeAdapter(list[ReleaseRequest])

#: Between two tries by commands that are about something else, and what such a command waits for one, seconds.
EVERY_S = 600.0
MOMENT_S = 0.8
#: How long a run may take to log in and send, until the machine knows of it, seconds.
COMING_S = 900.0

#: Which releases are tried again: all, or those not tried lately, until they end or for a moment.
Effort = Literal["all", "due", "moment"]


def retry_releases(services: Services, effort: Effort = "all") -> None:
    """Stops machines with a pending release, unless another run uses them or is about to."""
    due: dict[str, dict[str, Any]] = {}
    for run_id, pending in services.store.pending_releases().items():
        age = services.clock.now() - float(pending.get("tried") or 0.0)
        if effort == "all" or not 0.0 <= age < EVERY_S:
            due[run_id] = pending
        elif effort == "moment":
            services.observer.note(_still_pending(run_id, pending, age))
    if not due:
        return
    if effort == "moment":
        _for_a_moment(services, due)
        return
    for run_id, pending in due.items():
        if not _try(services, run_id, pending) and effort == "all":
            services.left_on.had_by(run_id)  # its journal says that it was not stopped


def _for_a_moment(services: Services, due: Mapping[str, dict[str, Any]]) -> None:
    """Tries in a thread for a moment: loading the cloud's library takes seconds. What fails stays pending."""
    notes = NoteKeeper()
    aside = replace(services, observer=notes)
    for run_id, pending in due.items():
        _note(services, run_id, {**pending, "tried": services.clock.now()})
    ended = in_thread(lambda: [_try(aside, run_id, pending) for run_id, pending in due.items()], "fcctl-releases")
    clock = services.clock
    until = clock.monotonic() + MOMENT_S
    while not ended.done() and clock.monotonic() < until:
        clock.sleep(0.01)
    if ended.done():
        for text in notes.notes:
            services.observer.note(text)
        ended.result()
        return
    for run_id, pending in due.items():
        services.observer.note(_still_pending(run_id, pending, 0.0))


def _still_pending(run_id: str, pending: Mapping[str, Any], age_s: float) -> str:
    why = f" ({pending['why']})" if pending.get("why") else ""
    when = f", tried {age_s / 60:.0f} min ago" if age_s >= 60 else ""
    return f"the machine of {run_id} may still be on{why}{when}; to try again to stop it: fcctl pull-results"


def _try(services: Services, run_id: str, pending: dict[str, Any]) -> bool:
    """False if it cannot be stopped."""
    try:
        if _is_released(services, run_id, pending):
            release_kept(services, owner_id=run_id)
            services.store.remove_pending_release(run_id)
            services.left_on.is_off(run_id)
    except FcctlError as error:
        services.observer.note(f"could not stop the machine of {run_id} again: {error.one_line}")
        _note(services, run_id, {**pending, "tried": services.clock.now(), "why": error.message})
        return False
    return True


def _note(services: Services, run_id: str, pending: dict[str, Any]) -> None:
    """Records the attempt; on a full disk it is tried once more."""
    with suppress(DiskError):
        services.store.add_pending_release(run_id, pending)


def _is_released(services: Services, run_id: str, pending: dict[str, Any]) -> bool:
    try:
        target = read_target(pending.get("target"))
        holds = _HOLDS.validate_python(pending.get("holds"))
    except ValueError:
        services.observer.note(
            f"the pending release of the machine of {run_id} is unreadable; check: fcctl hosts audit"
        )
        services.store.remove_pending_release(run_id)
        return False  # it may be on, so that what is reserved for it stays
    machine = find_machine(services, target)
    if machine is None or not holds:
        return True
    with services.unread.noted():
        if (services.sessions.open() or services.sessions.abroad()) and _is_of_session(services, machine, holds):
            return True  # it was off before the session started it, and the session releases it
    if any(n.state.machine in ("held", "leaving") for n in neighbours(services, machine, None)):
        return False
    there = runs_on_host(services, machine) or []
    if active_run(there, run_id) is not None:
        return False
    if any(_is_a_persons(services, machine, run_id, hold) for hold in holds):
        services.observer.note(
            f"{machine.instance}, which {run_id} could not stop, went off; since then a person has started it"
        )
        return True
    now, known = services.clock.now(), {run_id, *(run.run_id for run in there)}
    try:
        release(
            services, machine, holds, "stop", _unwritten,
            lambda seen: _waiting_run(waiting_runs(seen, known, services.store.is_complete), pending, now),
        )  # fmt: skip
    except InUse:
        return False
    services.observer.note(f"{machine.instance}, which {run_id} could not stop, is now off")
    return True


def _waiting_run(label: str | None, pending: Mapping[str, Any], now: float) -> str | None:
    """A run that is about to use the machine, unless it has had the time and did not."""
    if label is None:
        return None
    since = max(run_ids.began(label), float(pending.get("left") or 0.0))
    return label if abs(now - since) < COMING_S else None


def _is_a_persons(services: Services, target: CloudTarget, run_id: str, hold: ReleaseRequest) -> bool:
    seen = services.clouds.open(target).machine(hold.zone, target.instance)
    journal = services.store.journal_of(run_id)
    return seen is not None and off_before_a_person(services, target, seen, run_id, journal)[0]


def _is_of_session(services: Services, target: CloudTarget, holds: list[ReleaseRequest]) -> bool:
    cloud = services.clouds.open(target)
    seen = [cloud.machine(hold.zone, target.instance) for hold in holds]
    return all(one is not None and open_on(services.sessions, one.id, one.started) for one in seen)


def _unwritten(kind: str, **data: object) -> None:
    """The pending release is the journal: it is removed only when the machine is off."""
