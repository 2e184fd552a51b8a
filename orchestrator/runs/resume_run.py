"""``fcctl run --resume``: collects a run that was cut off, then starts a new run with its unfinished steps in the same
working folder. The journal of one of the two always has the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from fcctl_remote import gates, wire
from orchestrator.base import clock
from orchestrator.base import run_id as ids
from orchestrator.base.errors import ConflictError, FcctlError, MachineStopped, RunNotFound, UsageError
from orchestrator.base.journal import LOOK_S
from orchestrator.base.json_text import Budget
from orchestrator.base.sanitize import part
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.targets import CloudTarget
from orchestrator.results import documents
from orchestrator.runs import local_steps as prewake
from orchestrator.runs.cost.spending import set_aside, set_aside_wake
from orchestrator.runs.job.saved_plan import SavedPlan, plan_at_home
from orchestrator.runs.record import steps_here
from orchestrator.runs.reopen import new_link, resumed
from orchestrator.runs.run import Driver, Finished, collect_and_finish
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun

#: A plan with the price that its machine has now; raises if that is more than was planned.
Price = Callable[[SavedPlan], SavedPlan]
_Begun = tuple[Driver, ReconnectingHost, "FileActiveRun"]


def resume_run(
    services: Services,
    run_id: str,
    agree: Callable[[SavedPlan], None],
    *,
    detach: bool = False,
    timeout_s: float | None = None,
    price: Price = lambda saved: saved,
) -> Finished | None:
    """Collects the run and runs the rest of it as a new run. ``agree`` raises if the user declines the cost; ``price``
    sets the machine's current price; ``timeout_s`` is the least timeout of the first step. Raises ConflictError if the
    run was not cut off or only helps a search, UsageError if nothing is left, ConfigError if a secret is missing,
    FcctlError as ``fcctl run``."""
    plan = services.store.plan_of(run_id) or plan_at_home(services.store, run_id)
    if helped := plan.get("fleet_of"):
        raise ConflictError(
            f"run {run_id} is a worker host of the search {helped}",
            hint=f"resume the search, on its first machine: fcctl run --resume {helped}",
        )
    if helped := plan.get("builds_for"):
        raise ConflictError(f"run {run_id} only compiled for run {helped}", hint="start a new run")
    _check_last(services, run_id, str(part(plan, "plan", "job")))
    services.secrets(part(plan, "plan", "secrets") or ())  # before anything costs something
    resume = _Resume(services, run_id, agree, price, timeout_s)
    begun: _Begun | None = None
    try:
        if not services.store.is_complete(run_id):
            begun = resume.from_disk()
    except RunNotFound:
        if not services.store.is_complete(run_id):
            raise  # else another fcctl, `ps` for instance, has just collected it
    later, link, active = begun or resume.from_home()
    return collect_and_finish(later, link, active, detach=detach)


@dataclass(frozen=True)
class _Resume:
    services: Services
    run_id: str
    agree: Callable[[SavedPlan], None]
    price: Price
    timeout_s: float | None

    def from_disk(self) -> _Begun | None:
        """Starts the machine for both: the old run is collected, then the new run has it. Returns None if the old run
        did not wait on a disk; it is collected."""
        with resumed(self.services, self.run_id, wait_s=LOOK_S) as earlier:
            if not _waits(earlier):
                return None
            if self.timeout_s is not None:  # which step that is, and so what it may cost, is on the disk, too
                raise ConflictError(
                    f"--timeout cannot be used yet: the results of run {self.run_id} are on the disk of a machine"
                    f" that is off",
                    hint="first: fcctl pull-results --wake; then repeat this command",
                )
            return self._wake(earlier)

    def _wake(self, earlier: Driver) -> _Begun:
        saved = self.price(earlier.saved)
        start = saved.model_copy(update={"session": None})  # it is a start of its own now
        self.agree(start)
        woken = set_aside_wake(self.services, start, start.worst_case_usd)
        earlier.wake(saved.fence_s or 0, saved)
        try:
            earlier.collect_only()
        except BaseException:
            earlier.off_again()
            raise
        try:
            later, link, active = self._begin(
                self._rest(saved, earlier.stepped(), earlier.active.intake().read_json), replaces=[woken]
            )
        except BaseException:
            earlier.finish()  # nobody needs the machine that was started for it
            raise
        try:
            self._note(later.saved.plan)
            earlier.finish()  # it leaves the machine to the new one
        except BaseException:
            active.release()
            link.close()
            raise
        return later, link, active

    def from_home(self) -> _Begun:
        """Acquires the machine for the rest of a collected run."""
        store, run_id = self.services.store, self.run_id
        record, folder = store.get(run_id), store.folder(run_id)
        saved = SavedPlan.model_validate(plan_at_home(store, run_id))
        if not record.was_cut_off or (isinstance(saved.target, CloudTarget) and saved.fence_s is None):
            raise ConflictError(
                f"run {run_id} was not interrupted; it ended as {record.status}", hint=f"fcctl results show {run_id}"
            )
        journal = store.journal_of(run_id)
        if not any(entry.kind == "submit" for entry in journal):
            raise ConflictError(
                f"run {run_id} was never submitted to its machine: nothing to resume", hint="start a new run"
            )
        rest = self._rest(saved, steps_here(journal), partial(documents.read, folder, budget=Budget()))
        if self.timeout_s is not None:
            _check_timeout(self.timeout_s, rest.plan)
            first, *others = rest.plan.steps
            first = replace(first, timeout_s=max(first.timeout_s, self.timeout_s))
            rest = rest.model_copy(update={"plan": replace(rest.plan, steps=[first, *others])})
        rest = self.price(rest)
        self.agree(rest)
        begun = self._begin(rest)
        self._note(rest.plan)
        return begun

    def _note(self, plan: wire.RunPlan) -> None:
        self.services.observer.note(f"run {plan.run_id} resumes {self.run_id} at step {plan.steps[0].id}")

    def _rest(self, saved: SavedPlan, stepped: Sequence[wire.StepResult], read: Callable[[str], Any]) -> SavedPlan:
        """The plan of what is left, with what was done. Raises UsageError if nothing is left."""
        results = prewake.host_results(read, self.run_id)
        done = [*takewhile(bool, (_done(spec, results) for spec in saved.plan.steps))]
        left = saved.plan.steps[len(done) :]
        if not left:
            raise UsageError(
                f"nothing to resume: all steps of run {self.run_id} have ended",
                hint=f"fcctl results show {self.run_id}",
            )
        finished = prewake.adopted([*stepped, *filter(None, done)], read, self.services.observer)
        now = self.services.clock.now()
        plan = replace(
            saved.plan,
            run_id=ids.new(saved.plan.job, saved.target.name, now),
            created=now,
            steps=left,
            adopted=[*saved.plan.adopted, *finished],
            resume_from=self.run_id,
        )
        return saved.model_copy(update={"plan": plan, "before_wake": [], "builder": None, "session": None})

    def _begin(self, rest: SavedPlan, replaces: Sequence[str] = ()) -> _Begun:
        """Begins the new run and acquires its machine, in place of the reservations ``replaces``; closes the run if
        that fails."""
        link = new_link(self.services, rest.target)
        active = self.services.store.begin(rest.plan.run_id, rest.to_json())
        try:
            set_aside(self.services, active, rest, replaces=replaces)
            later = Driver(self.services, link, active, "launch")
            later.begin()
            try:
                if rest.fence_s is not None:
                    later.acquire()
            except FcctlError as error:
                later.abandon(error.message, "error", error.hint)
                raise
            except KeyboardInterrupt:
                later.abandon("interrupted before it was resumed", "cancelled")
                raise
        except BaseException:
            active.release()
            link.close()
            raise
        return later, link, active


def _check_timeout(timeout_s: float, plan: wire.RunPlan) -> None:
    """Raises UsageError if the run would be over before."""
    most_s = math.inf if plan.max_minutes is None else plan.max_minutes * 60
    if timeout_s > most_s:
        raise UsageError(
            f"--timeout {clock.duration_text(timeout_s)} is too long: budget.minutes of {plan.job} stops a run after"
            f" {clock.duration_text(most_s)}",
            hint=f"use --timeout {clock.duration_text(most_s)}; or raise budget.minutes in the job file for a new run",
        )


def _check_last(services: Services, run_id: str, job: str) -> None:
    """Raises ConflictError if a later run has resumed it."""
    store = services.store
    for later in reversed(store.active()):
        if _follows(run_id, store.plan_of(later)):
            raise ConflictError(f"run {later} has already resumed {run_id}", hint=f"fcctl attach {later}")
    for row in store.rows(job=job):
        if ids.began(row.run_id) < ids.began(run_id) or not _follows(run_id, plan_at_home(store, row.run_id)):
            continue
        if any(entry.kind == "submit" for entry in store.journal_of(row.run_id)):
            _check_last(services, row.run_id, job)  # and so on
            again = "run --resume" if store.get(row.run_id).was_cut_off else "results show"
            raise ConflictError(
                f"run {row.run_id} has already resumed {run_id} and ended as {row.status}",
                hint=f"fcctl {again} {row.run_id}",
            )


def _follows(run_id: str, plan: Mapping[str, Any] | None) -> bool:
    return bool(part(plan, "plan", "resume_from") == run_id)


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
        raise ConflictError(
            f"run {driver.run_id} is still active: nothing to resume", hint=f"fcctl attach {driver.run_id}"
        )
    return ended is None


def _done(spec: wire.StepSpec, results: Mapping[str, wire.StepResult]) -> wire.StepResult | None:
    """The result of a step after which a run would have continued."""
    result = results.get(spec.id)
    if result is None or result.status in ("cancelled", "skipped"):
        return None
    began = result.attempts > 0 or result.status in ("passed", "warned")
    return result if began and gates.goes_on(spec, result) else None
