"""Runs in the terminal: the list, and one finished run: status, steps, results, gates, what failed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.text import Text as Line

from fcctl_remote.base.text import ending
from orchestrator.base import safe_paths
from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import FcctlError, plural
from orchestrator.base.sanitize import clean, clean_text, number, part
from orchestrator.results.documents import Documents, load
from orchestrator.results.look import COMPARED, MEASURED, MISSION, Headline, Shown
from orchestrator.results.records import GateRecord, RunRecord, RunRow, StepRecord
from orchestrator.results.store.names import Tag
from orchestrator.results.store.store import FileStore
from orchestrator.views.blocks import Block, Cell, Facts, Grid, Heading, Text, more
from orchestrator.views.blocks import Line as Row
from orchestrator.views.figures import age, commit_text, duration, gate_value, usd
from orchestrator.views.report.build import profile_blocks, profiled
from orchestrator.views.report.model import proven
from orchestrator.views.table import line, mark, rendered, show, show_blocks, unbroken
from orchestrator.views.tables.documents import section
from orchestrator.views.tables.money import EMULATED, cost_section
from orchestrator.views.tables.runs import answer, earlier, result

LOG_LINES, LINE = 15, 400
#: Earlier runs among which one of the same job on the same GPU is looked for, and benchmarks shown.
EARLIER, ROWS = 50, 6
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


def reason(record: RunRecord) -> tuple[str, str, str]:
    """Why the run did not pass: the first step that ended badly; its gate with the measured value, the first and the
    last line of its message, or the run's message; and the hint."""
    step = next(iter(failed_steps(record)), None)
    gate = next((g for g in step.gates if g.verdict in ("fail", "unavailable")), None) if step else None
    if step is None or gate is None:
        lines = ((step and step.message) or record.message or "").strip().splitlines()
        message, hint = ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]])), (step and step.hint) or record.hint
    else:
        value = gate_value(gate.value)
        measured = " has no value" if gate.verdict == "unavailable" else value and f", measured {value}"
        message, hint = f"gate: {gate.expr}{measured}", gate.hint or step.hint
    return clean(step.id, 40) if step else "", clean(message or "", 300), clean(hint or "", 300)


def log_end(folder: Path, log: str | None) -> list[str] | None:
    """The :func:`ending` of a step's log without blank lines, cleaned; None if it was not collected as a plain file."""
    end = safe_paths.tail(folder, log, _TAIL_BYTES) if log else None
    if end is None:
        return None
    lines = [clean(line, LINE) for line in clean_text(end.data.decode(errors="replace")).splitlines()]
    return ending([line for line in lines if line], LOG_LINES)


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
    rows: list[RunRow], console: Console, now: float, tags: Mapping[str, Sequence[str]] | None = None,
    heads: Mapping[str, Headline] | None = None,
) -> None:  # fmt: skip
    """The table for people, newest first, with each run's main figure. Wide terminals get more columns; the run id says
    most of it anyway."""
    tagged = {row.run_id: tags[row.run_id] for row in rows if tags and row.run_id in tags}
    header = ("RUN", "STATUS", "RESULT", "TIME", "AGE", "COMMIT", "USD", *(("TAGS",) if tagged else ()), "GPU")
    lines = tuple(
        (clean(row.run_id, 63), Cell(row.status, kind="status"), result((heads or {}).get(row.run_id)),
         duration(row.duration_s), age(row.created, now),
         commit_text(row.git_commit, dirty=row.dirty), f"{row.usd:.2f}" if row.usd else "",
         *((" ".join(tagged.get(row.run_id, ())),) if tagged else ()), Cell(clean(row.gpu or "", 40), kind="soft"))
        for row in rows
    )  # fmt: skip
    show_blocks(console, [Grid(header, lines, numbers=(2, 3, 4, 6), optional=(len(header) - 1, 6, 5, -1, 3))])


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


def print_run_summary(record: RunRecord, folder: Path, console: Console, documents: Documents | None = None) -> None:
    """Print the report that ends ``fcctl run`` and that ``fcctl results show`` prints; legible from 80 columns.

    ``folder`` is where the run's files are, from which the ``documents`` are read unless they are given; those that
    cannot be read are named, never an error.
    """
    width, failed, indent = min(console.width, MAX_WIDTH), failed_steps(record), 0
    show(console, *_header(record, failed), width=width)
    for block in _blocks(record, folder, documents or load(record, folder), failed):
        indent = 0 if isinstance(block, Heading) else 2
        for piece in rendered(block):
            one = line(piece)
            whole = isinstance(one, Line) and one.no_wrap
            shown = unbroken(" " * indent, f"{one}") if whole else Padding(one, (0, 0, 0, indent), expand=False)
            show(console, shown, width=width)
    show(console, "", unbroken("Results  ", _short(folder), "bold"))
    if sys.platform == "darwin":
        show(console, *(unbroken("", command, "dim") for command in open_commands(folder)))


