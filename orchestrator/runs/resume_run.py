"""``fcctl run --resume``: collects a run that was cut off, then starts a new run with its unfinished steps in the same
working folder. The journal of one of the two always has the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import wire
from fcctl_remote.gates import effect
from orchestrator.base import result_file
from orchestrator.base import run_id as ids
from orchestrator.base.errors import ConflictError, FcctlError, MachineStopped, UsageError
from orchestrator.base.journal import JournalEntry
from orchestrator.base.text import durations as duration
from orchestrator.base.text import json_text
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.results.store_api import ActiveRun
from orchestrator.runs import local_steps as prewake
from orchestrator.runs.cost.set_aside import set_aside, set_aside_wake
from orchestrator.runs.drive import Driver
from orchestrator.runs.job.saved_plan import SavedPlan, plan_at_home
from orchestrator.runs.reopen import new_link, resumed
from orchestrator.runs.run import Finished, collect_and_finish
from orchestrator.runs.services import Services

_OUTCOME = TypeAdapter(wire.Outcome)
#: Called with the id and the saved plan of the run that is to be resumed; raises ConflictError if it may not be.
BeforeResume = Callable[[Services, str, Mapping[str, Any]], None]
#: A plan with the price that its machine has now; raises if that is more than was planned.
Price = Callable[[SavedPlan], SavedPlan]


def as_planned(saved: SavedPlan) -> SavedPlan:
    """The :data:`Price` of a start at its planned price."""
    return saved


def resume_run(
    services: Services,
    run_id: str,
    agree: Callable[[SavedPlan], None],
    before_resume: BeforeResume,
    *,
    detach: bool = False,
    timeout_s: float | None = None,
    doubt: Callable[[], None] | None = None,
    price: Price = as_planned,
) -> Finished | None:
    """Collects the run and runs the rest of it as a new run. ``agree`` raises if the user declines the cost;
    ``before_resume`` if the run is of no use by itself; ``price`` sets the machine's current price; ``timeout_s`` is
    the least timeout of the first step. Raises ConflictError if the run was not cut off, UsageError if nothing is left,
    FcctlError as ``fcctl run``."""
    plan = services.store.plan_of(run_id) or plan_at_home(services.store, run_id)
    before_resume(services, run_id, plan)
    _check_last(services, run_id, str((plan.get("plan") or {}).get("job")))
    from_home = partial(
        _go_on_from_home, services, run_id, agree, price, detach=detach, timeout_s=timeout_s, doubt=doubt
    )
    if services.store.is_complete(run_id):
        return from_home()
    with resumed(services, run_id, doubt=doubt) as earlier:
        waits = _waits(earlier)
        if waits and timeout_s is not None:  # which step that is, and so what it may cost, is on the disk, too
            raise ConflictError(
                f"what there is of run {run_id} is on the disk of a machine that is off",
                hint="fcctl pull-results --wake, then the same command again",
            )
        begun = _go_on_from_disk(services, earlier, agree, price, doubt) if waits else None
    if begun is None:  # it was just collected
        return from_home()
    later, link, active = begun
    return collect_and_finish(later, link, active, detach=detach)


def _go_on_from_disk(
    services: Services,
    earlier: Driver,
    agree: Callable[[SavedPlan], None],
    price: Price,
    doubt: Callable[[], None] | None,
) -> tuple[Driver, ReconnectingHost, ActiveRun]:
    """Starts the machine for both: the old run is collected, then the new run has it."""
    saved = price(earlier.saved)
    start = saved.model_copy(update={"session": None})  # it is a start of its own now
    agree(start)
    woken = set_aside_wake(services, start, start.worst_case_usd)
    earlier.wake(saved.fence_s or 0, saved)
    try:
        earlier.collect_only()
    except BaseException:
        earlier.off_again()
        raise
    rest = _rest(services, saved, earlier.stepped(), earlier.active.intake().read_json)
    if rest is None:
        earlier.finish()
        raise _nothing_left(earlier.run_id)
    try:
        later, link, active = _begin(services, rest, doubt, instead_of=woken)
    except BaseException:
        earlier.finish()  # nobody needs the machine that was started for it
        raise
    try:
        services.observer.note(f"run {rest.plan.run_id} goes on with {earlier.run_id} at {rest.plan.steps[0].id}")
        earlier.finish()  # it leaves the machine to the new one
    except BaseException:
        active.release()
        link.close()
        raise
    return later, link, active


def _go_on_from_home(
    services: Services,
    run_id: str,
    agree: Callable[[SavedPlan], None],
    price: Price,
    *,
    detach: bool,
    timeout_s: float | None,
    doubt: Callable[[], None] | None,
) -> Finished | None:
    """Resumes a collected run: its machine is acquired for the rest."""
    record, folder = services.store.get(run_id), services.store.folder(run_id)
    read = partial(_read_below, folder)
    saved = SavedPlan.model_validate(plan_at_home(services.store, run_id))
    if not record.was_cut_off or (saved.target.kind == "gcp" and saved.fence_s is None):
        raise ConflictError(f"run {run_id} had ended: {record.status}", hint=f"fcctl results show {run_id}")
    journal = _journal(folder)
    if not any(entry.kind == "submit" for entry in journal):
        raise ConflictError(
            f"run {run_id} never came to its machine: there is nothing to go on with", hint="start it anew"
        )
    rest = _rest(services, saved, prewake.results(journal), read)
    if rest is None:
        raise _nothing_left(run_id)
    if timeout_s is not None:
        _check_timeout(timeout_s, rest.plan)
        first, *others = rest.plan.steps
        first = replace(first, timeout_s=max(first.timeout_s, timeout_s))
        rest = rest.model_copy(update={"plan": replace(rest.plan, steps=[first, *others])})
    rest = price(rest)
    agree(rest)
    later, link, active = _begin(services, rest, doubt)
    services.observer.note(f"run {rest.plan.run_id} goes on with {run_id} at {rest.plan.steps[0].id}")
    return collect_and_finish(later, link, active, detach=detach)


def _check_timeout(timeout_s: float, plan: wire.RunPlan) -> None:
    """Raises UsageError if the run would be over before."""
    most_s = math.inf if plan.max_minutes is None else plan.max_minutes * 60
    if timeout_s > most_s:
        raise UsageError(
            f"--timeout {duration.text(timeout_s)}: a run of {plan.job} is ended after {duration.text(most_s)}, by its "
            "budget.minutes",
            hint=f"--timeout {duration.text(most_s)}; or raise that in the job's file, and start it anew",
        )


def _begin(
    services: Services, rest: SavedPlan, doubt: Callable[[], None] | None, *, instead_of: str = ""
) -> tuple[Driver, ReconnectingHost, ActiveRun]:
    """Begins the new run and acquires its machine, in place of the reservation ``instead_of``; closes the run if that
    fails."""
    link = new_link(services, rest.target)
    link.doubts += [doubt] if doubt is not None else []
    active = services.store.begin(rest.plan.run_id, rest.to_json())
    try:
        set_aside(services, active, rest, replaces=[instead_of] if instead_of else [])
        later = Driver(services, link, active, "launch")
        later.begin()
        try:
            if rest.fence_s is not None:
                later.acquire()
        except FcctlError as error:
            later.abandon(error.message, "error", error.hint)
            raise
        except KeyboardInterrupt:
            later.abandon("interrupted before it went on", "cancelled")
            raise
    except BaseException:
        active.release()
        link.close()
        raise
    return later, link, active


def _read_below(folder: Path, path: str) -> Any:
    """A JSON file of a complete run, None if it has no such file; raises ValueError if it is none."""
    try:
        stream, size = result_file.opened(folder, path)
    except (OSError, ValueError):
        return None
    with stream:
        return json_text.loads(stream.read(size))


def _nothing_left(run_id: str) -> UsageError:
    return UsageError(
        f"nothing of run {run_id} is left to be done: all its steps had ended", hint=f"fcctl results show {run_id}"
    )


def _check_last(services: Services, run_id: str, job: str) -> None:
    """Raises ConflictError if a later run has resumed it."""
    store = services.store
    for later in reversed(store.active()):
        if _follows(run_id, store.plan_of(later)):
            raise ConflictError(f"run {later} goes on with {run_id} already", hint=f"fcctl attach {later}")
    for row in store.rows(job=job):
        if ids.began(row.run_id) < ids.began(run_id) or not _follows(run_id, plan_at_home(store, row.run_id)):
            continue
        if _was_sent(store.folder(row.run_id)):
            _check_last(services, row.run_id, job)  # and so on
            again = "run --resume" if store.get(row.run_id).was_cut_off else "results show"
            raise ConflictError(
                f"run {row.run_id} went on with {run_id}, and had ended: {row.status}",
                hint=f"fcctl {again} {row.run_id}",
            )


def _follows(run_id: str, plan: Mapping[str, Any] | None) -> bool:
    return ((plan or {}).get("plan") or {}).get("resume_from") == run_id


def _was_sent(folder: Path) -> bool:
    """Whether a complete run was submitted."""
    return any(entry.kind == "submit" for entry in _journal(folder))


def _journal(folder: Path) -> list[JournalEntry]:
    lines = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return [JournalEntry.model_validate_json(line) for line in lines]


def _waits(driver: Driver) -> bool:
    """Whether what the run has is on the disk of a machine that is off; else it is collected. Raises ConflictError if
    it runs."""
    if driver.waits:
        return True
    try:
        ended = driver.finish(wait=False)
    except MachineStopped:
        ended = None
    if ended is None and not driver.waits:
        raise ConflictError(f"run {driver.run_id} was not cut off", hint=f"fcctl attach {driver.run_id}")
    return ended is None


def _rest(
    services: Services, saved: SavedPlan, stepped: Sequence[wire.StepResult], read: Callable[[str], Any]
) -> SavedPlan | None:
    """The plan of what is left, with what was done; None if nothing is left."""
    results = _host_results(read, saved.plan.run_id)
    done: list[wire.StepResult] = []
    for spec in saved.plan.steps:
        result = results.get(spec.id)
        if result is None or not _went_well(spec, result):
            break
        done.append(result)
    left = saved.plan.steps[len(done) :]
    if not left:
        return None
    finished = prewake.adopted([*stepped, *done], read, services.observer)
    now = services.clock.now()
    plan = replace(
        saved.plan,
        run_id=ids.new(saved.plan.job, saved.target.name, now),
        created=now,
        steps=left,
        adopted=[*saved.plan.adopted, *finished],
        resume_from=saved.plan.run_id,
    )
    return saved.model_copy(update={"plan": plan, "before_wake": [], "session": None})


def _host_results(read: Callable[[str], Any], run_id: str) -> dict[str, wire.StepResult]:
    """The steps as the host's own account has them; empty if it left none that can be read."""
    try:
        outcome = _OUTCOME.validate_python(read("outcome.json"))
    except (ValueError, ValidationError):
        return {}
    return {step.id: step for step in outcome.steps} if outcome.run_id == run_id else {}


def _went_well(spec: wire.StepSpec, result: wire.StepResult) -> bool:
    """Whether a run would have continued after this step."""
    if result.status in ("cancelled", "skipped"):
        return False
    began = result.attempts > 0 or result.status in ("passed", "warned")
    return began and effect.goes_on(spec, result)
