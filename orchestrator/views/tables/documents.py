"""Tables of what the steps' documents say: the machine, resources, correctness, profile.

Every cell goes through :func:`~orchestrator.base.sanitize.clean` and into a ``Text``: a host chose its content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from fcctl_remote.base.ncu_metrics import METRICS
from orchestrator.base.sanitize import clean
from orchestrator.base.untrusted import listed, number, objects, part
from orchestrator.results.documents import Document
from orchestrator.results.timings import shape_of, shape_text
from orchestrator.views.figures import duration, plural, small, whole
from orchestrator.views.table import MAX_ROWS, Table, mark, more
from orchestrator.views.tables.benchmark import benchmark
from orchestrator.views.tables.tuning import tuning

_NUMBERED = re.compile(r"(.+)/(\d{1,3})")


def section(document: Document) -> tuple[str, list[RenderableType]] | None:
    """Heading and content for one document, None if its kind has no table or it has nothing to show."""
    title, show = _SECTIONS.get(document.kind, ("", None))
    content = list(show(document.content)) if show else []
    return (title, content) if content else None


# ------------------------------------------------------------------------------------------------ environment, build
def _environment(content: dict[str, Any]) -> Iterator[RenderableType]:
    yield Text(" · ".join(fact for fact in _facts(content) if fact))
    summary = part(content, "summary")
    passed, warnings, errors = (number(part(summary, key)) for key in ("passed", "warnings", "errors"))
    if passed is not None and warnings is not None and errors is not None:
        line = mark(str(part(summary, "status")), f"{passed:.0f} passed, {plural(int(warnings), 'warning')}")
        yield line.append(f", {plural(int(errors), 'error')}")
    notable = [c for c in objects(content.get("checks")) if c.get("status") in ("fail", "warn")]
    if notable:
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(no_wrap=True)
        rows.add_column(overflow="fold")
        for check in sorted(notable, key=lambda c: c.get("status") != "fail")[:MAX_ROWS]:
            message = Text(clean(check.get("message") or "", 300))
            if check.get("hint"):
                message.append(f"\n{clean(check['hint'], 300)}", "dim")
            name = clean(check.get("id") or check.get("section") or "", 24)
            rows.add_row(mark(str(check["status"]), name), message)
        yield rows


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


def _build(content: dict[str, Any]) -> Iterator[RenderableType]:
    seconds = number(content.get("duration_s"))
    facts = [
        clean(content.get("variant") or "", 40),
        clean(content.get("tool") or "", 48),
        " ".join(clean(arch, 12) for arch in listed(content.get("archs"))),
        "from the cache" if content.get("cached") is True else duration(seconds) if seconds is not None else "",
    ]
    yield Text(" · ".join(fact for fact in facts if fact))
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    rows = Table("kernel", "arch", right=("regs", "smem B", "stack B", "spills B"))
    for kernel in kernels[:MAX_ROWS]:
        registers, memory, stack, stores, loads = (
            number(kernel.get(key))
            for key in ("registers", "smem_bytes", "stack_bytes", "spill_store_bytes", "spill_load_bytes")
        )
        spilled = None if stores is None or loads is None else stores + loads
        name = clean(kernel.get("name") or kernel.get("mangled") or "?", 44)
        # A stack frame and spills both cost memory traffic: anything but zero is worth a colour.
        alarming = (Text(whole(value), "red" if value else "") for value in (stack, spilled))
        rows.add_row(name, clean(kernel.get("arch") or "", 10), whole(registers), whole(memory), *alarming)
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
        verdict, message = _verdict(case), clean(case.get("message") or "", 300)
        style = "red" if verdict == "failed" else "dim"
        yield Text(f"{clean(case.get('name') or '?', 40)}: {message or verdict}", style)


def _correctness_line(content: dict[str, Any]) -> Text:
    passed, total, skipped, worst = (
        number(part(content, "summary", key)) for key in ("passed", "total", "skipped", "max_err")
    )
    wrong = passed is None or total is None or passed + (skipped or 0) < total
    status = "fail" if wrong else "pass" if passed == total else "unavailable"
    line = mark(status, f"{whole(passed)}/{whole(total)} cases passed")
    if skipped:
        line.append(f", {whole(skipped)} skipped")
    if worst is not None:
        line.append(f", largest error {small(worst)}", "default")
    return line.append(f" · {clean(content['variant'], 40)}", "default") if content.get("variant") else line


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


def _series_table(series: dict[str, list[dict[str, Any]]]) -> Table:
    """What is allowed is a column where it is the same for all cases of a shape, else below each case's error."""
    columns = max(map(len, series.values()))
    alike = all(len({_allowed(case) for case in cases}) == 1 for cases in series.values())
    rows = Table("shape", "B,H,S,D", right=(*(f"seed {i + 1}" for i in range(columns)), *(["allowed"] * alike)))
    for name, cases in series.items():
        results = [mark("pass" if c.get("passed") is True else "fail", small(number(c.get("max_err")))) for c in cases]
        blank = [""] * (columns - len(cases))
        allowed = [Text(_allowed(case), "dim") for case in cases]
        shape = Text(shape_text(shape_of(cases[0].get("shape"))), "dim")
        rows.add_row(clean(name, 24), shape, *results, *blank, *(allowed[:1] if alike else []))
        if not alike:
            rows.add_row("", Text("allowed", "dim"), *allowed, *blank)
    return rows


