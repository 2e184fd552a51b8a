"""Tables of what the steps' documents say: the machine, resources, correctness, profile.

Every cell goes through :func:`~orchestrator.base.sanitize.clean` and into a ``Text``: a host chose its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.results.documents import Document, objects, part
from orchestrator.results.timings import number, shape_of
from orchestrator.views.live.run import duration
from orchestrator.views.tables.benchmark import benchmark
from orchestrator.views.tables.cells import MAX_ROWS, more, table, text, whole
from orchestrator.views.tables.figures import mark, plural, small

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_NUMBERED = re.compile(r"(.+)/(\d{1,3})")


def section(document: Document) -> tuple[str, list[RenderableType]] | None:
    """Heading and content for one document, None if its kind has no table or it has nothing to show."""
    show = _SECTIONS.get(document.kind)
    content = list(show(document.content)) if show else []
    if not content:
        return None
    return _TITLES[document.kind], content


# ------------------------------------------------------------------------------------------------ environment
def _environment(content: dict[str, Any]) -> Iterator[RenderableType]:
    facts = [fact for fact in _facts(content) if fact]
    if facts:
        yield text(" · ".join(facts))
    summary = part(content, "summary")
    counts = [number(part(summary, key)) for key in ("passed", "warnings", "errors")]
    if None not in counts:
        passed, warnings, errors = (int(c or 0) for c in counts)
        line = mark(str(part(summary, "status")), f"{passed} passed, {plural(warnings, 'warning')}")
        yield line.append(f", {plural(errors, 'error')}")
    notable = [c for c in objects(content.get("checks")) if c.get("status") in ("fail", "warn")]
    if notable:
        rows = _grid()
        for check in sorted(notable, key=lambda c: c.get("status") != "fail")[:MAX_ROWS]:
            said = text(clean(check.get("message") or "", 300))
            if check.get("hint"):
                said.append(f"\n{clean(check['hint'], 300)}", "dim")
            rows.add_row(mark(str(check["status"]), clean(check.get("id") or check.get("section") or "", 24)), said)
        yield rows


def _facts(content: dict[str, Any]) -> Iterator[str]:
    gpu = part(content, "gpu")
    if part(gpu, "name"):
        capability = part(gpu, "compute_capability")
        yield clean(part(gpu, "name"), 40) + (f" ({clean(capability, 8)})" if capability else "")
        if part(gpu, "driver"):
            yield f"driver {clean(part(gpu, 'driver'), 20)}"
    else:
        yield "no GPU"
        yield clean(part(content, "cpu", "model") or "", 32)
    for name, value in (
        ("CUDA", part(content, "cuda", "version")),
        ("Nsight Compute", part(content, "ncu", "version")),
        ("PyTorch", part(content, "torch", "version")),
    ):
        yield f"{name} {clean(value, 20)}" if value else f"no {name}"


# ------------------------------------------------------------------------------------------------ build
def _build(content: dict[str, Any]) -> Iterator[RenderableType]:
    seconds = number(content.get("duration_s"))
    said = [
        clean(content.get("variant") or "", 40),
        clean(content.get("tool") or "", 48),
        " ".join(clean(a, 12) for a in _list(content.get("archs"))),
        "from the cache" if content.get("cached") is True else duration(seconds) if seconds is not None else "",
    ]
    yield text(" · ".join(s for s in said if s))
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    rows = table("kernel", "arch", right=("regs", "smem B", "stack B", "spills B"))
    for kernel in kernels[:MAX_ROWS]:
        spills = [number(kernel.get(k)) for k in ("spill_store_bytes", "spill_load_bytes")]
        spilled = None if None in spills else sum(s or 0.0 for s in spills)
        rows.add_row(
            text(clean(kernel.get("name") or kernel.get("mangled") or "?", 44)),
            text(clean(kernel.get("arch") or "", 10)),
            _count(kernel.get("registers")),
            _count(kernel.get("smem_bytes")),
            _alarming(number(kernel.get("stack_bytes"))),
            _alarming(spilled),
        )
    yield rows
    yield from more(len(kernels))


# ------------------------------------------------------------------------------------------------ correctness
def _correctness(content: dict[str, Any]) -> Iterator[RenderableType]:
    yield _correctness_line(content)
    cases = objects(content.get("cases"))
    series, single = _by_series(cases)
    if series:
        yield _series_table(series)
    if single:
        yield _case_table(single[:MAX_ROWS])
        yield from more(len(single))
    for case in [c for c in cases if c.get("passed") is False][:MAX_ROWS]:
        verdict, said = _verdict(case), clean(case.get("message") or "", 300)
        style = "red" if verdict == "failed" else "dim"
        yield text(f"{clean(case.get('name') or '?', 40)}: {said or verdict}", style)


def _correctness_line(content: dict[str, Any]) -> Text:
    summary = part(content, "summary")
    passed, total = (number(part(summary, key)) for key in ("passed", "total"))
    skipped, worst = number(part(summary, "skipped")), number(part(summary, "max_err"))
    wrong = passed is None or total is None or passed + (skipped or 0) < total
    status = "fail" if wrong else "pass" if passed == total else "unavailable"
    said = mark(status, f"{whole(passed)}/{whole(total)} cases passed")
    if skipped:
        said.append(f", {whole(skipped)} skipped")
    if worst is not None:
        said.append(f", largest error {small(worst)}", "default")
    variant = content.get("variant")
    if variant:
        said.append(f" · {clean(variant, 40)}", "default")
    return said


def _by_series(cases: list[dict[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Cases ``name/1, name/2, ...`` by their name, one row each; and the cases that stand alone."""
    series: dict[str, list[dict[str, Any]]] = {}
    single = []
    for case in cases:
        found = _NUMBERED.fullmatch(str(case.get("name"))[:200])
        if found and (shape_of(case.get("shape")) or case.get("seed") is not None):
            series.setdefault(found[1], []).append(case)
        else:
            single.append(case)
    if max(map(len, series.values()), default=0) > 5 or len(series) > MAX_ROWS:  # not a small grid: list them
        return {}, cases
    return series, single


