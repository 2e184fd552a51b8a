"""``fcctl run --resume``: a run whose machine was stopped under it goes on at its first unfinished step.

The run that was cut off comes home first, as what it is (preempted, lost, over budget). A new run then carries out the
rest, in the same working folder, with the finished steps' documents. From the moment the machine is woken it is held by
one of the two, in the journal, so that whoever finds them can stop it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import wire
from orchestrator.domain import run_id as ids
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.errors import ConflictError, MachineStopped, UsageError
from orchestrator.ports import Intake, Services
from orchestrator.workflows import prewake
from orchestrator.workflows.drive import Driver
from orchestrator.workflows.resume import new_link, resumed
from orchestrator.workflows.run import Finished, see_home

_OUTCOME = TypeAdapter(wire.Outcome)


def go_on(
    services: Services, run_id: str, agree: Callable[[SavedPlan], None], *, detach: bool = False
) -> Finished | None:
    """Wake the machine that ``run_id`` was on, bring that run home, and carry out the rest as a new run.

    Args:
        agree: asked before anything costs; raises if the user does not agree.

    Raises:
        ConflictError: the run is not cut off: it goes on, or is complete.
        UsageError: nothing of it is left to be done.
        FcctlError: as ``fcctl run``.
    """
    with resumed(services, run_id) as earlier:
        _check_waits(earlier)
        agree(earlier.saved)
        earlier.wake(earlier.saved.fence_s or 0)
        earlier.collect_only()
        rest = _rest(services, earlier)
        if rest is None:
            earlier.finish()
            raise UsageError(
                f"nothing of run {run_id} is left to be done: all its steps had ended",
                hint=f"fcctl results show {run_id}",
            )
        link = new_link(services, rest.target)
        active = services.store.begin(rest.plan.run_id, rest.to_json())
        try:
            later = Driver(services, link, active, "launch")
            later.begin()
            later.take_machine()
            services.observer.note(f"run {rest.plan.run_id} goes on with {run_id} at {rest.plan.steps[0].id}")
            earlier.finish()  # it leaves the machine to the new one
        except BaseException:
            active.release()
            link.close()
            raise
    return see_home(later, link, active, detach=detach)


def _check_waits(driver: Driver) -> None:
    """Whether the machine is off is the cloud's to say, where the journal does not know it yet."""
    if not driver.waits:
        try:
            ended = driver.finish(wait=False)
        except MachineStopped:
            ended = None
        if ended is not None or not driver.waits:
            raise ConflictError(
                f"run {driver.run_id} was not cut off" if ended is None else f"run {driver.run_id} had ended",
                hint=f"fcctl attach {driver.run_id}" if ended is None else f"fcctl results show {driver.run_id}",
            )


def _rest(services: Services, earlier: Driver) -> SavedPlan | None:
    """The plan of what is left, with what was done; None if nothing is left."""
    saved, intake = earlier.saved, earlier.intake()
    results = _host_results(intake, saved.plan.run_id)
    done: list[wire.StepResult] = []
    for spec in saved.plan.steps:
        result = results.get(spec.id)
        if result is None or not _went_well(spec, result):
            break
        done.append(result)
    left = saved.plan.steps[len(done) :]
    if not left:
        return None
    finished = prewake.adopted([*earlier.stepped(), *done], intake, services.observer)
    now = services.clock.now()
    plan = replace(
        saved.plan,
        run_id=ids.new(saved.plan.job, saved.target.name, now),
        created=now,
        steps=left,
        adopted=[*saved.plan.adopted, *finished],
        resume_from=saved.plan.run_id,
    )
    return saved.model_copy(update={"plan": plan, "before_wake": []})


def _host_results(intake: Intake, run_id: str) -> dict[str, wire.StepResult]:
    """The steps as the host's own account has them; empty if it left none that can be read."""
    try:
        raw: Any = intake.read_json("outcome.json")
        outcome = _OUTCOME.validate_python(raw)
    except (ValueError, ValidationError):
        return {}
    return {step.id: step for step in outcome.steps} if outcome.run_id == run_id else {}


def _went_well(spec: wire.StepSpec, result: wire.StepResult) -> bool:
    """Whether a run would have gone on after this step."""
    if result.status in ("passed", "warned"):
        return True
    if result.status in ("cancelled", "skipped") or result.attempts == 0:
        return False
    return spec.optional or (spec.unavailable_ok and result.status == "unavailable")
