"""What stopped a run: the step, its gates with their values, the hint, and the end of its log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base import result_file
from orchestrator.base.sanitize import clean, clean_text
from orchestrator.results.records import GateRecord, RunRecord, StepRecord

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

TITLES = {"failed": "Failed", "timed_out": "Timed out", "cancelled": "Cancelled", "unavailable": "Unavailable"}
LOG_LINES = 15
_TAIL_BYTES = 64 * 1024
_LINE = 400


def stopped(record: RunRecord) -> list[StepRecord]:
    """The steps that ended badly; those that were unavailable only if it was they that the run did not pass for."""
    ran = [s for s in record.steps if s.status in ("failed", "timed_out", "cancelled") and _says_something(s)]
    if record.status == "incomplete":
        return [s for s in record.steps if s in ran or s.left_open]
    if ran or record.status == "passed":
        return ran
    return [s for s in record.steps if s.status == "unavailable"][-1:]


def failure(step: StepRecord, folder: Path, shown_folder: str) -> Iterator[RenderableType]:
    """The lines under the step's heading. ``shown_folder`` is how the run's ``folder`` is named to the user."""
    from rich.padding import Padding

    said = [clean(line, _LINE) for line in clean_text(step.message or "").splitlines() if line.strip()]
    gates = [gate for gate in step.gates if gate.verdict in ("fail", "unavailable")]
    lines: list[Text] = []
    if said and not (gates and said[0].startswith("gate")):
        lines.append(_text(said[0]))
    for hint, alike in groupby(gates, lambda gate: gate.hint):  # each hint once
        lines += [_gate(gate) for gate in alike]
        if hint:
            lines.append(_hint(hint))
    if step.hint and not any(step.hint in (gate.hint or "") for gate in gates):
        lines.append(_hint(step.hint))
    yield from (Padding(line, (0, 0, 0, 2), expand=False) for line in lines)
    log = log_end(folder, step.log)
    if log is not None:
        yield path_line("  log:  ", f"{shown_folder}/{clean(step.log, 200)}")
    end = said[1:][-LOG_LINES:] if log is None else log
    if end:
        yield Padding(_quoted(end), (0, 0, 0, 4), expand=False)


def log_end(folder: Path, log: str | None) -> list[str] | None:
    """The last lines of a step's log that are not blank, cleaned; None if it did not come home as a plain file."""
    end = result_file.tail(folder, log, _TAIL_BYTES) if log else None
    if end is None:
        return None
    lines = [clean(line, _LINE) for line in clean_text(end.data.decode(errors="replace")).splitlines()]
    return [line for line in lines if line][-LOG_LINES:]


def path_line(label: str, path: str) -> Text:
    """A path in one piece, however wide the terminal is, so that it can be copied."""
    from rich.text import Text

    return Text(label, "bold", no_wrap=True, overflow="ignore", end="").append(path, "not bold")


def gate_value(gate: GateRecord) -> str:
    """``  is 168``; empty where the gate is its own value."""
    if gate.value is None or isinstance(gate.value, bool):
        return ""
    value = f"{gate.value:g}" if isinstance(gate.value, float) else gate.value
    return f"  is {clean(value, 80)}"


def _gate(gate: GateRecord) -> Text:
    said = _text(f"gate: {clean(gate.expr, 300)}", "red")
    said.append(gate_value(gate) or ("  has no value here" if gate.verdict == "unavailable" else ""), "bold")
    return said


def _hint(hint: str) -> Text:
    return _text(f"hint: {clean(hint, 600)}", "cyan")


def _says_something(step: StepRecord) -> bool:
    return bool(step.message or step.log or step.gates or step.hint)


def _quoted(lines: list[str]) -> Table:
    """Log lines behind a bar, also where a long one goes on in the next line."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row(_text("|", "dim"), _text(line, "dim"))
    return grid


def _text(said: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(said, style)