def _case_table(cases: list[dict[str, Any]]) -> Table:
    """A test program's cases have no errors to show: a column without any figure is left out."""
    errors = {key: [small(number(case.get(key))) for case in cases] for key in ("max_err", "mean_err", "rel_rms")}
    columns = {
        "max err": errors["max_err"], "allowed": [_allowed(case) for case in cases], "mean err": errors["mean_err"],
        "rel rms": errors["rel_rms"],
    }  # fmt: skip
    shown = {name: column for name, column in columns.items() if any(column)}
    rows = Table("case", "", right=shown)
    for i, case in enumerate(cases):
        verdict = _verdict(case)
        figures = (Text(column[i], "dim" if name == "allowed" else "") for name, column in shown.items())
        status = mark(verdict, "" if verdict == "passed" else verdict)
        rows.add_row(clean(case.get("name") or "?", 40), status, *figures)
    return rows


def _verdict(case: dict[str, Any]) -> str:
    return "passed" if case.get("passed") is True else "skipped" if case.get("status") == "skipped" else "failed"


def _allowed(case: dict[str, Any]) -> str:
    """The tolerance on the case's largest error; empty if it has none."""
    given = case.get("tolerance")
    return small(number(part(given, "max_err") if isinstance(given, dict) else given))


# ------------------------------------------------------------------------------------------------ profile, metrics
def _profile(content: dict[str, Any]) -> Iterator[RenderableType]:
    kernels = objects(content.get("kernels"))
    if not kernels:
        return
    metrics = [metric for metric in METRICS if metric.short]
    rows = Table("kernel", right=(metric.short for metric in metrics))
    for kernel in kernels[:MAX_ROWS]:
        values = (number(part(kernel, "metrics", metric.key)) for metric in metrics)
        rows.add_row(clean(kernel.get("name") or "?", 40), *("" if v is None else f"{v:.1f}" for v in values))
    yield rows
    yield from more(len(kernels))


def _metrics(content: dict[str, Any]) -> Iterator[RenderableType]:
    metrics = part(content, "metrics")
    if not isinstance(metrics, dict) or not metrics:
        return
    rows = Table("metric", right=("value",))
    for name, value in list(metrics.items())[:MAX_ROWS]:
        figure = number(value)
        rows.add_row(clean(name, 50), clean(value, 20) if figure is None else f"{figure:g}")
    yield rows
    yield from more(len(metrics))


_SECTIONS = {
    "environment": ("Preflight", _environment),
    "build": ("Build", _build),
    "correctness": ("Correctness", _correctness),
    "benchmark": ("Benchmark", benchmark),
    "profile": ("Profile", _profile),
    "metrics": ("Metrics", _metrics),
    "tuning": ("Tuning", tuning),
}
