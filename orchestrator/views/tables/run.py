"""Runs in the terminal: the list, and one finished run: status, steps, results, gates, what failed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from orchestrator.base import safe_paths
from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean, clean_text, number, part
from orchestrator.results.documents import Documents, load
from orchestrator.results.look import Shown
from orchestrator.results.records import GateRecord, RunRecord, RunRow, StepRecord
from orchestrator.results.tags import Tag
from orchestrator.views.blocks import Cell, Grid, Heading
from orchestrator.views.figures import age, duration, gate_value, usd
from orchestrator.views.report.profiles import profile_blocks, profiled
from orchestrator.views.report.tuning import proven
from orchestrator.views.table import Table, mark, more, plain_table, rendered, show, show_blocks, unbroken
from orchestrator.views.table import line as as_line
from orchestrator.views.tables.before import against_before
from orchestrator.views.tables.documents import section
from orchestrator.views.tables.money import EMULATED, cost_section

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
    end = safe_paths.tail(folder, log, _TAIL_BYTES) if log else None
    if end is None:
        return None
    lines = [clean(line, LINE) for line in clean_text(end.data.decode(errors="replace")).splitlines()]
    return [line for line in lines if line][-LOG_LINES:]


#: The order is a promise to scripts: new columns go to the end.
PLAIN = ("RUN", "STATUS", "SECONDS", "CREATED", "JOB", "TARGET", "USD", "COMMIT", "GPU")


def plain(rows: list[RunRow]) -> str:
    """Columns of text two spaces apart, ``-`` for what is not known; no cell but the last has a space in it."""
    table = [PLAIN, *(_plain_row(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(PLAIN))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table)
    return "\n".join(lines) + "\n"


def _plain_row(row: RunRow) -> tuple[str, ...]:
    usd = f"{row.usd:.4f}" if row.usd else "-"
    cells = (row.run_id, row.status, f"{row.duration_s:.1f}", row.created, row.job, row.target, usd)
    commit = (row.git_commit or "-")[:12]
    return (*(clean(c, 80).replace(" ", "_") or "-" for c in (*cells, commit)), clean(row.gpu or "-", 60))


def print_runs(
    rows: list[RunRow], console: Console, now: float, tags: Mapping[str, Sequence[str]] | None = None
) -> None:
    """The table for people, newest first. Wide terminals get more columns; the run id says most of it anyway."""
    tagged = {row.run_id: tags[row.run_id] for row in rows if tags and row.run_id in tags}
    header = ("RUN", "STATUS", "TIME", "AGE", "COMMIT", "USD", *(("TAGS",) if tagged else ()), "GPU")
    lines = tuple(
        (clean(row.run_id, 63), Cell(row.status, kind="status"), duration(row.duration_s), age(row.created, now),
         clean((row.git_commit or "")[:9]), f"{row.usd:.2f}" if row.usd else "",
         *((" ".join(tagged.get(row.run_id, ())),) if tagged else ()), Cell(clean(row.gpu or "", 40), kind="soft"))
        for row in rows
    )  # fmt: skip
    show_blocks(console, [Grid(header, lines, numbers=(2, 3, 5), optional=(4, 5, len(header) - 1))])


def print_tags(tags: Sequence[Tag], console: Console) -> None:
    """One line a tag, and one for each further run of it."""
    lines = [
        (tag.name, tag.runs[0], clean(tag.git_commit[:10]), clean(tag.gpu, 24), clean(tag.note, 80)) if first
        else ("", run, "", "", "")
        for tag in tags for first, run in ((i == 0, run) for i, run in enumerate(tag.runs))
    ]  # fmt: skip
    show_blocks(console, [Grid(("TAG", "RUN", "COMMIT", "GPU", "NOTE"), tuple(lines))])


#: Wider lines are harder to read, and a console that is no terminal says it is hundreds of columns wide.
MAX_WIDTH = 132
#: Files that were left out or renamed; gates of all steps.
_NAMES, _GATES = 20, 500
_TITLES = {"failed": "Failed", "timed_out": "Timed out", "cancelled": "Cancelled"}
_COLOURS = {"passed": "green", "failed": "red", "incomplete": "magenta", "error": "red", "lost": "red"}


def print_run_summary(record: RunRecord, folder: Path, console: Console, documents: Documents | None = None) -> None:
    """Print the report that ends ``fcctl run`` and that ``fcctl results show`` prints; legible from 80 columns.

    ``folder`` is where the run's files are, from which the ``documents`` are read unless they are given; those that
    cannot be read are named, never an error.
    """
    for piece in _pieces(record, folder, documents or load(record, folder)):
        show(console, piece, width=min(console.width, MAX_WIDTH))


def _pieces(record: RunRecord, folder: Path, documents: Documents) -> Iterator[RenderableType]:
    failed = failed_steps(record)
    yield from _header(record, failed)
    if record.steps:
        yield _heading("Steps")
        yield _indented(_steps(record, documents, failed))
    for document in documents.items:
        if found := section(document):
            title, content = found
            several = len(documents.of(document.kind)) > 1
            yield _heading(title, clean(document.step, 40) if several else "")
            yield from (_indented(as_line(piece)) for block in content for piece in rendered(block))
    profiles = [*profile_blocks(profiled(Shown(record, folder, documents)))]
    if profiles:
        yield _heading("Profile")
        yield from (_indented(as_line(piece)) for block in profiles for piece in rendered(block))
    searches = documents.of("tuning") if record.status == "passed" else []
    if any(proven(search.content) for search in searches):
        yield _indented(Text(f"add the result to your table: fcctl tune --adopt {clean(record.run_id, 63)}", "cyan"))
    yield from _gates(record, failed)
    if record.cost.usd:
        yield _heading("Cost", EMULATED if record.cost.emulated else "")
        yield from (_indented(as_line(piece)) for block in cost_section(record.cost) for piece in rendered(block))
    yield from _files(record)
    for step in failed:
        yield _heading(_TITLES.get(step.status, "Unavailable"), clean(step.id, 40))
        yield from _failure(step, folder)
    yield from (Text(f"\nnot shown: {clean(problem, 300)}", "yellow") for problem in documents.problems)
    for block in against_before(record, folder) if documents.of("benchmark") else ():
        yield from (_indented(as_line(piece), 0 if isinstance(block, Heading) else 2) for piece in rendered(block))
    yield Text()
    yield unbroken("Results  ", _short(folder), "bold")
    if sys.platform == "darwin":
        yield from (unbroken("", command, "dim") for command in open_commands(folder))


def open_commands(folder: Path) -> list[str]:
    """What opens a run's report and its first profiles on macOS."""
    files = [*sorted(folder.glob("**/report.html"))[:1], *sorted(folder.glob("**/*.ncu-rep"))[:3]]
    shown = [_short(path) for path in files if clean(path, 1000) == str(path)]  # names may be a host's
    nsight = 'open -a "NVIDIA Nsight Compute" '
    return [("open " if path.endswith(".html") else nsight) + shlex.quote(path) for path in shown]


