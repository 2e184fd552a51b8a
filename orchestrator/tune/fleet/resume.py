"""``fcctl tune --resume``: a search on several machines that lost its fcctl or its first machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.base.errors import ConflictError, HostUnreachable, LinkLost, MachineStopped, UsageError
from orchestrator.runs.job.prepare import Prepared
from orchestrator.runs.job.saved_plan import SavedPlan, read_saved
from orchestrator.runs.lifecycle import Action, decide, fold
from orchestrator.runs.reopen import resumed, saved_plan
from orchestrator.runs.resume_run import Price, as_planned, resume_run
from orchestrator.runs.run import Detached, Finished
from orchestrator.runs.services import Services
from orchestrator.runs.source.api import Source
from orchestrator.tune.fleet.plan import FleetPlanner, Plans, check_together, left_behind, plan_member

if TYPE_CHECKING:
    from orchestrator.machines.targets import Target


def plans_of(
    services: Services, place: FleetPlanner, run_id: str, source: Source | None = None
) -> tuple[Plans, dict[str, list[str]]]:
    """The plans of the search ``run_id`` and of its members, and the members' runs, by target, oldest first: the last
    continues, if it is active. Without a ``source`` new members get the working tree. Raises UsageError: it is no
    search on several machines, or the source has changed; ConflictError: it has ended, or another fcctl follows it;
    BudgetError: the new runs could cost more than is left of a cap."""
    is_complete = services.store.is_complete(run_id)
    if is_complete and not (record := services.store.get(run_id)).was_cut_off:
        raise ConflictError(
            f"run {run_id} has ended: {record.status}", hint=f"see its report: fcctl results report {run_id}"
        )
    saved = read_saved(services.store, run_id)
    if saved is None or saved.fleet is None:
        raise UsageError(f"run {run_id} is not a search on several machines", hint=f"follow it: fcctl attach {run_id}")
    source = source or services.source.read(place.root)
    if source.tree_sha256 != saved.source.tree_sha256:
        raise UsageError(
            f"the source differs from the source of {run_id}",
            cause="files changed after the search started, and times of different source cannot be compared",
            hint=f"restore the files, or name their commit: fcctl tune --resume {run_id} --rev"
            f" {(saved.source.git_commit or 'COMMIT')[:12]}; or finish the search on its present machine only:"
            f" fcctl attach {run_id}",
        )
    if not is_complete:
        with resumed(services, run_id, patience_s=0.0):
            pass  # nobody else leads its machines
    left = left_behind(services, saved)
    members = [_member(services, place, saved, source, host, left.get(host.name, [])) for host in saved.fleet.members]
    check_together(services, place, [m for m in members if not services.store.plan_of(m.saved.plan.run_id)])
    return Plans(Prepared(saved, source), members), left


def _member(
    services: Services, place: FleetPlanner, search: SavedPlan, source: Source, host: Target, left: Sequence[str]
) -> Prepared:
    """An active run as it was planned, else a new plan."""
    there = saved_plan(services, left[-1]) if left else None
    return Prepared(there, source) if there is not None else plan_member(services, place, search, source, host)


def continue_search(
    services: Services, run_id: str, agree: Callable[[SavedPlan], None], price: Price = as_planned
) -> Finished | None:
    """Follow the search to its end; if its machine was stopped or lost, run the rest there. ``price``: the plan of a
    start with the present price of its machine. Raises Detached: Ctrl-C; the search stays active; FcctlError: as
    ``fcctl attach`` and ``fcctl run --resume``."""
    store = services.store
    if not store.is_complete(run_id) and decide(fold(store.journal_of(run_id)), "resume") is not Action.WAIT:
        finished = _followed(services, run_id)
        if finished is not None:
            return finished
    return resume_run(services, run_id, agree, price=price)


def _followed(services: Services, run_id: str) -> Finished | None:
    """None if its machine was stopped, which the journal did not say before."""
    try:
        with resumed(services, run_id) as driver:
            try:
                record = driver.finish(wait=False)
            except MachineStopped:
                return None
            return Finished(record or driver.finish(), driver)
    except KeyboardInterrupt:
        raise Detached(run_id) from None
    except (HostUnreachable, LinkLost) as lost:
        first = f"{lost.hint}; then" if lost.hint else "the search continues without this connection; follow it again"
        hint = f"{first}: fcctl tune --resume {run_id}"
        raise LinkLost(lost.message, cause=lost.cause, hint=hint) from lost
