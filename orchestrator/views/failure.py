"""What stopped a run: the steps that ended badly, and the end of their logs."""

from __future__ import annotations

from pathlib import Path

from orchestrator.base import result_file
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.results.records import RunRecord, StepRecord

LOG_LINES, LINE = 15, 400
_TAIL_BYTES = 64 * 1024


def failed_steps(record: RunRecord) -> list[StepRecord]:
    """The steps that ended badly; those that were unavailable only if it was they that the run did not pass for."""
    bad = [
        step for step in record.steps
        if step.status in ("failed", "timed_out", "cancelled") and (step.message or step.log or step.gates or step.hint)
    ]  # fmt: skip
    if record.status == "incomplete":
        return [s for s in record.steps if s in bad or s.left_open]
    if bad or record.status == "passed":
        return bad
    return [s for s in record.steps if s.status == "unavailable"][-1:]


def log_end(folder: Path, log: str | None) -> list[str] | None:
    """The last lines of a step's log that are not blank, cleaned; None if it was not collected as a plain file."""
    end = result_file.tail(folder, log, _TAIL_BYTES) if log else None
    if end is None:
        return None
    lines = [clean(line, LINE) for line in clean_text(end.data.decode(errors="replace")).splitlines()]
    return [line for line in lines if line][-LOG_LINES:]
