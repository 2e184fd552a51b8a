"""Stop a run at its host, and bring home what it has."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.base.errors import ConflictError, HostFault, HostUnreachable, MachineStopped, RunNotFound
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import Store
from orchestrator.runs.job.saved_fleet import searches_of
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import new_link, resumed, saved_plan
from orchestrator.runs.services import Services


def with_members(store: Store, run_ids: Sequence[str]) -> list[str]:
    """``run_ids``, and the runs that do nothing but help one of these."""
    helped = set(run_ids).union(*(searches_of(plan) for plan in map(store.plan_of, run_ids) if plan))
    helping = [r for r in store.active() if (store.plan_of(r) or {}).get("fleet_of") in helped]
    return list(dict.fromkeys([*run_ids, *helping]))


def cancel(services: Services, run_id: str, *, reason: str, grace_s: float = 10.0) -> RunRecord | None:
    """Ends the run at its host and collects it; None: another fcctl follows the run and collects it. Raises RunNotFound
    if it is not active, HostError if the host cannot be reached."""
    saved = saved_plan(services, run_id)
    if saved is None:
        raise RunNotFound(f"no active run {run_id}", hint="fcctl ps lists the active ones")
    try:
        with resumed(services, run_id) as driver:
            services.left_on.had_by(run_id)
            try:
                if driver.submitted:
                    driver.cancel(reason, grace_s)
                return driver.finish()
            except MachineStopped:
                if saved.fleet_of is None:
                    raise
                return driver.give_up(reason, disk=False)  # it only helped a search: what is there is of no use
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
        return None


def _on_its_way(run_id: str, saved: SavedPlan) -> ConflictError:
    return ConflictError(
        f"run {run_id} is still on its way to {saved.target.name}",
        cause="another fcctl is at work on it",
        hint="press Ctrl-C there, or try again in a moment",
    )


def give_up(services: Services, run_id: str) -> RunRecord:
    """Ends an active run as ``lost`` without asking its host. Raises ConflictError if another fcctl follows it."""
    with resumed(services, run_id) as driver:
        if not driver.submitted:
            return driver.abandon("given up before it was submitted", "cancelled")
        return driver.give_up("given up by the user; the host was not asked")
