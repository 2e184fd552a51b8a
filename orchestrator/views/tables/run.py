"""What a person sees of a finished run: how it ended, its steps, what they found, the gates, where the files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean, clean_text
from orchestrator.results.documents import Document, Documents, load, part
from orchestrator.results.records import GateRecord, RunRecord, StepRecord
from orchestrator.results.timings import number
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import print_trimmed
from orchestrator.views.tables.cost_section import EMULATED, cost_section, usd
from orchestrator.views.tables.document_tables import section
from orchestrator.views.tables.failure_section import TITLES, failure, gate_value, path_line, stopped
from orchestrator.views.tables.figures import mark, plural
from orchestrator.views.tables.run_list import COLOURS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

#: Wider lines are harder to read, and a console that is no terminal says it is hundreds of columns wide.
MAX_WIDTH = 132
#: Files that were left out or renamed.
_NAMES = 20
#: Of all steps.
_GATES = 500
_INDENT = 2


def print_run_summary(record: RunRecord, folder: Path, console: Console, documents: Documents | None = None) -> None:
    """Print the report that ends ``fcctl run`` and that ``fcctl results show`` prints; legible from 80 columns.

    ``folder`` is where the run's files are, from which the ``documents`` are read unless they are given; those that
    cannot be read are named, never an error.
    """
    for piece in _pieces(record, folder, documents or load(record, folder)):
        print_trimmed(console, piece, min(console.width, MAX_WIDTH))


def _pieces(record: RunRecord, folder: Path, documents: Documents) -> Iterator[RenderableType]:
    from rich.padding import Padding

    def indented(content: RenderableType) -> Padding:
        return Padding(content, (0, 0, 0, _INDENT), expand=False)

    ended = stopped(record)
    yield from _header(record, told=ended)
    if record.steps:
        yield _heading("Steps")
        yield indented(_steps(record, documents, told=ended))
    for document in documents.items:
        found = section(document)
        if found:
            title, content = found
            several = len(documents.of(document.kind)) > 1
            yield _heading(title, clean(document.step, 40) if several else "")
            yield from map(indented, content)
    if record.status == "passed" and (searches := documents.of("tuning")):
        yield from map(indented, _adoption(record, searches))
    if any(step.gates for step in record.steps):
        judged = [g for step in record.steps for g in step.gates if g.verdict != "not_applicable"]
        yield _heading("Gates", f"{sum(g.verdict == 'pass' for g in judged)} of {len(judged)} passed")
        yield indented(_gates(record, told=ended))
    if record.cost.usd:
        yield _heading("Cost", EMULATED if record.cost.emulated else "")
        yield from map(indented, cost_section(record.cost))
    for title, detail, pairs in _listed(record):
        yield _heading(title, detail)
        yield indented(_names(pairs))
    for step in ended:
        yield _heading(TITLES.get(step.status, TITLES["unavailable"]), clean(step.id, 40))
        yield from failure(step, folder, _short(folder))
    yield from _footer(folder, documents)


def _heading(title: str, detail: str = "") -> Text:
    from rich.text import Text

    heading = Text(f"\n{title}", "bold")
    return heading.append(f"  {detail}", "dim not bold") if detail else heading


# ------------------------------------------------------------------------------------------------ head and foot
def _header(record: RunRecord, told: list[StepRecord]) -> Iterator[Text]:
    from rich.text import Text

    line = Text("\n")
    line.append(clean(record.job, 60), "bold").append(" on ").append(clean(record.target, 40), "bold").append("  ")
    line.append_text(mark(record.status))
    line.stylize(f"bold {COLOURS.get(record.status, 'yellow')}", len(line) - len(mark(record.status)))
    seconds = _wall_clock_s(record)
    if seconds is not None:
        line.append(f" in {duration(seconds)}")
    yield line
    yield Text("  ".join(_identity(record)), "dim")
    if record.message:
        yield Text(clean(record.message, 600))
    if record.hint and record.hint not in {step.hint for step in told}:
        yield Text(f"hint: {clean(record.hint, 600)}", "cyan")


def _identity(record: RunRecord) -> Iterator[str]:
    yield clean(record.run_id, 63)
    commit = record.source.git_commit
    if commit:
        yield f"commit {clean(commit[:9])}" + (" + changes" if record.source.dirty else "")
    if record.cost.usd:
        yield f"would have cost {usd(record.cost.usd)} (emulated)" if record.cost.emulated else usd(record.cost.usd)


def _wall_clock_s(record: RunRecord) -> float | None:
    from datetime import datetime

    try:
        began = datetime.fromisoformat(record.started or record.created)
        return max(0.0, (datetime.fromisoformat(record.finished) - began).total_seconds())
    except (ValueError, TypeError):
        return None


def _footer(folder: Path, documents: Documents) -> Iterator[RenderableType]:
    from rich.text import Text

    for problem in documents.problems:
        yield Text(f"\nnot shown: {clean(problem, 300)}", "yellow")
    yield Text()
    yield path_line("Results  ", _short(folder))


def _short(folder: Path) -> str:
    """Relative to the current folder if it lies below, so that it can be copied from an 80 column line."""
    try:
        return clean(folder.relative_to(Path.cwd()), 500)
    except ValueError:
        return clean(folder, 500)


def _adoption(record: RunRecord, searches: list[Document]) -> Iterator[Text]:
    from rich.text import Text

    from orchestrator.views.tables.tuning import proven

    if any(proven(search.content) for search in searches):
        yield Text(f"into your table: fcctl tune --adopt {clean(record.run_id, 63)}", "cyan")


# ------------------------------------------------------------------------------------------------ steps and gates
def _steps(record: RunRecord, documents: Documents, told: list[StepRecord]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold", max_width=28)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(overflow="fold")
    for step in record.steps:
        ran = step.attempts > 0 or step.duration_s > 0
        taken = duration(max(0.0, step.duration_s)) if ran and step.status != "unavailable" else ""
        table.add_row(
            Text(clean(step.id, 60)), mark(step.status), Text(taken), _step_note(step, documents, told=step in told)
        )
    return table


def _step_note(step: StepRecord, documents: Documents, *, told: bool) -> Text:
    from rich.text import Text

    said = Text()
    judged = [g for g in step.gates if g.verdict != "not_applicable"]
    if judged:
        passed = sum(g.verdict == "pass" for g in judged)
        said.append(f"gates {passed}/{len(judged)}", "" if passed == len(judged) else "red")
    if step.attempts > 1:
        said.append(f"{', ' if said else ''}attempt {step.attempts}")
    for line, style in _explained(step, documents, told=told):
        said.append(("\n" if said else "") + line, style)
    return said


def _explained(step: StepRecord, documents: Documents, *, told: bool) -> Iterator[tuple[str, str]]:
    """What the table says of a step that did not simply pass; of one that is ``told`` below only what it came to."""
    first, *rest = [clean(line, 160) for line in clean_text(step.message or "").splitlines() if line.strip()] or [""]
    if step.status == "warned":
        found = [d.content for d in documents.items if d.step == step.id and d.kind == "environment"]
        warnings = number(part(found[0], "summary", "warnings")) if found else None
        if warnings:
            yield plural(int(warnings), "warning"), "yellow"
            return
    by_gate = told and any(gate.verdict in ("fail", "unavailable") for gate in step.gates)
    if first and not by_gate and step.status not in ("passed", "skipped"):
        yield first, "dim"
    if step.status == "warned" and rest:  # the log's end, of which the last line is the most likely to say why
        yield rest[-1], "dim"
    if not told and step.status != "passed" and step.hint:
        yield f"hint: {clean(step.hint, 300)}", "cyan"


def _gates(record: RunRecord, told: list[StepRecord]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    pairs = [(step, gate) for step in record.steps for gate in step.gates]
    for step, gate in pairs[:_GATES]:
        said = Text(clean(gate.expr, 300))
        said.append(_gate_value(gate) + ("  optional" if gate.optional else ""), "dim")
        if gate.hint and gate.verdict in ("fail", "unavailable") and step not in told:
            said.append(f"\nhint: {clean(gate.hint, 300)}", "cyan")
        table.add_row(_verdict(gate), said)
    if len(pairs) > _GATES:
        table.add_row("", Text(f"... and {len(pairs) - _GATES} more", "dim"))
    return table


def _verdict(gate: GateRecord) -> Text:
    if gate.verdict == "unavailable":  # the sign of a step that could not run, in the colour of a gate that failed
        found = mark("unavailable")
        found.stylize("yellow" if gate.optional else "red")
        return found
    return mark(gate.verdict)


def _gate_value(gate: GateRecord) -> str:
    if gate.verdict == "not_applicable":
        return f"  only when {clean(gate.when, 120)}" if gate.when else ""
    return gate_value(gate)


def _listed(record: RunRecord) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    if record.omitted:
        yield "Left on the host", "", [(entry.reason.replace("_", " "), entry.path) for entry in record.omitted]
    if record.renamed:
        why = "programs of this computer act on files that are called so"
        yield "Stored under another name", why, [(entry.path, entry.stored) for entry in record.renamed]


def _names(pairs: list[tuple[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for first, second in pairs[:_NAMES]:
        table.add_row(Text(clean(first, 200), "yellow"), Text(clean(second, 200)))
    if len(pairs) > _NAMES:
        table.add_row("", Text(f"... and {len(pairs) - _NAMES} more", "dim"))
    return table
