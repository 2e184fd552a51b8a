"""``run.json`` of a run that is over: what ran here, the host's account, and what its machine adds."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from fcctl_remote import gates, wire
from orchestrator.base import models
from orchestrator.base.clock import LATEST, iso
from orchestrator.base.errors import FcctlError
from orchestrator.base.journal import JournalEntry
from orchestrator.base.safe_paths import MAX_PATH_BYTES
from orchestrator.machines.connect.framing import in_range
from orchestrator.results.records import (
    EXIT_CODES,
    CostLine,
    CostRecord,
    OmittedRecord,
    RenamedRecord,
    RunRecord,
    RunStatus,
    StepRecord,
    step_record,
)
from orchestrator.results.store.rows import fits
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import State
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun
    from orchestrator.results.store.intake import FolderIntake


#: How much longer a run may seem by its host's clock than by ours, seconds.
CLOCKS_DIFFER_S = 3600.0
#: Files left out that a record lists.
MAX_OMITTED = 2000
#: What a shell says of a program that SIGTERM or SIGKILL has ended.
_BY_SHUTDOWN = (128 + 15, 128 + 9, -15, -9)


@functools.cache
def outcome_type() -> TypeAdapter[wire.Outcome]:
    """Validates ``outcome.json``."""
    return TypeAdapter(wire.Outcome)


def from_outcome(saved: SavedPlan, raw: Any, omitted: Sequence[wire.Omitted], now: float) -> RunRecord:
    """Returns the record of a run from its parsed ``outcome.json``. The host is not trusted: anything but an outcome of
    this run gives a record with status ``error``."""
    try:
        outcome = in_range(outcome_type().validate_python(raw))
        if outcome.run_id != saved.plan.run_id:
            raise ValueError(f"it belongs to run {outcome.run_id!r}")
        if outcome.tree_sha256 not in ("", saved.plan.tree_sha256):
            raise ValueError("it is of another source tree")
        planned = [spec.id for spec in saved.plan.steps]
        if [step.id for step in outcome.steps] != planned:
            raise ValueError(f"its steps are not {', '.join(planned)}")
        status: RunStatus = TypeAdapter(RunStatus).validate_python(outcome.status)
        steps = [step_record(s) for s in outcome.steps]
        # A host program of before this ending says ``passed``.
        optional = {spec.id for spec in saved.plan.steps if spec.optional}
        required = [step for step in outcome.steps if step.id not in optional]
        left_open = None if status != "passed" else gates.incomplete(required)
        if left_open is not None:
            status, outcome.message = "incomplete", left_open
        for spec, step in zip(saved.plan.steps, outcome.steps, strict=True):
            if status == "passed" and not gates.goes_on(spec, step):
                raise ValueError(f"its status is passed, but step {step.id!r} is {step.status}")
    except (ValidationError, ValueError) as e:
        return without_outcome(
            saved, "error", "the host's outcome.json of the run is invalid: " + _short(e), now, omitted=omitted
        )
    elapsed_s = now - saved.plan.created
    if outcome.finished >= LATEST or not outcome.finished - outcome.started <= elapsed_s + CLOCKS_DIFFER_S:
        outcome.started, outcome.finished = saved.plan.created, now  # its clock is far off, or was set meanwhile
    return _record(
        saved,
        status,
        omitted,
        message=outcome.message,
        hint=next((s.hint for s in steps if s.hint and s.status in ("failed", "timed_out", "cancelled")), None),
        started=iso(outcome.started),
        finished=iso(outcome.finished) or "",
        host=outcome.host,
        steps=steps,
        cost=_cost(saved, outcome),
    )


def _record(saved: SavedPlan, status: RunStatus, omitted: Sequence[wire.Omitted], **more: Any) -> RunRecord:
    """What the plan alone says of a run that ended with ``status``, and ``more``."""
    return RunRecord(
        run_id=saved.plan.run_id,
        job=saved.plan.job,
        title=saved.plan.title,
        target=saved.target.name,
        status=status,
        exit_code=EXIT_CODES[status],
        created=iso(saved.plan.created) or "",
        source=saved.source,
        omitted=_listed(omitted),
        settings=saved.settings,
        **more,
    )


def _listed(omitted: Sequence[wire.Omitted]) -> list[OmittedRecord]:
    """As many as a record has room for; whatever names the host made up, it can be read again."""
    listed = [OmittedRecord(path=o.path[:MAX_PATH_BYTES], reason=o.reason[:60]) for o in omitted[:MAX_OMITTED]]
    rest = len(omitted) - len(listed)
    return [*listed, OmittedRecord(path=f"... and {rest} more", reason="not listed")] if rest else listed


def _cost(saved: SavedPlan, outcome: wire.Outcome) -> CostRecord:
    """The run's seconds on the host at the target's price; the rest is ``idle``. Steps that claim more than the run
    took are scaled down."""
    seconds: dict[str, float] = {}
    for step in outcome.steps:
        seconds[step.activity] = seconds.get(step.activity, 0.0) + step.duration_s
    total, claimed = max(0.0, outcome.finished - outcome.started), sum(seconds.values())
    if claimed > total + CLOCKS_DIFFER_S:
        seconds = {activity: took * total / claimed for activity, took in seconds.items()}
    total = max(total, sum(seconds.values()))
    seconds["idle"] = seconds.get("idle", 0.0) + total - sum(seconds.values())
    rate = saved.usd_per_hour / 3600
    lines = [CostLine(activity=a, seconds=round(s, 3), usd=round(s * rate, 6)) for a, s in seconds.items()]
    return CostRecord(
        usd=round(total * rate, 6),
        usd_per_hour=saved.usd_per_hour,
        billed_s=round(total, 3),
        breakdown=lines,
        emulated=saved.target.kind == "sandbox",
    )


def without_outcome(
    saved: SavedPlan,
    status: RunStatus,
    message: str,
    now: float,
    *,
    hint: str | None = None,
    omitted: Sequence[wire.Omitted] = (),
) -> RunRecord:
    """The record of a run that the host has no account of: never submitted, or lost."""
    return _record(saved, status, omitted, message=message, hint=hint, finished=iso(now) or "")


def ended_here(
    saved: SavedPlan, steps: Sequence[wire.StepResult], status: RunStatus, message: str | None, now: float
) -> RunRecord:
    """The record of a run whose steps on this computer were its last: what was for the host is skipped."""
    skipped = [StepRecord(id=spec.id, status="skipped", activity=spec.activity) for spec in saved.plan.steps]
    hint = next((s.hint for s in steps if s.hint and s.status not in ("passed", "warned", "skipped")), None)
    record = without_outcome(saved, status, message or status, now, hint=hint)
    started = next((iso(s.started) for s in steps if s.started is not None), None)
    return record.model_copy(update={"started": started, "steps": skipped, "message": message})


def stopped_under(record: RunRecord, status: RunStatus, reason: str, hint: str | None) -> RunRecord:
    """Returns ``record`` with the reason why its machine was stopped, unless the run had come to its own end before."""
    if record.status not in ("lost", "preempted", "error") and not _ended_by_shutdown(record):
        return record
    said = f"{reason} ({record.message})" if record.message and record.status != "lost" else reason
    update = {"status": status, "exit_code": EXIT_CODES[status], "message": said, "hint": hint or record.hint}
    return record.model_copy(update=update)


def _ended_by_shutdown(record: RunRecord) -> bool:
    last = next((step for step in reversed(record.steps) if step.status != "skipped"), None)
    return record.status == "failed" and last is not None and last.exit_code in _BY_SHUTDOWN


def with_steps_before(record: RunRecord, steps: Sequence[wire.StepResult]) -> RunRecord:
    """``record`` with the steps that ran on this computer in front; the host has no say in those."""
    ours = {step.id for step in steps}
    theirs = [step for step in record.steps if step.id not in ours]
    return record.model_copy(update={"steps": [*map(step_record, steps), *theirs]}) if steps else record


def with_adopted(record: RunRecord, plan: wire.RunPlan) -> RunRecord:
    """``record`` with the steps of the resumed run in front; their logs are with that run."""
    earlier = [replace(f.result, log=None, message=f"ran in run {plan.resume_from}") for f in plan.adopted]
    return with_steps_before(record, earlier)


def _short(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(p) for p in first["loc"])
        return f"{where}: {models.reason(first)}" if where else models.reason(first)
    return str(error)[:300]


#: Renamed files that a record lists.
MAX_NAMED = 1000
#: The most memory for a run's ``outcome.json``, bytes.
MAX_OUTCOME_BYTES = 16 * 1024 * 1024


def steps_here(journal: Sequence[JournalEntry]) -> list[wire.StepResult]:
    """The steps that ended here, from the run's journal."""
    for entry in reversed(journal):
        if entry.kind == "stepped":
            return TypeAdapter(list[wire.StepResult]).validate_python(entry.data.get("steps", []))
    return []


