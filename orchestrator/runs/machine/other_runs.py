"""Who else a run shares its cloud machine with: other runs of this workspace, a session, a person who has started it
since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.base.errors import BudgetError
from orchestrator.base.journal import JournalEntry
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.machine_lease import started_between
from orchestrator.leases.session_rules import OpenSession, everywhere, is_past
from orchestrator.machines.cloud import Machine
from orchestrator.machines.power_history import off_at
from orchestrator.machines.targets import CloudTarget, Target, read_target
from orchestrator.money.audit import Claim, start_of
from orchestrator.money.caps import Cap
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
    left = sessions.left_for_a_run(found.saved, found.machine, services.clock.now())
    if left <= 0:
        raise BudgetError(
            f"the budget of session {found.saved.session_id} is spent",
            hint=f"{found.how_to_stop}; then start a new session",
        )
    plan = replace(saved.plan, idle_stop_s=minutes * 60)
    facts = {"plan": plan, "session": found.saved.session_id, "session_abroad": found.abroad is not None}
    kept = saved.model_copy(update=facts)
    return kept, Cap(name=f"the rest of session {found.saved.session_id}", usd=left)


def visit(services: Services, session_id: str, run_id: str) -> None:
    """Have the session of another workspace know of a run of this one."""
    for book, name in services.sessions.abroad():
        if name == session_id:
            book.visited(session_id, run_id)