def _blocks(
    record: RunRecord, folder: Path, documents: Documents, failed: Sequence[StepRecord]
) -> Iterator[Block]:  # fmt: skip
    if record.steps:
        rows = (_step(step, documents, below=step in failed) for step in record.steps)
        yield from (Heading("Steps"), Grid(("",) * 4, tuple(rows), numbers=(2,), fold=(3,)))
    for document in documents.items:
        if document is next(iter(documents.of("benchmark")), None):
            from orchestrator.views.tables.documents import benchmark

            yield from (Heading("Benchmark"), *benchmark(Shown(record, folder, documents)))
        elif found := section(document):
            several = len(documents.of(document.kind)) > 1
            yield from (Heading(found[0], clean(document.step, 40) if several else ""), *found[1])
    if profiles := [*profile_blocks(profiled(Shown(record, folder, documents)))]:
        yield from (Heading("Profile"), *profiles)
    searches = documents.of("tuning") if record.status == "passed" else []
    if any(proven(search.content) for search in searches):
        yield Text(f"add the result to your table: fcctl tune --adopt {clean(record.run_id, 63)}", style="hint")
    yield from _gates(record, failed)
    if record.cost.usd:
        yield from (Heading("Cost", EMULATED if record.cost.emulated else ""), *cost_section(record.cost))
    yield from _files(record)
    for step in failed:
        yield Heading(_TITLES.get(step.status, "Unavailable"), clean(step.id, 40))
        yield from _failure(step, record, folder)
    if documents.problems:
        yield Heading("Documents that are not shown")
        yield from (Text(f"not shown: {clean(problem, 300)}", style="notice") for problem in documents.problems)
    yield from _against_before(record, folder) if documents.of("benchmark") else ()


def open_commands(folder: Path) -> list[str]:
    """What opens a run's report and its first profiles on macOS."""
    files = [*sorted(folder.glob("**/report.html"))[:1], *sorted(folder.glob("**/*.ncu-rep"))[:3]]
    shown = [_short(path) for path in files if clean(path, 1000) == str(path)]  # names may be a host's
    nsight = 'open -a "NVIDIA Nsight Compute" '
    return [("open " if path.endswith(".html") else nsight) + shlex.quote(path) for path in shown]


def _header(record: RunRecord, failed: Sequence[StepRecord]) -> Iterator[Line]:
    head = Line.assemble("\n", (clean(record.job, 60), "bold"), " on ", (clean(record.target, 40), "bold"), "  ")
    took = f" in {duration(record.seconds)}" if record.seconds is not None else ""
    yield head.append_text(mark(record.status)).append(took)
    about = [clean(record.run_id, 63)]
    if record.source.git_commit:
        about.append(f"commit {commit_text(record.source.git_commit, dirty=record.source.dirty)}")
    if record.cost.usd:
        cost = usd(record.cost.usd)
        about.append(f"would have cost {cost} (emulated)" if record.cost.emulated else cost)
    yield Line("  ".join(about), "dim")
    if record.message:
        yield Line(clean(record.message, 600))
    if record.hint and record.hint not in {step.hint for step in failed}:
        yield Line(f"hint: {clean(record.hint, 600)}", "cyan")


def _short(folder: Path) -> str:
    """Relative to the current folder if it lies below, so that it can be copied from an 80 column line."""
    return clean(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder, 500)


# ------------------------------------------------------------------------------------------------ steps and gates
def _step(step: StepRecord, documents: Documents, *, below: bool) -> Row:
    ran = step.attempts > 0 or step.duration_s > 0
    taken = duration(max(0.0, step.duration_s)) if ran and step.status != "unavailable" else ""
    judged = [g for g in step.gates if g.verdict != "not_applicable"]
    passed = sum(g.verdict == "pass" for g in judged)
    facts = [f"gates {passed}/{len(judged)}" if judged else "", f"attempt {step.attempts}" if step.attempts > 1 else ""]
    first, *more = [", ".join(filter(None, facts)), *_explained(step, documents, below=below)]
    note = Cell(first or next(iter(more), ""), "  ".join(more if first else more[1:]),
                "" if not first else "bad" if passed < len(judged) else "")  # fmt: skip
    return clean(step.id, 60), Cell(step.status, kind="status"), taken, note


def _explained(step: StepRecord, documents: Documents, *, below: bool) -> Iterator[str]:
    """What the table says of a step that did not simply pass; of one with a section ``below`` only how it ended."""
    first, *rest = [clean(line, 160) for line in clean_text(step.message or "").splitlines() if line.strip()] or [""]
    if step.status == "warned":
        checks = [d.content for d in documents.items if d.step == step.id and d.kind == "environment"]
        if warnings := number(part(checks[0], "summary", "warnings")) if checks else None:
            yield plural(int(warnings), "warning")
            return
    by_gate = below and any(gate.verdict in ("fail", "unavailable") for gate in step.gates)
    if first and not by_gate and step.status != "skipped":
        yield first
    if step.status == "warned" and rest:  # the log's end, of which the last line is the most likely to say why
        yield rest[-1]
    if not below and step.status != "passed" and step.hint:
        yield f"hint: {clean(step.hint, 300)}"


