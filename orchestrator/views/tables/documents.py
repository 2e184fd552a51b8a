"""The steps' documents as blocks: machine, resources, correctness, search; and all timings of a run in one table, with
the fastest reference beside each kernel. A host chose their content.

Every cell goes through :func:`~orchestrator.base.sanitize.clean`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean, listed, number, objects, part
from orchestrator.results.documents import Document
from orchestrator.results.look import Shown
from orchestrator.results.timings import Ratio, shape_of, shape_text
from orchestrator.views.blocks import Block, Cell, Grid, Line, Text, apart, more, shorten
from orchestrator.views.figures import MARKS, duration, kind, microseconds, small, speed, unit_name, whole
from orchestrator.views.report import model as search
from orchestrator.views.report.build import rows, tables
from orchestrator.views.report.model import Row, Table
from orchestrator.views.report.words import bounds, undecided

#: Rows of a table.
MAX_ROWS = 40
#: More cases than these are not listed if only their verdicts are known.
MAX_VERDICTS = 12
_NUMBERED = re.compile(r"(.+)/(\d{1,3})")


def section(document: Document) -> tuple[str, list[Block]] | None:
    """Heading and content for one document, None if its kind has no table or it has nothing to show."""
    title, show = _SECTIONS.get(document.kind, ("", None))
    content = list(show(document.content)) if show else []
    return (title, content) if content else None


def _joined(facts: Iterable[str], style: str = "") -> Text:
    return Text(" · ".join(fact for fact in facts if fact), style=style)


def _signed(status: str, words: str) -> tuple[str, str]:
    """``words`` with the sign of a status, and the style that goes with it."""
    return f"{MARKS.get(status, ('?', ''))[0]} {words}", kind(status)


def _grid(header: Sequence[str], rows: Sequence[Line], caption: str, left: int = 1) -> Grid:
    """Columns from ``left`` on are numbers."""
    return Grid(tuple(header), tuple(rows), caption, numbers=tuple(range(left, len(header))))


# ------------------------------------------------------------------------------------------------ search
def tuning(content: dict[str, Any]) -> Iterator[Block]:
    one = search.read(content)
    if one.result.trials or one.result.elites or one.result.fault:
        yield from search.blocks(one)


# ------------------------------------------------------------------------------------------------ environment, build
def _environment(content: dict[str, Any]) -> Iterator[Block]:
    yield _joined(_facts(content))
    summary = part(content, "summary")
    passed, warnings, errors = (number(part(summary, key)) for key in ("passed", "warnings", "errors"))
    if passed is not None and warnings is not None and errors is not None:
        words = f"{passed:.0f} passed, {plural(int(warnings), 'warning')}, {plural(int(errors), 'error')}"
        text, style = _signed(str(part(summary, "status")), words)
        yield Text(text, style=style)
    notable = [c for c in objects(content.get("checks")) if c.get("status") in ("fail", "warn")]
    rows = [
        (Cell(str(check["status"]), kind="status"), clean(check.get("id") or check.get("section") or "", 24),
         Cell(clean(check.get("message") or "", 300), clean(check.get("hint") or "", 300)))
        for check in sorted(notable, key=lambda c: c.get("status") != "fail")[:MAX_ROWS]
    ]  # fmt: skip
    if rows:
        yield Grid(("status", "check", "message"), tuple(rows), "Checks that did not pass")


def _facts(content: dict[str, Any]) -> Iterator[str]:
    gpu = part(content, "gpu")
    if part(gpu, "name"):
        capability = part(gpu, "compute_capability")
        yield clean(part(gpu, "name"), 40) + (f" ({clean(capability, 8)})" if capability else "")
        yield f"driver {clean(part(gpu, 'driver'), 20)}" if part(gpu, "driver") else ""
    else:
        yield "no GPU"
        yield clean(part(content, "cpu", "model") or "", 32)
    for name, key in (("CUDA", "cuda"), ("Nsight Compute", "ncu"), ("PyTorch", "torch")):
        version = part(content, key, "version")
        yield f"{name} {clean(version, 20)}" if version else f"no {name}"


_SIZES = ("registers", "smem_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes")


def _build(content: dict[str, Any]) -> Iterator[Block]:
    seconds = number(content.get("duration_s"))
    lacking = content.get("no_code_for")
    yield _joined((
        clean(content.get("variant") or "", 40), clean(content.get("tool") or "", 48),
        " ".join(clean(arch, 12) for arch in listed(content.get("archs"))),
        f"no machine code for {clean(lacking, 12)}: it runs there only if it has PTX" if lacking else "",
        "cached" if content.get("cached") is True else duration(seconds) if seconds is not None else "",
    ))  # fmt: skip
    kernels = objects(content.get("kernels"))
    names = apart([str(k.get("name") or k.get("mangled") or "?") for k in kernels[:MAX_ROWS]], 44)
    rows: list[Line] = []
    for name, kernel in zip(names, kernels, strict=False):
        registers, memory, stack, stores, loads = (number(kernel.get(key)) for key in _SIZES)
        spilled = None if stores is None or loads is None else stores + loads
        # A stack frame and spills both cost memory traffic: anything but zero is worth a colour.
        alarming = (Cell(whole(value), kind="bad" if value else "") for value in (stack, spilled))
        rows.append((name, clean(kernel.get("arch") or "", 10), whole(registers), whole(memory), *alarming))
    if rows:
        yield _grid(("kernel", "arch", "regs", "smem B", "stack B", "spills B"), rows, "Compiled kernels", left=2)
        yield from more(kernels, MAX_ROWS)


# ------------------------------------------------------------------------------------------------ correctness
def _correctness(content: dict[str, Any]) -> Iterator[Block]:
    yield _correctness_line(content)
    cases = objects(content.get("cases"))
    series, single = _by_series(cases)
    if series:
        yield _series_grid(series)
    if single and (len(single) <= MAX_VERDICTS or _has_errors(single)):
        yield _case_grid(sorted(single, key=_urgency)[:MAX_ROWS] if len(single) > MAX_ROWS else single)
        yield from more(single, MAX_ROWS)
    wrong = sorted((case for case in cases if case.get("passed") is False), key=_urgency)
    for case in wrong[:MAX_ROWS]:
        verdict, message = _verdict(case), clean(case.get("message") or "", 300)
        yield Text(f"{_case_name(case, 60)}: {message or verdict}", style="bad" if verdict == "failed" else "soft")
    yield from more(wrong, MAX_ROWS)


def _correctness_line(content: dict[str, Any]) -> Text:
    passed, total, skipped, worst = (
        number(part(content, "summary", key)) for key in ("passed", "total", "skipped", "max_err")
    )
    wrong = passed is None or total is None or passed + (skipped or 0) < total
    status = "fail" if wrong else "pass" if passed and passed == total else "unavailable"
    words = f"{whole(passed)}/{whole(total)} cases passed"
    words += f", {whole(skipped)} skipped" if skipped else ""
    words += f", largest error {small(worst)}" if worst is not None else ""
    words += f" · {clean(content['variant'], 40)}" if content.get("variant") else ""
    text, style = _signed(status, words)
    return Text(text, style=style)


def _by_series(cases: list[dict[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Cases ``name/1, name/2, ...`` by their name, one row each; and the cases that stand alone."""
    series: dict[str, list[dict[str, Any]]] = {}
    single = []
    for case in cases:
        match = _NUMBERED.fullmatch(str(case.get("name"))[:200])
        if match and (shape_of(case.get("shape")) or case.get("seed") is not None):
            series.setdefault(match[1], []).append(case)
        else:
            single.append(case)
    if max(map(len, series.values()), default=0) > 5 or len(series) > MAX_ROWS:  # not a small grid: list them
        return {}, cases
    return series, single