def record_of(
    active: FileActiveRun, saved: SavedPlan, state: State, account: Callable[[RunRecord], RunRecord], now: float
) -> RunRecord:
    """``run.json`` of a run in ``state``, whose end is at ``now``, epoch seconds, if nothing says when it was.
    ``account`` adds what its machine did and cost."""
    before = steps_here(active.journal.entries())
    if state.without_outcome == "here":
        record = ended_here(saved, before, state.ended_as, state.reason, now)
    else:
        record = _hosts_account(active, saved, state, now)
    record = with_steps_before(account(record), before)
    intake = active.intake()
    renamed = [RenamedRecord(path=sent, stored=stored) for sent, stored in intake.renamed()[:MAX_NAMED]]
    record = record.model_copy(update={"renamed": renamed})
    if saved.plan.resume_from is None:
        return record
    _store_adopted(intake, saved.plan)
    record = record.model_copy(update={"parents": [saved.plan.resume_from]})
    return with_adopted(record, saved.plan)


def unfetched(active: FileActiveRun, saved: SavedPlan, now: float) -> RunRecord:
    """What is known of a run that has ended, and whose results are at its host yet."""
    said = [entry.data.get("status") for entry in active.journal.entries() if entry.kind == "ended"]
    status: RunStatus = said[-1] if said and said[-1] in EXIT_CODES else "lost"
    return without_outcome(saved, status, "its results are not on this computer", now)


