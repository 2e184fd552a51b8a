"""What a run that is not complete has cost so far: an estimate, from its journal, until its bill is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry
from orchestrator.money.caps import as_gcp
from orchestrator.money.deadline import began_to_cost, is_start
from orchestrator.results.store_api import Store
from orchestrator.runs.cost.machine_cost import machine_cost, rate_of
from orchestrator.runs.job.saved_plan import SavedPlan


@dataclass(frozen=True)
class CostSoFar:
    """Dollars of one active run."""

    usd: float
    #: While it costs something; 0 before its machine is on and after that is off.
    usd_per_hour: float
    worst_case_usd: float
    #: Nobody pays: its machine is the sandbox's.
    emulated: bool = False

    def as_json(self) -> dict[str, float]:
        shown = CostSoFar(0.0, 0.0, 0.0) if self.emulated else self
        return {
            "usd": round(shown.usd, 6), "usd_per_hour": shown.usd_per_hour,
            "worst_case_usd": round(shown.worst_case_usd, 6),
        }  # fmt: skip


def cost_so_far(store: Store, run_id: str, now: float, *, since: float = 0.0) -> CostSoFar | None:
    """Returns an active run's cost from ``since`` until ``now``, epoch seconds; None if its plan or journal cannot be
    read."""
    try:
        saved = SavedPlan.model_validate(store.plan_of(run_id))
        entries = [entry for entry in store.journal_of(run_id) if entry.time >= since]
        return of_journal(entries, saved, now)
    except (FcctlError, ValueError, TypeError, LookupError, ArithmeticError):  # of another version, or damaged
        return None


def of_journal(entries: Sequence[JournalEntry], saved: SavedPlan, now: float) -> CostSoFar:
    """The same of a journal and a plan. Pure."""
    emulated, rate = saved.target.kind == "sandbox", rate_of(entries, saved)
    if as_gcp(saved.target) is None or saved.fence_s is None:
        began = began_to_cost(entries, machine=False)
        ended = next((e.time for e in entries if e.kind in ("ended", "lost")), None)
        seconds = 0.0 if began is None else max(0.0, (ended if ended is not None else now) - began.time)
        is_on = began is not None and ended is None
        return CostSoFar(seconds / 3600 * rate, rate if is_on else 0.0, saved.worst_case_usd, emulated)
    until_now = [*entries, JournalEntry(seq=0, time=now, kind="released")]
    usd = machine_cost(until_now, saved, []).usd
    return CostSoFar(usd, rate if _is_on(entries) else 0.0, saved.worst_case_usd, emulated)


def _is_on(entries: Sequence[JournalEntry]) -> bool:
    """Whether the machine is on for the run, as far as its journal knows."""
    last = last_change(entries)
    return last is not None and last.kind in ("cloud", "acquired")


def last_change(entries: Sequence[JournalEntry]) -> JournalEntry | None:
    """The newest line that says whether the machine is on for the run."""
    kinds = ("acquire", "acquired", "released", "unreleased", "stopped")
    return next((entry for entry in reversed(entries) if entry.kind in kinds or is_start(entry)), None)