def _series_grid(series: dict[str, list[dict[str, Any]]]) -> Grid:
    """What is allowed is a column where it is the same for all cases of a shape, else below each case's error."""
    columns = max(map(len, series.values()))
    alike = all(len({_allowed(case) for case in cases}) == 1 for cases in series.values())
    rows: list[Line] = []
    for name, cases in series.items():
        signed = (
            _signed("pass" if c.get("passed") is True else "fail", small(number(c.get("max_err")))) for c in cases
        )
        results = [Cell(text, kind=style) for text, style in signed]
        blank = [""] * (columns - len(cases))
        allowed = [Cell(_allowed(case), kind="soft") for case in cases]
        shape = Cell(shape_text(shape_of(cases[0].get("shape"))), kind="soft")
        rows.append((clean(name, 24), shape, *results, *blank, *(allowed[:1] if alike else [])))
        if not alike:
            rows.append(("", Cell("allowed", kind="soft"), *allowed, *blank))
    header = ("shape", "B,H,S,D", *(f"seed {i + 1}" for i in range(columns)), *(["allowed"] * alike))
    return _grid(header, rows, "Largest errors", left=2)


_ERRORS = ("max_err", "mean_err", "rel_rms")


def _has_errors(cases: list[dict[str, Any]]) -> bool:
    return any(number(case.get(key)) is not None for case in cases for key in _ERRORS)


