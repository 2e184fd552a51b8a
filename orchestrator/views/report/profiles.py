"""Profile and build documents: metrics, stalls, bottlenecks and what to do about them.

Bottlenecks are found by the rules of :mod:`orchestrator.results.levers`. A repository's tool may say more: ``"levers":
{rule: text}`` and ``"targets": {metric: least}`` in a profile document; and bottlenecks of its own, which count instead
of the rules, as ``"findings": [{rule, bottleneck, lever, impact, facts: [{name, value, threshold}]}]`` of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fcctl_remote.base.ncu_metrics import METRICS, Metric
from orchestrator.base.sanitize import clean, listed, number, objects, part, table
from orchestrator.results.documents import Document, label
from orchestrator.results.levers import WARPS_PER_SM, Finding, Measured, findings
from orchestrator.results.look import Shown
from orchestrator.results.timings import shape_of, shape_text
from orchestrator.views.blocks import Block, Grid, more
from orchestrator.views.kernel_names import apart
from orchestrator.views.report.model import Profiled

#: Metrics with a column of their own, and those whose target is an upper limit.
_HIGHLIGHTS = tuple(metric for metric in METRICS if metric.title)
_AT_MOST = ("registers", "smem_static", "smem_dynamic")
#: Rows of the table.
MAX_ROWS = 60
#: Of one kernel, and of one finding.
MAX_FINDINGS, MAX_FACTS = 20, 8
#: Findings of one profiled kernel that are shown.
SHOWN = 3


def profiled(shown: Shown) -> Iterator[Profiled]:
    """Every profiled kernel of a run; and each variant without a profile whose build has findings."""
    run, seen = shown.record.run_id, set()
    for document in shown.documents.of("profile"):
        seen.add(label(document))
        kernels = objects(document.content.get("kernels"))
        names = apart([str(kernel.get("name") or "?") for kernel in kernels], 60)
        yield from (_kernel(shown, document, kernel, name) for kernel, name in zip(kernels, names, strict=True))
    for document in shown.documents.of("build"):
        name = label(document)
        if name and name not in seen:
            seen.add(name)
            spilled, stack = _local_memory(shown, name, "")
            if bottlenecks := _by_rules(Measured(spill_bytes=spilled, stack_bytes=stack), document):
                yield Profiled(run, clean(name, 60), "", "", {}, {}, _largest(bottlenecks))


def _kernel(shown: Shown, document: Document, kernel: dict[str, Any], name: str) -> Profiled:
    variant = label(document)
    metrics, targets = _numbers(kernel.get("metrics")), _numbers(document.content.get("targets"))
    stalls = {clean(reason, 40): warps for reason, warps in _numbers(kernel.get("stalls")).items() if warps > 0}
    own = _findings(kernel)
    bottlenecks = own or _by_rules(_measured(shown, document, kernel, metrics, stalls), document)
    shape, place = _shape(document), clean(variant, 60) or name
    return Profiled(shown.record.run_id, place, name, shape, metrics, stalls, _largest(bottlenecks), targets)


def _measured(
    shown: Shown, document: Document, kernel: dict[str, Any], metrics: dict[str, float], stalls: dict[str, float]
) -> Measured:
    variant, capability = label(document), str(kernel.get("compute_capability") or "")
    benchmark = next((d.content for d in shown.documents.of("benchmark") if label(d) == variant), {})
    timed = _timed(benchmark, document)
    static, dynamic = metrics.get("smem_static", 0.0), metrics.get("smem_dynamic")
    bound = part(timed, "roofline", "bound")
    spilled, stack = _local_memory(shown, variant, capability)
    return Measured(
        tensor_pct=metrics.get("tensor_active_pct"),
        wants_tensor=part(document.content, "targets", "tensor_active_pct") is not None,
        sm_pct=metrics.get("sm_throughput_pct"), dram_pct=metrics.get("dram_throughput_pct"),
        l2_hit_pct=metrics.get("l2_hit_pct"), occupancy_pct=metrics.get("occupancy_pct"),
        theoretical_occupancy_pct=metrics.get("theoretical_occupancy_pct"),
        warps_per_sm=WARPS_PER_SM.get(capability, 64) if capability else None, registers=metrics.get("registers"),
        smem_bytes=None if dynamic is None else static + dynamic, threads=_product(kernel.get("block")),
        blocks=_product(kernel.get("grid")),
        sms=number(document.content.get("sms")) or number(part(benchmark, "environment", "peaks", "sms")),
        stalls=stalls, p50_us=number(part(timed, "stats", "p50")),
        launch_floor_us=number(part(timed, "roofline", "floors_us", "launch")),
        roofline_pct=number(part(timed, "roofline", "pct")), roofline_bound=bound if isinstance(bound, str) else None,
        spill_bytes=spilled, stack_bytes=stack,
    )  # fmt: skip


def _local_memory(shown: Shown, variant: str, capability: str) -> tuple[float | None, float | None]:
    """Bytes of spills and of stack, the worst of the variant's kernels, on this GPU's architecture if it is there."""
    built = [d.content for d in shown.documents.of("build") if label(d) == variant]
    kernels = [kernel for content in built for kernel in objects(content.get("kernels"))]
    kernels = [k for k in kernels if k.get("arch") == f"sm_{capability.replace('.', '')}"] or kernels
    spills = [sum(number(k.get(f"spill_{way}_bytes")) or 0.0 for way in ("store", "load")) for k in kernels]
    stacks = [number(k.get("stack_bytes")) or 0.0 for k in kernels]
    return max(spills, default=None), max(stacks, default=None)


def _timed(benchmark: dict[str, Any], profile: Document) -> dict[str, Any]:
    """The first timing (the mode that comes first) of what was profiled, on the same shape."""
    shape = profile.content.get("shape")
    for entry in objects(benchmark.get("benchmarks")):
        named = entry.get("name") == part(shape, "name")
        if shape_of(entry.get("shape")) == shape_of(shape) if shape_of(shape) else named:
            return entry
    return {}


def _by_rules(measured: Measured, document: Document) -> list[Finding]:
    texts = table(document.content.get("levers"))
    return [replace(one, lever=clean(texts.get(one.rule) or one.lever, 300)) for one in findings(measured)]


def _product(value: object) -> int | None:
    sizes = listed(value)
    return math.prod(sizes) if sizes and all(type(size) is int and 0 < size < 2**31 for size in sizes) else None


def _largest(bottlenecks: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(bottlenecks, key=lambda finding: -finding.impact)[:SHOWN])


def _findings(content: dict[str, Any]) -> list[Finding]:
    return [
        Finding(
            clean(one.get("rule") or "", 40),
            clean(one.get("bottleneck") or "", 200),
            clean(one.get("lever") or "", 300),
            number(one.get("impact")) or 0.0,
            tuple(
                (clean(f.get("name") or "", 80), clean(f.get("value") or "", 120), clean(f.get("threshold") or "", 80))
                for f in objects(one.get("facts"))[:MAX_FACTS]
            ),
        )
        for one in objects(content.get("findings"))[:MAX_FINDINGS]
    ]


def _numbers(value: object) -> dict[str, float]:
    return {str(k): v for k, raw in value.items() if (v := number(raw)) is not None} if isinstance(value, dict) else {}


def _shape(document: Document) -> str:
    shape, name = shape_of(document.content.get("shape")), part(document.content, "shape", "name")
    sizes = shape_text(shape)
    if isinstance(name, str) and name and name != sizes:
        return clean(f"{name} ({sizes})" if sizes else name, 60)
    return sizes


# ------------------------------------------------------------------------------------------------ the table
def profile_blocks(profiles: Iterable[Profiled]) -> Iterator[Block]:
    """One line for each kernel with metrics."""
    shown = [profile for profile in profiles if profile.metrics]
    if shown:
        columns = (f"{metric.title}{_target(metric, shown)}" for metric in _HIGHLIGHTS)
        header = ("kernel", "shape", *columns, "stall reasons")
        yield Grid(
            header,
            tuple(profile_cells(p) for p in shown[:MAX_ROWS]),
            "One profiled launch of each kernel; durations under a profiler are not benchmarks and are not shown",
            numbers=tuple(range(2, 2 + len(_HIGHLIGHTS))),
            optional=tuple(header.index(name) for name in ("stall reasons", "registers", "L2 hits", "shape")
                           if name in header),
        )  # fmt: skip
        yield from more(shown, MAX_ROWS)


def _target(metric: Metric, profiles: Sequence[Profiled]) -> str:
    """`` (target 50 %)``, where all profiles have the same."""
    least = {profile.targets.get(metric.key) for profile in profiles}
    value = least.pop()
    return f" (target {value:g}{metric.unit and f' {metric.unit}'})" if value is not None and not least else ""


def profile_cells(profile: Profiled) -> tuple[str, ...]:
    """A row of the table of NCU highlights."""
    waits = ", ".join(f"{name.replace('_', ' ')} {share:.0f} %" for name, share in profile.top_stalls)
    return (profile.label, profile.shape, *(_metric(profile, metric) for metric in _HIGHLIGHTS), waits)


def _metric(profile: Profiled, metric: Metric) -> str:
    """``56.0 %, met``: the figure, and how it stands to its target if it has one; empty without the figure."""
    value, target = profile.metrics.get(metric.key), profile.targets.get(metric.key)
    if value is None:
        return ""
    figure = f"{value:.1f} %" if metric.unit == "%" else f"{value:.0f} {metric.unit}".rstrip()
    if target is None:
        return figure
    if metric.key in _AT_MOST:
        return f"{figure}, {'met' if value <= target else 'not met'} (at most {target:g})"
    return f"{figure}, {'met' if value >= target else 'not met'}"