def _gates(record: RunRecord, failed: Sequence[StepRecord]) -> Iterator[Block]:
    pairs = [(step, gate) for step in record.steps for gate in step.gates]
    if not pairs:
        return
    yield Heading("Gates", f"{sum(g.verdict == 'pass' for g in record.judged)} of {len(record.judged)} passed")
    rows = []
    for step, gate in pairs[:_GATES]:
        when = f"only when {clean(gate.when, 120)}" if gate.when else ""
        hinted = gate.hint and gate.verdict in ("fail", "unavailable") and step not in failed
        notes = (when if gate.verdict == "not_applicable" else _value(gate), "optional" if gate.optional else "",
                 f"hint: {clean(gate.hint, 300)}" if hinted else "")  # fmt: skip
        rows.append((Cell(gate.verdict, kind="status"), Cell(clean(gate.expr, 300), "  ".join(filter(None, notes)))))
    yield Grid(("", ""), tuple(rows), fold=(1,))
    yield from more(pairs, _GATES)


def _value(gate: GateRecord) -> str:
    """``is 168``; empty where the gate is its own value."""
    value = gate_value(gate.value)
    return f"is {value}" if value else ""


def _files(record: RunRecord) -> Iterator[Block]:
    acted_on = "programs on this computer act on files with these names"
    for title, detail, pairs in (
        ("Not collected from the host", "", [(entry.reason.replace("_", " "), entry.path) for entry in record.omitted]),
        ("Stored under another name", acted_on, [(entry.path, entry.stored) for entry in record.renamed]),
    ):
        if pairs:
            yield Heading(title, detail)
            rows = ((Cell(clean(one, 200), kind="doubt"), clean(other, 200)) for one, other in pairs[:_NAMES])
            yield Grid(("", ""), tuple(rows), fold=(0, 1))
            yield from more(pairs, _NAMES)


# ------------------------------------------------------------------------------------------------ what stopped it
def _failure(step: StepRecord, record: RunRecord, folder: Path) -> Iterator[Block]:
    """The step's message, its gates with their values, each hint once, and the end of its log."""
    message = [clean(line, LINE) for line in clean_text(step.message or "").splitlines() if line.strip()]
    gates = [gate for gate in step.gates if gate.verdict in ("fail", "unavailable")]
    if message and not (gates and message[0].startswith("gate")):
        yield Text(message[0])
    for hint, alike in groupby(gates, lambda gate: gate.hint):
        for gate in alike:
            value = _value(gate) or ("has no value" if gate.verdict == "unavailable" else "")
            yield Text(f"gate: {clean(gate.expr, 300)}  {value}".rstrip(), style="bad")
        yield from _hint(hint)
    if not any(step.hint and step.hint in (gate.hint or "") for gate in gates):
        yield from _hint(step.hint)
    log = log_end(folder, step.log)
    if log is not None:
        yield Text(f"log:  {_short(folder)}/{clean(step.log, 200)}", style="path")
        yield Text(f"all:  fcctl logs {clean(record.run_id, 63)[-6:]} --step {clean(step.id, 40)}", style="path")
    end = message[1:][-LOG_LINES:] if log is None else log
    if end:
        yield Facts(tuple(("  |", Cell(line, kind="soft")) for line in end))


def _hint(hint: str | None) -> Iterator[Text]:
    if hint:
        yield Text(f"hint: {clean(hint, 600)}", style="hint")


# ------------------------------------------------------------------------------------------------ the run before
def _against_before(record: RunRecord, folder: Path) -> Iterator[Block]:
    """Whether the run is better: the comparison with the last run of the job on the same GPU that ended well; then its
    figure against the runs before and PyTorch in a sentence. Nothing of a run that was just deleted."""
    if record.status not in MEASURED or folder.parent.name != "runs":
        return
    store = FileStore(folder.parents[1], SystemClock(), note=lambda _: None)
    try:
        _, before, heads = earlier(store, record.run_id, record.job, EARLIER)
        last = next((row.run_id for row in before if row.status in COMPARED), "")
        verdicts = [*_verdicts(store, last, record.run_id)] if last else []
    except FcctlError:
        return
    yield from (Heading("Faster or slower?", f"against {last}" if last else ""), *verdicts)
    sentences = (block for block in answer(record.run_id, before, heads) if isinstance(block, Text))
    yield from (replace(block, style="bold") for block in sentences)


def _verdicts(store: FileStore, before: str, run_id: str) -> Iterator[Block]:
    """The main benchmark first, then the largest change."""
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.views.tables.compare import headline, verdicts

    (report,) = compare_all(store, [before, run_id])
    known = [row for row in report.comparison.benchmarks if row.effect]
    if known:
        order = sorted(known, key=lambda row: (row.name != MISSION, -abs(row.effect.ratio - 1) if row.effect else 0))
        yield verdicts(order[:ROWS])
        yield Text(headline(report), style="bold")
        yield Text(f"why: fcctl results compare {before[-6:]} {run_id[-6:]}", style="hint")
