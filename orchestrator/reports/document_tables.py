"""Tables of what the steps' documents say: the machine, resources, correctness, benchmark, profile.

Every cell goes through :func:`~orchestrator.reports.sanitize.clean` and into a ``Text``: a host chose its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.domain.timings import Timing, number, ratio_of, reference_of, shape_of, timings
from orchestrator.reports.figures import mark, microseconds, plural, small, speed
from orchestrator.reports.live import duration
from orchestrator.reports.sanitize import clean
from orchestrator.workflows.documents import Document, objects, part

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

MAX_ROWS = 40
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
        yield _text(" · ".join(facts))
    summary = part(content, "summary")
    counts = [number(part(summary, key)) for key in ("passed", "warnings", "errors")]
    if None not in counts:
        passed, warnings, errors = (int(c or 0) for c in counts)
        line = mark(str(part(summary, "status")), f"{passed} passed, {plural(warnings, 'warning')}")
        yield line.append(f", {plural(errors, 'error')}")
    notable = [c for c in objects(content.get("checks")) if c.get("status") in ("fail", "warn")]
    if notable:
        table = _grid()
        for check in sorted(notable, key=lambda c: c.get("status") != "fail")[:MAX_ROWS]:
            said = _text(clean(check.get("message") or "", 300))
            if check.get("hint"):
                said.append(f"\n{clean(check['hint'], 300)}", "dim")
            table.add_row(mark(str(check["status"]), clean(check.get("id") or check.get("section") or "", 24)), said)
        yield table


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
    yield _text(" · ".join(s for s in said if s))
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    table = _table("kernel", "arch", right=("regs", "smem B", "stack B", "spills B"))
    for kernel in kernels[:MAX_ROWS]:
        spills = [number(kernel.get(k)) for k in ("spill_store_bytes", "spill_load_bytes")]
        spilled = None if None in spills else sum(s or 0.0 for s in spills)
        table.add_row(
            _text(clean(kernel.get("name") or kernel.get("mangled") or "?", 44)),
            _text(clean(kernel.get("arch") or "", 10)),
            _count(kernel.get("registers")),
            _count(kernel.get("smem_bytes")),
            _alarming(number(kernel.get("stack_bytes"))),
            _alarming(spilled),
        )
    yield table
    yield from _more(len(kernels))


# ------------------------------------------------------------------------------------------------ correctness
def _correctness(content: dict[str, Any]) -> Iterator[RenderableType]:
    yield _correctness_line(content)
    cases = objects(content.get("cases"))
    series, single = _by_series(cases)
    if series:
        yield _series_table(series)
    if single:
        table = _table("case", "", right=("max err", "allowed", "mean err", "rel rms"))
        for case in single[:MAX_ROWS]:
            table.add_row(*_case_cells(case))
        yield table
        yield from _more(len(single))
    for case in [c for c in cases if c.get("passed") is False][:MAX_ROWS]:
        yield _text(f"{clean(case.get('name') or '?', 40)}: {clean(case.get('message') or 'failed', 300)}", "red")


def _correctness_line(content: dict[str, Any]) -> Text:
    summary = part(content, "summary")
    passed, total = (number(part(summary, key)) for key in ("passed", "total"))
    ok = passed is not None and passed == total
    said = mark("pass" if ok else "fail", f"{_plain(passed)}/{_plain(total)} cases passed")
    skipped, worst = number(part(summary, "skipped")), number(part(summary, "max_err"))
    if skipped:
        said.append(f", {_plain(skipped)} skipped")
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
    columns = max(map(len, series.values()))
    table = _table("shape", "B,H,S,D", right=(*(f"seed {i + 1}" for i in range(columns)), "allowed"))
    for name, cases in series.items():
        results = [mark("pass" if c.get("passed") is True else "fail", small(number(c.get("max_err")))) for c in cases]
        blank = [_text("")] * (columns - len(cases))
        allowed = _text(_allowed(cases), "dim")
        table.add_row(_text(clean(name, 24)), _text(_shape(cases[0].get("shape")), "dim"), *results, *blank, allowed)
    return table


def _case_cells(case: dict[str, Any]) -> tuple[Text, ...]:
    errors = (small(number(case.get(key))) for key in ("mean_err", "rel_rms"))
    return (
        _text(clean(case.get("name") or "?", 40)),
        mark("pass" if case.get("passed") is True else "fail", "" if case.get("passed") is True else "failed"),
        _text(small(number(case.get("max_err")))),
        _text(_allowed([case]), "dim"),
        *(_text(e) for e in errors),
    )


def _allowed(cases: list[dict[str, Any]]) -> str:
    """The tolerance on the largest error; the tightest, if the cases have several."""
    given = [c.get("tolerance") for c in cases]
    found = [number(part(g, "max_err") if isinstance(g, dict) else g) for g in given]
    return small(min((f for f in found if f is not None), default=None))


# ------------------------------------------------------------------------------------------------ benchmark
def _benchmark(content: dict[str, Any]) -> Iterator[RenderableType]:
    found = timings(content)
    if not found:
        return
    units = {t.unit for t in found}
    unit = "µs" if units == {"us"} else " / ".join(sorted(clean(u, 8) for u in units))
    modes = [m for m in dict.fromkeys(t.mode for t in found) if m]
    yield _text(f"times in {unit}" + (f" · {clean(modes[0], 20)}" if len(modes) == 1 else ""), "dim")
    table = _table("benchmark", right=("n", "p50", "p90", "p99", "min", "vs SDPA"))
    for timing in found[:MAX_ROWS]:
        reference = reference_of(timing, found)
        style = "dim" if timing.is_reference else ""
        stats = (microseconds(timing.stats.get(key)) for key in ("p50", "p90", "p99", "min"))
        table.add_row(
            _text(_named(timing, many_modes=len(modes) > 1), style),
            _text(_plain(timing.stats.get("n")), style),
            *(_text(value, style) for value in stats),
            _against(timing, reference, content),
        )
    yield table
    yield from _more(len(found))


def _named(timing: Timing, *, many_modes: bool) -> str:
    parts = [timing.name]
    if timing.variant and timing.variant not in timing.name:
        parts.append(timing.variant)
    if many_modes and timing.mode and timing.mode not in timing.name:
        parts.append(timing.mode)
    return clean(" ".join(parts), 34)


def _against(timing: Timing, reference: Timing | None, content: dict[str, Any]) -> Text:
    ratio = ratio_of(timing, reference, content) if reference else None
    if ratio is None:
        return _text("reference" if timing.is_reference else "", "dim")
    certain = ratio.low is None or ratio.high is None or not ratio.low <= 1 <= ratio.high
    colour = ("green" if ratio.value < 1 else "red") if certain else "yellow"
    return _text(speed(ratio.value), colour)


# ------------------------------------------------------------------------------------------------ profile, metrics
def _profile(content: dict[str, Any]) -> Iterator[RenderableType]:
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    keys = ("tensor_active_pct", "sm_throughput_pct", "occupancy_pct", "dram_throughput_pct")
    table = _table("kernel", right=("tensor %", "SM %", "occupancy %", "DRAM %"))
    for kernel in kernels[:MAX_ROWS]:
        values = (number(part(kernel, "metrics", key)) for key in keys)
        shown = (_text("" if v is None else f"{v:.1f}") for v in values)
        table.add_row(_text(clean(kernel.get("name") or "?", 40)), *shown)
    yield table
    yield from _more(len(kernels))


def _metrics(content: dict[str, Any]) -> Iterator[RenderableType]:
    metrics = part(content, "metrics")
    if not isinstance(metrics, dict) or not metrics:
        return
    table = _table("metric", right=("value",))
    for name, value in list(metrics.items())[:MAX_ROWS]:
        found = number(value)
        table.add_row(_text(clean(name, 50)), _text(clean(value, 20) if found is None else f"{found:g}"))
    yield table
    yield from _more(len(metrics))


_SECTIONS = {
    "environment": _environment,
    "build": _build,
    "correctness": _correctness,
    "benchmark": _benchmark,
    "profile": _profile,
    "metrics": _metrics,
}
_TITLES = {
    "environment": "Preflight",
    "build": "Build",
    "correctness": "Correctness",
    "benchmark": "Benchmark",
    "profile": "Profile",
    "metrics": "Metrics",
}


# ------------------------------------------------------------------------------------------------ pieces
def _table(*left: str, right: Iterable[str] = ()) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _grid() -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _alarming(value: float | None) -> Text:
    """Anything but zero is worth a colour: a stack frame and spills both cost memory traffic."""
    return _text(_plain(value), "red" if value else "")


def _count(value: object) -> Text:
    return _text(_plain(number(value)))


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _shape(value: object) -> str:
    found = shape_of(value)
    return ",".join(str(found[k]) for k in "BHSD") if found else ""


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _more(count: int) -> Iterator[Text]:
    if count > MAX_ROWS:
        yield _text(f"... and {count - MAX_ROWS} more", "dim")