def _indented(content: RenderableType, by: int = 2) -> Padding:
    return Padding(content, (0, 0, 0, by), expand=False)


def _heading(title: str, detail: str = "") -> Text:
    heading = Text(f"\n{title}", "bold")
    return heading.append(f"  {detail}", "dim not bold") if detail else heading


def _header(record: RunRecord, failed: Sequence[StepRecord]) -> Iterator[Text]:
    line = Text.assemble("\n", (clean(record.job, 60), "bold"), " on ", (clean(record.target, 40), "bold"), "  ")
    status = mark(record.status)
    status.stylize(f"bold {_COLOURS.get(record.status, 'yellow')}")
    seconds = _wall_clock_s(record)
    yield line.append_text(status).append(f" in {duration(seconds)}" if seconds is not None else "")
    about = [clean(record.run_id, 63)]
    if record.source.git_commit:
        about.append(f"commit {clean(record.source.git_commit[:9])}" + (" + changes" if record.source.dirty else ""))
    if record.cost.usd:
        cost = usd(record.cost.usd)
        about.append(f"would have cost {cost} (emulated)" if record.cost.emulated else cost)
    yield Text("  ".join(about), "dim")
    if record.message:
        yield Text(clean(record.message, 600))
    if record.hint and record.hint not in {step.hint for step in failed}:
        yield Text(f"hint: {clean(record.hint, 600)}", "cyan")


def _wall_clock_s(record: RunRecord) -> float | None:
    try:
        began = datetime.fromisoformat(record.started or record.created)
        return max(0.0, (datetime.fromisoformat(record.finished) - began).total_seconds())
    except (ValueError, TypeError):
        return None


def _short(folder: Path) -> str:
    """Relative to the current folder if it lies below, so that it can be copied from an 80 column line."""
    return clean(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder, 500)


# ------------------------------------------------------------------------------------------------ steps and gates
def _steps(record: RunRecord, documents: Documents, failed: Sequence[StepRecord]) -> Table:
    table = Table(show_header=False)
    table.add_column(overflow="fold", max_width=28)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for step in record.steps:
        ran = step.attempts > 0 or step.duration_s > 0
        taken = duration(max(0.0, step.duration_s)) if ran and step.status != "unavailable" else ""
        table.add_row(clean(step.id, 60), mark(step.status), taken, _note(step, documents, below=step in failed))
    return table


def _note(step: StepRecord, documents: Documents, *, below: bool) -> Text:
    note = Text()
    judged = [g for g in step.gates if g.verdict != "not_applicable"]
    if judged:
        passed = sum(g.verdict == "pass" for g in judged)
        note.append(f"gates {passed}/{len(judged)}", "" if passed == len(judged) else "red")
    if step.attempts > 1:
        note.append(f"{', ' if note else ''}attempt {step.attempts}")
    for line, style in _explained(step, documents, below=below):
        note.append(("\n" if note else "") + line, style)
    return note


