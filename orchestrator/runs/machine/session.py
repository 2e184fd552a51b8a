"""A run on a machine that has a session: it finds it warm, leaves it on, and counts against the session's budget."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.base.errors import BudgetError
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.find import OpenSession, everywhere, is_past
from orchestrator.machines.targets import Target
from orchestrator.money.caps import Cap
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services


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