def _urgency(case: dict[str, Any]) -> int:
    """Failed cases sort before skipped ones, and these before those that passed."""
    return ("failed", "skipped", "passed").index(_verdict(case))


def _case_name(case: dict[str, Any], width: int) -> str:
    return shorten(clean(case.get("name") or "?", 1000), width)


def _case_grid(cases: list[dict[str, Any]]) -> Grid:
    """A test program's cases have no errors to show: a column without any figure is left out."""
    errors = {key: [small(number(case.get(key))) for case in cases] for key in _ERRORS}
    columns = {
        "max err": errors["max_err"], "allowed": [_allowed(case) for case in cases], "mean err": errors["mean_err"],
        "rel rms": errors["rel_rms"],
    }  # fmt: skip
    shown = {name: column for name, column in columns.items() if any(column)}
    rows: list[Line] = [
        (
            _case_name(case, 40),
            Cell(_verdict(case), kind="status"),
            *(column[i] for column in shown.values()),
        )
        for i, case in enumerate(cases)
    ]
    return _grid(("case", "verdict", *shown), rows, "Cases", left=2)


def _verdict(case: dict[str, Any]) -> str:
    return "passed" if case.get("passed") is True else "skipped" if case.get("status") == "skipped" else "failed"


def _allowed(case: dict[str, Any]) -> str:
    """The tolerance on the case's largest error; empty if it has none."""
    given = case.get("tolerance")
    return small(number(part(given, "max_err") if isinstance(given, dict) else given))


# ------------------------------------------------------------------------------------------------ metrics
def _metrics(content: dict[str, Any]) -> Iterator[Block]:
    metrics = part(content, "metrics")
    if not isinstance(metrics, dict) or not metrics:
        return
    rows: list[Line] = []
    for name, value in list(metrics.items())[:MAX_ROWS]:
        figure = number(value)
        rows.append((clean(name, 100), clean(value, 20) if figure is None else f"{figure:g}"))
    yield _grid(("metric", "value"), rows, "Metrics")
    yield from more(list(metrics), MAX_ROWS)


_SECTIONS = {
    "environment": ("Preflight", _environment), "build": ("Build", _build),
    "correctness": ("Correctness", _correctness), "metrics": ("Metrics", _metrics), "tuning": ("Tuning", tuning),
}  # fmt: skip


MAX_TIMINGS = 60
#: As many kernels are named above the table.
MAX_NAMES = 3
#: Further from 1 than this, a kernel's ratio to itself says that the machine was too busy to measure on.
NULL_TOLERANCE = 0.1
_STATS, _PERCENTILES = ("n", "p50", "p90", "p99", "min", "mean"), ("p50", "p90", "p99")
_MODES = {
    "hot": "hot: warm caches", "cold": "cold: out of L2", "eager": "eager: one call from Python",
    "wall": "wall: wall-clock time of one call",
}  # fmt: skip
#: Other kernels of ours that each is compared with, those that come first.
RIVALS = 2
#: What a narrow terminal leaves out, the first first; ``-1`` are the intervals.
_OPTIONAL = ("n", "min", "SDPA\np90", "SDPA\np99", -1, "mode", "p90", "SDPA\nbackend", "p99", "vs SDPA\nflash")


def benchmark(shown: Shown) -> Iterator[Block]:
    """Caption, table and notes; nothing if the run has no timing."""
    made = list(tables([*rows(shown, several=False)]))
    modes = list(dict.fromkeys(table.mode for table in made))
    made.sort(key=lambda table: modes.index(table.mode))
    timed = [(table, row) for table in made for row in table.ours or table.rows[:1]]
    if timed:
        units = sorted({unit_name(table.unit) for table in made})
        kernels = list(dict.fromkeys(row.label for _, row in timed if row.case and not row.sized))
        names = " and ".join(kernels) if len(kernels) <= MAX_NAMES else plural(len(kernels), "kernel")
        facts = (f"{names} on {made[0].machine}" if names else "", f"times in {' / '.join(units)}")
        yield Text(" · ".join(filter(None, facts)), style="soft")
        if known := [_MODES[mode] for mode in modes if mode in _MODES]:
            yield Text(" · ".join(known), style="soft")
        rivals = [
            name for name in dict.fromkeys(row.label for _, row in timed) if any(name in r.against for _, r in timed)
        ]
        lines = [_cells(table, row, rivals[:RIVALS], own_unit=len(units) > 1) for table, row in timed[:MAX_TIMINGS]]
        yield _timings_grid(lines, is_sdpa={table.rival for table in made} == {"SDPA"})
        yield from more(timed, MAX_TIMINGS)
        yield from _notes([document.content for document in shown.documents.of("benchmark")], made)


