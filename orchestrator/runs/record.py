"""The record of a run that is over: what ran here, the host's account, and what its machine adds."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import FcctlError
from orchestrator.results.records import EXIT_CODES, RenamedRecord, RunRecord, RunStatus
from orchestrator.results.store.rows import fits
from orchestrator.runs import ending
from orchestrator.runs import local_steps as prewake
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import State
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun
    from orchestrator.results.store.intake import FolderIntake
    from orchestrator.runs.machine.run_lease import RunLease

#: Renamed files that a record lists.
MAX_NAMED = 1000
#: The most memory for a run's ``outcome.json``, bytes.
MAX_OUTCOME_BYTES = 16 * 1024 * 1024


def record_of(active: FileActiveRun, saved: SavedPlan, state: State, machine: RunLease | None, now: float) -> RunRecord:
    """``run.json`` of a run in ``state``, whose end is at ``now``, epoch seconds, if nothing says when it was."""
    before = prewake.results(active.journal.entries())
    if state.without_outcome == "here":
        record = ending.ended_here(saved, before, state.ended_as, state.reason, now)
    else:
        record = _hosts_account(active, saved, state, now)
    if machine is not None:
        record = machine.account(record)
    record = ending.with_steps_before(record, before)
    intake = active.intake()
    renamed = [RenamedRecord(path=sent, stored=stored) for sent, stored in intake.renamed()[:MAX_NAMED]]
    record = record.model_copy(update={"renamed": renamed})
    if saved.plan.resume_from is None:
        return record
    _store_adopted(intake, saved.plan)
    record = record.model_copy(update={"parents": [saved.plan.resume_from]})
    return ending.with_adopted(record, saved.plan)


def unfetched(active: FileActiveRun, saved: SavedPlan, now: float) -> RunRecord:
    """What is known of a run that has ended, and whose results are at its host yet."""
    said = [entry.data.get("status") for entry in active.journal.entries() if entry.kind == "ended"]
    status: RunStatus = said[-1] if said and said[-1] in EXIT_CODES else "lost"
    return ending.without_outcome(saved, status, "its results are not on this computer", now)


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
        return ending.without_outcome(saved, status, state.reason or "never submitted", now, hint=said[-1])
    omitted = omitted_of(active)
    if state.without_outcome == "lost":
        reason = state.reason or "lost"
        return ending.without_outcome(saved, "lost", reason, now, hint="run it again", omitted=omitted)
    try:
        raw = active.intake().read_json("outcome.json", MAX_OUTCOME_BYTES)
    except ValueError as e:
        raw = f"{e}"
    record = ending.from_outcome(saved, raw, omitted, now)
    if not fits(record.model_dump_json(indent=1).encode()):
        record = ending.from_outcome(saved, "it is too large", omitted, now)
    return record


def omitted_of(active: FileActiveRun) -> list[wire.Omitted]:
    """What stayed on the host, from the journal: the collection may have been another controller's."""
    for entry in reversed(active.journal.entries()):
        if entry.kind == "collected":
            return [wire.decode(wire.Omitted, o) for o in entry.data.get("omitted", [])]
    return []