def _series_table(series: dict[str, list[dict[str, Any]]]) -> Table:
    """What is allowed is a column where it is the same for all cases of a shape, else below each case's error."""
    columns = max(map(len, series.values()))
    alike = all(len({_allowed(case) for case in cases}) == 1 for cases in series.values())
    rows = table(
        "shape", "B,H,S,D", right=(*(f"seed {i + 1}" for i in range(columns)), *(["allowed"] if alike else []))
    )
    for name, cases in series.items():
        results = [mark("pass" if c.get("passed") is True else "fail", small(number(c.get("max_err")))) for c in cases]
        blank = [text("")] * (columns - len(cases))
        allowed = [text(_allowed(case), "dim") for case in cases]
        last = allowed[:1] if alike else []
        rows.add_row(text(clean(name, 24)), text(_shape(cases[0].get("shape")), "dim"), *results, *blank, *last)
        if not alike:
            rows.add_row("", text("allowed", "dim"), *allowed, *blank)
    return rows


def _case_table(cases: list[dict[str, Any]]) -> Table:
    """A test program's cases have no errors to show: a column without any figure is left out."""
    errors = {
        "max err": [small(number(case.get("max_err"))) for case in cases],
        "allowed": [_allowed(case) for case in cases],
        "mean err": [small(number(case.get("mean_err"))) for case in cases],
        "rel rms": [small(number(case.get("rel_rms"))) for case in cases],
    }
    shown = {name: column for name, column in errors.items() if any(column)}
    rows = table("case", "", right=shown)
    for i, case in enumerate(cases):
        verdict = _verdict(case)
        said = mark(verdict, "" if verdict == "passed" else verdict)
        figures = (text(column[i], "dim" if name == "allowed" else "") for name, column in shown.items())
        rows.add_row(text(clean(case.get("name") or "?", 40)), said, *figures)
    return rows


def _verdict(case: dict[str, Any]) -> str:
    if case.get("passed") is True:
        return "passed"
    return "skipped" if case.get("status") == "skipped" else "failed"


def _allowed(case: dict[str, Any]) -> str:
    """The tolerance on the case's largest error; empty if it has none."""
    given = case.get("tolerance")
    return small(number(part(given, "max_err") if isinstance(given, dict) else given))


# ------------------------------------------------------------------------------------------------ profile, metrics
def _profile(content: dict[str, Any]) -> Iterator[RenderableType]:
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    keys = ("tensor_active_pct", "sm_throughput_pct", "occupancy_pct", "dram_throughput_pct")
    rows = table("kernel", right=("tensor %", "SM %", "occupancy %", "DRAM %"))
    for kernel in kernels[:MAX_ROWS]:
        values = (number(part(kernel, "metrics", key)) for key in keys)
        shown = (text("" if v is None else f"{v:.1f}") for v in values)
        rows.add_row(text(clean(kernel.get("name") or "?", 40)), *shown)
    yield rows
    yield from more(len(kernels))


def _metrics(content: dict[str, Any]) -> Iterator[RenderableType]:
    metrics = part(content, "metrics")
    if not isinstance(metrics, dict) or not metrics:
        return
    rows = table("metric", right=("value",))
    for name, value in list(metrics.items())[:MAX_ROWS]:
        found = number(value)
        rows.add_row(text(clean(name, 50)), text(clean(value, 20) if found is None else f"{found:g}"))
    yield rows
    yield from more(len(metrics))


def _tuning(content: dict[str, Any]) -> Iterator[RenderableType]:
    from orchestrator.views.tables.tuning import tuning  # few runs search

    yield from tuning(content)


_SECTIONS = {
    "environment": _environment,
    "build": _build,
    "correctness": _correctness,
    "benchmark": benchmark,
    "profile": _profile,
    "metrics": _metrics,
    "tuning": _tuning,
}
_TITLES = {
    "environment": "Preflight",
    "build": "Build",
    "correctness": "Correctness",
    "benchmark": "Benchmark",
    "profile": "Profile",
    "metrics": "Metrics",
    "tuning": "Tuning",
}


# ------------------------------------------------------------------------------------------------ pieces
def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _alarming(value: float | None) -> Text:
    """Anything but zero is worth a colour: a stack frame and spills both cost memory traffic."""
    return text(whole(value), "red" if value else "")


def _count(value: object) -> Text:
    return text(whole(number(value)))


def _shape(value: object) -> str:
    found = shape_of(value)
    return ",".join(str(found[k]) for k in "BHSD") if found else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