def _timings_grid(lines: Sequence[dict[str, Cell]], *, is_sdpa: bool) -> Grid:
    """Without the columns that have no value, and without the mode or the kernel that all have. A reference that is not
    PyTorch's attention is called a reference."""
    several = {key for key in ("mode", "kernel") if len({line[key].text for line in lines}) > 1}
    by_mean = any(line["mean"].text and not line["p50"].text for line in lines)  # nvbench without its samples
    columns = [
        key for key in lines[0]
        if any(line[key].text for line in lines) and (key not in ("mode", "kernel") or key in several)
        and (key != "mean" or by_mean)
    ]  # fmt: skip
    left = len([key for key in columns if key in ("benchmark", "mode", "kernel")])
    optional = tuple(key if isinstance(key, int) else columns.index(key) for key in _OPTIONAL if key in (-1, *columns))
    first = "case" if any(line["kernel"].text for line in lines) else columns[0]
    titles = (
        columns[1:]
        if is_sdpa
        else [key.replace("SDPA\nbackend", "its\nname").replace("SDPA", "reference") for key in columns[1:]]
    )
    return Grid(
        (first, *titles), tuple(tuple(line[key] for key in columns) for line in lines), "Times",
        numbers=tuple(range(left, len(columns))), optional=optional,
        group=columns.index("mode") if "mode" in columns else None,
    )  # fmt: skip


def _cells(table: Table, row: Row, rivals: Sequence[str], *, own_unit: bool) -> dict[str, Cell]:
    timed = [one for one in table.rows if one.is_reference and one.typical]
    best = min(timed, key=lambda one: one.typical or 0.0, default=None)
    name, own = row.case if row.case and not row.sized else row.name, {} if row.is_reference else row.stats
    name += f", {unit_name(table.unit)}" * own_unit
    flash = any("flash" in one.label for one in timed) and len(timed) > 1
    return {
        "benchmark": Cell(f"{name}: {row.error}" if row.error else name, kind="bad" if row.error else ""),
        "mode": Cell(row.mode),
        "kernel": Cell("" if row.is_reference or row.sized or not row.case else row.label),
        **{key: Cell(_stat(own, key)) for key in _STATS},
        **{f"SDPA\n{key}": Cell(_stat(best.stats if best else {}, key), kind="soft") for key in _PERCENTILES},
        "SDPA\nbackend": Cell(best.label.removeprefix("SDPA").strip() or "default" if best else "", kind="soft"),
        "vs best\nSDPA": _ratio(row.against.get("best")),
        "vs SDPA\nflash": _ratio(row.against.get("flash") if flash else None),
        **{f"vs\n{name}": _ratio(row.against.get(name)) for name in rivals},
    }


def _stat(stats: dict[str, float], key: str) -> str:
    return (whole(stats.get(key)) if stats.get(key) else "") if key == "n" else microseconds(stats.get(key))


def _ratio(ratio: Ratio | None) -> Cell:
    if ratio is None or ratio.value <= 0:
        return Cell("")
    if undecided(ratio):
        return Cell(f"{speed(ratio.value)} ?", bounds(ratio), "doubt")
    return Cell(speed(ratio.value), bounds(ratio), "good" if ratio.value < 1 else "bad")


def _notes(contents: Sequence[dict[str, Any]], made: Sequence[Table]) -> Iterator[Block]:
    comparisons = [one for content in contents for one in objects(content.get("comparisons"))]
    nulls = [c for c in comparisons if c.get("null") is True or c.get("benchmark") == c.get("against")]
    values = [v for v in (number(c.get("ratio")) for c in nulls) if v is not None]
    if values:
        span = f"; {min(values):.3f} to {max(values):.3f} over {len(values)} rows" if len(values) > 1 else ""
        off = max(abs(v - 1) for v in values) > NULL_TOLERANCE
        line = f"null {values[0]:.3f}  the kernel against itself{span}"
        yield Text(line + (": the machine was too busy to measure" if off else ""), style="doubt" if off else "soft")
    throttled = sum(number(c.get("throttled_blocks")) or 0 for c in comparisons)
    if throttled:
        yield Text(f"the GPU's clocks were throttled in {plural(int(throttled), 'block')} of samples", style="doubt")
    rows = [row for table in made for row in table.ours]
    for row in rows:
        if row.grade:
            yield Text(f"grade {row.grade.letter} of {row.name}  next: {row.grade.next_step}")
    if any(undecided(ratio) for row in rows for ratio in row.against.values()):
        yield Text("?: the interval contains 1, so no difference was measured", style="soft")
