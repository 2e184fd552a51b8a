"""A run of another run's local steps on its builder: a target with nvcc, for a computer that has none.

It is a run like any other, with a journal, a reservation, a machine with a max run duration, and a ledger entry.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fcctl_remote import wire
from fcctl_remote.base.programs import which
from fcctl_remote.probe import docker
from fcctl_remote.probe.environment import resolve_environment
from orchestrator.base import run_id as ids
from orchestrator.base.errors import FcctlError, RunNotFound
from orchestrator.machines.targets import Target
from orchestrator.money.caps import Budget
from orchestrator.money.prices.rates import hourly_plan
from orchestrator.results.records import RunRecord
from orchestrator.runs.job.plan import IDLE_STOP_S
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.local_steps import HERE, plan_here
from orchestrator.runs.notices import SILENT_NOTIFIER
from orchestrator.runs.reopen import cancel, new_link
from orchestrator.runs.run import Detached, run
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source


def is_needed(steps: Sequence[wire.StepSpec], cuda_image: str) -> bool:
    """Whether one of the local ``steps`` needs nvcc, and this computer has neither nvcc nor a container with it."""
    if not any("nvcc" in step.needs.tools for step in steps):
        return False
    env = dict(os.environ)
    env.update(resolve_environment(env, str(Path(HERE.root).expanduser())))
    return which("nvcc", env) is None and not (cuda_image and docker.runtime(cuda_image, env))


def plan(saved: SavedPlan, target: Target, budget: Budget, now: float) -> SavedPlan:
    """The plan of ``saved``'s local steps on ``target``. Raises ConfigError without a price."""
    there = replace(
        plan_here(saved, cuda_image=""),
        run_id=ids.new(saved.plan.job, target.name, now - 1),  # `last` is the run itself: ids sort by the second
        target=target.name,
        attached=False,
        idle_stop_s=IDLE_STOP_S if target.cloud is not None else None,
    )
    return SavedPlan(
        plan=there,
        target=target,
        source=saved.source,
        settings=saved.settings,
        egress_usd=saved.egress_usd,
        builds_for=saved.plan.run_id,
        **hourly_plan(target, budget).model_dump(),
    )


def run_there(services: Services, saved: SavedPlan, source: Source | None) -> RunRecord | None:
    """Runs ``saved`` on the builder; None, and a note, if the builder could not be used. Without a ``source`` it only
    ends such a run, which a dead controller left. Raises KeyboardInterrupt, and the run may be active then."""
    services = replace(services, notifier=SILENT_NOTIFIER)
    name, run_id = saved.target.name, saved.plan.run_id
    if source is None:
        _end(services, run_id)
        return None
    services.observer.phase("build", f"this computer has no nvcc: the local steps run on {name} ({run_id})")
    try:
        finished = run(services, new_link(services, saved.target), saved, source)
    except Detached:
        raise KeyboardInterrupt from None
    except FcctlError as error:
        services.observer.note(f"{name} could not be used to compile: {error.one_line}")
        with suppress(FcctlError):  # a later command does it
            _end(services, run_id)
        return None
    return finished.record if finished is not None else None


def _end(services: Services, run_id: str) -> None:
    if run_id in services.store.active():
        with suppress(RunNotFound):
            cancel(services, run_id, reason="the run that it compiled for has ended")