def _store_adopted(intake: FolderIntake, plan: wire.RunPlan) -> None:
    """The documents of the steps in front, where the host did not get them or lost them in a power cut."""
    for finished in plan.adopted:
        for ref, document in zip(finished.result.documents, finished.documents, strict=False):
            data = json.dumps(document).encode()
            with suppress(ValueError):  # half a document
                if intake.read_json(ref.path) == document:
                    continue
            intake.discard(ref.path)
            if intake.accepts(ref.path, len(data)) is None:
                intake.write(ref.path, 0, data)


def add_report(services: Services, active: FileActiveRun, saved: SavedPlan, record: RunRecord) -> None:
    """Adds the report to the run's files if its job wants one; a failure does not fail the run."""
    report_files = services.report_files
    if not saved.report or report_files is None:
        return
    env, own = saved.plan.env, saved.target.env
    settings = {key: value for key, value in env.items() if own.get(key) != value}
    try:
        active.add(lambda folder: report_files(record, folder, settings))
    except (FcctlError, OSError, ValueError) as e:
        services.observer.note(
            f"could not add a report to the run's files: {e}; to write one: fcctl results report {saved.plan.run_id}"
        )


def _hosts_account(active: FileActiveRun, saved: SavedPlan, state: State, now: float) -> RunRecord:
    if state.without_outcome == "abandoned":
        status: RunStatus = "cancelled" if state.cancelled else "error"
        said = [entry.data.get("hint") for entry in active.journal.entries() if entry.kind == "abandoned"]
        return without_outcome(saved, status, state.reason or "never submitted", now, hint=said[-1])
    omitted = omitted_of(active)
    if state.without_outcome == "lost":
        reason = state.reason or "lost"
        return without_outcome(saved, "lost", reason, now, hint="start the job again", omitted=omitted)
    try:
        raw = active.intake().read_json("outcome.json", MAX_OUTCOME_BYTES)
    except ValueError as e:
        raw = f"{e}"
    record = from_outcome(saved, raw, omitted, now)
    if not fits(record.model_dump_json(indent=1).encode()):
        record = from_outcome(saved, "it is too large", omitted, now)
    return record


def omitted_of(active: FileActiveRun) -> list[wire.Omitted]:
    """What stayed on the host, from the journal: the collection may have been another controller's."""
    for entry in reversed(active.journal.entries()):
        if entry.kind == "collected":
            return [wire.decode(wire.Omitted, o) for o in entry.data.get("omitted", [])]
    return []