def _explained(step: StepRecord, documents: Documents, *, below: bool) -> Iterator[tuple[str, str]]:
    """What the table says of a step that did not simply pass; of one with a section ``below`` only how it ended."""
    first, *rest = [clean(line, 160) for line in clean_text(step.message or "").splitlines() if line.strip()] or [""]
    if step.status == "warned":
        checks = [d.content for d in documents.items if d.step == step.id and d.kind == "environment"]
        if warnings := number(part(checks[0], "summary", "warnings")) if checks else None:
            yield plural(int(warnings), "warning"), "yellow"
            return
    by_gate = below and any(gate.verdict in ("fail", "unavailable") for gate in step.gates)
    if first and not by_gate and step.status != "skipped":
        yield first, "dim"
    if step.status == "warned" and rest:  # the log's end, of which the last line is the most likely to say why
        yield rest[-1], "dim"
    if not below and step.status != "passed" and step.hint:
        yield f"hint: {clean(step.hint, 300)}", "cyan"


def _gates(record: RunRecord, failed: Sequence[StepRecord]) -> Iterator[RenderableType]:
    pairs = [(step, gate) for step in record.steps for gate in step.gates]
    if not pairs:
        return
    yield _heading("Gates", f"{sum(g.verdict == 'pass' for g in record.judged)} of {len(record.judged)} passed")
    table = plain_table(True, False)
    for step, gate in pairs[:_GATES]:
        verdict = mark(gate.verdict)
        if gate.verdict == "unavailable":  # the sign of a step that could not run, in the colour of a gate that failed
            verdict.stylize("yellow" if gate.optional else "red")
        when = f"  only when {clean(gate.when, 120)}" if gate.when else ""
        value = when if gate.verdict == "not_applicable" else _value(gate)
        line = Text(clean(gate.expr, 300)).append(value + ("  optional" if gate.optional else ""), "dim")
        if gate.hint and gate.verdict in ("fail", "unavailable") and step not in failed:
            line.append(f"\nhint: {clean(gate.hint, 300)}", "cyan")
        table.add_row(verdict, line)
    for line in more(len(pairs), _GATES):
        table.add_row("", line)
    yield _indented(table)


def _value(gate: GateRecord) -> str:
    """``  is 168``; empty where the gate is its own value."""
    value = gate_value(gate.value)
    return f"  is {value}" if value else ""


def _files(record: RunRecord) -> Iterator[RenderableType]:
    acted_on = "programs on this computer act on files with these names"
    for title, detail, pairs in (
        ("Not collected from the host", "", [(entry.reason.replace("_", " "), entry.path) for entry in record.omitted]),
        ("Stored under another name", acted_on, [(entry.path, entry.stored) for entry in record.renamed]),
    ):
        if pairs:
            table = plain_table(False, False)
            for first, second in pairs[:_NAMES]:
                table.add_row(Text(clean(first, 200), "yellow"), clean(second, 200))
            for line in more(len(pairs), _NAMES):
                table.add_row("", line)
            yield _heading(title, detail)
            yield _indented(table)


# ------------------------------------------------------------------------------------------------ what stopped it
def _failure(step: StepRecord, folder: Path) -> Iterator[RenderableType]:
    """The step's message, its gates with their values, each hint once, and the end of its log."""
    message = [clean(line, LINE) for line in clean_text(step.message or "").splitlines() if line.strip()]
    gates = [gate for gate in step.gates if gate.verdict in ("fail", "unavailable")]
    lines: list[Text] = []
    if message and not (gates and message[0].startswith("gate")):
        lines.append(Text(message[0]))
    for hint, alike in groupby(gates, lambda gate: gate.hint):
        for gate in alike:
            value = _value(gate) or ("  has no value" if gate.verdict == "unavailable" else "")
            lines.append(Text(f"gate: {clean(gate.expr, 300)}", "red").append(value, "bold"))
        lines += [_hint(hint)] if hint else []
    if step.hint and not any(step.hint in (gate.hint or "") for gate in gates):
        lines.append(_hint(step.hint))
    yield from map(_indented, lines)
    log = log_end(folder, step.log)
    if log is not None:
        yield unbroken("  log:  ", f"{_short(folder)}/{clean(step.log, 200)}", "bold")
    end = message[1:][-LOG_LINES:] if log is None else log
    if end:
        quoted = Table.grid(padding=(0, 1, 0, 0))
        quoted.add_column(no_wrap=True)
        quoted.add_column(overflow="fold")
        for line in end:
            quoted.add_row(Text("|", "dim"), Text(line, "dim"))
        yield _indented(quoted, 4)


def _hint(hint: str) -> Text:
    return Text(f"hint: {clean(hint, 600)}", "cyan")
