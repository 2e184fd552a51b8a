"""The steps' documents as blocks: machine, resources, correctness, search. A host chose their content.

Times, which a run's documents share, are in :mod:`orchestrator.views.tables.benchmark`.

Every cell goes through :func:`~orchestrator.base.sanitize.clean`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean, listed, number, objects, part
from orchestrator.results.documents import Document
from orchestrator.results.timings import shape_of, shape_text
from orchestrator.views.blocks import Block, Cell, Grid, Line, Text, more
from orchestrator.views.figures import MARKS, duration, kind, small, whole
from orchestrator.views.kernel_names import apart
from orchestrator.views.report import tuning as search

#: Rows of a table.
MAX_ROWS = 40
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
    if single:
        yield _case_grid(single[:MAX_ROWS])
        yield from more(single, MAX_ROWS)
    for case in [c for c in cases if c.get("passed") is False][:MAX_ROWS]:
        verdict, message = _verdict(case), clean(case.get("message") or "", 300)
        text = f"{clean(case.get('name') or '?', 40)}: {message or verdict}"
        yield Text(text, style="bad" if verdict == "failed" else "soft")


def _correctness_line(content: dict[str, Any]) -> Text:
    passed, total, skipped, worst = (
        number(part(content, "summary", key)) for key in ("passed", "total", "skipped", "max_err")
    )
    wrong = passed is None or total is None or passed + (skipped or 0) < total
    status = "fail" if wrong else "pass" if passed == total else "unavailable"
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


def _case_grid(cases: list[dict[str, Any]]) -> Grid:
    """A test program's cases have no errors to show: a column without any figure is left out."""
    errors = {key: [small(number(case.get(key))) for case in cases] for key in ("max_err", "mean_err", "rel_rms")}
    columns = {
        "max err": errors["max_err"], "allowed": [_allowed(case) for case in cases], "mean err": errors["mean_err"],
        "rel rms": errors["rel_rms"],
    }  # fmt: skip
    shown = {name: column for name, column in columns.items() if any(column)}
    rows: list[Line] = [
        (
            clean(case.get("name") or "?", 40),
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
