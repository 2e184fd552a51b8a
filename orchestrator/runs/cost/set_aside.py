"""A run's reservation: made once its record is on disk, so that it can always be found by name."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from orchestrator.base.errors import FcctlError
from orchestrator.results.store_api import ActiveRun
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services


def set_aside(services: Services, active: ActiveRun, saved: SavedPlan, *, replaces: Iterable[str] = ()) -> None:
    """Reserves what the run may cost, in place of the reservations ``replaces``; a session's run is part of the
    session's reservation. Raises BudgetError if it could break a cap; the run is discarded then."""
    if saved.worst_case_usd <= 0 or (saved.session is not None and not _starts_by_itself(services, saved)):
        return
    from orchestrator.runs.cost.owners import reservation
    from orchestrator.runs.cost.spending import reserve

    usd = saved.model_copy(update={"session": None}).worst_case_usd
    wanted = reservation(services, "run", saved.plan.run_id, saved.target, usd)
    try:
        reserve(services, wanted, replaces=replaces)
    except BaseException:
        active.discard()
        with suppress(FcctlError), services.spending.changing() as change:
            if wanted.reservation_id in change.state.open():  # Ctrl-C came after it was written
                change.release(wanted)
        raise


def _starts_by_itself(services: Services, saved: SavedPlan) -> bool:
    """Whether the run was planned for a session of another workspace that is over by now: it turns the machine on."""
    open_ = services.spending.state().open().values()
    return saved.session_abroad and not any(one.owner_id == saved.session for one in open_)


def set_aside_wake(services: Services, saved: SavedPlan, usd: float) -> str:
    """Reserves the cost of waking the run's machine once more; returns the reservation's id. Raises BudgetError."""
    from orchestrator.runs.cost.owners import reservation
    from orchestrator.runs.cost.spending import reserve

    wanted = reservation(services, "wake", saved.plan.run_id, saved.target, usd, suffix=".wake")
    reserve(services, wanted)
    return wanted.reservation_id
