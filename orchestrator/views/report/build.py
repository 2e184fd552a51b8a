"""Runs to a report; of profile and build documents the metrics, stalls, bottlenecks and what to do about them.

Bottlenecks are found by the rules of :mod:`orchestrator.results.levers`. A repository's tool may say more: ``"levers":
{rule: text}`` and ``"targets": {metric: least}`` in a profile document; and bottlenecks of its own, which count instead
of the rules, as ``"findings": [{rule, bottleneck, lever, impact, facts: [{name, value, threshold}]}]`` of a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fcctl_remote.base.ncu_metrics import METRICS, Metric
from orchestrator.base.sanitize import clean, listed, number, objects, part, table
from orchestrator.results.documents import Document, label, load_telemetry
from orchestrator.results.levers import WARPS_PER_SM, Finding, Measured, findings
from orchestrator.results.look import Shown
from orchestrator.results.records import IMPORTED, UNVERIFIED
from orchestrator.results.timings import Peers, Ratio, Timing, entries, shape_of, shape_text
from orchestrator.views.blocks import Block, Grid, apart, more
from orchestrator.views.report.charts import by_size
from orchestrator.views.report.model import (
    MISSION,
    NO_GPU,
    Correctness,
    Goal,
    Grade,
    Profiled,
    Report,
    Row,
    RunPart,
    Table,
    tuned,
)

if TYPE_CHECKING:
    from orchestrator.results.compare.compare import Report as Comparison


def run_part(shown: Shown) -> RunPart:
    return RunPart(
        record=shown.record, machine=tuple(_machine(shown)), gpu=gpu_of(shown) or NO_GPU,
        telemetry=load_telemetry(shown.folder), ceilings=_ceilings(shown),
        problems=tuple(clean(p, 300) for p in shown.documents.problems),
    )  # fmt: skip


def _machine(shown: Shown) -> Iterator[tuple[str, str]]:
    host = shown.record.host
    for document in shown.documents.of("environment"):
        host = {**host, **{k: v for k, v in document.content.items() if k in ("gpu", "cuda", "ncu", "torch", "cpu")}}
    clocks, memory = number(part(host, "gpu", "clocks", "max_sm_mhz")), number(part(host, "gpu", "memory_mb"))
    facts = {
        "GPU": part(host, "gpu", "name"), "compute capability": part(host, "gpu", "compute_capability"),
        "GPU memory": f"{memory / 1024:.0f} GiB" if memory else None,
        "largest SM clock": f"{clocks:.0f} MHz" if clocks else None, "driver": part(host, "gpu", "driver"),
        "CUDA": part(host, "cuda", "version"), "Nsight Compute": part(host, "ncu", "version"),
        "PyTorch": part(host, "torch", "version"), "CPU": part(host, "cpu", "model"),
    }  # fmt: skip
    yield from ((name, clean(value, 80)) for name, value in facts.items() if isinstance(value, str) and value)


def gpu_of(shown: Shown) -> str:
    for document in shown.documents.of("environment"):
        if name := part(document.content, "gpu", "name"):
            return clean(name, 60)
    if name := part(shown.record.host, "gpu", "name"):
        return clean(name, 60)
    for document in shown.documents.of("benchmark"):
        if document.content.get("device"):
            return clean(document.content["device"], 60)
    return ""


def _ceilings(shown: Shown) -> dict[str, float]:
    """The measured peaks, from a ``peaks`` document or from what a benchmark took for them."""
    places = [part(d.content, "metrics") for d in shown.documents.of("metrics")]
    places += [part(d.content, "environment", "peaks") for d in shown.documents.of("benchmark")]
    for place in places:
        if isinstance(place, dict) and number(place.get("mma_f32_tflops")):
            return {str(k): v for k, given in place.items() if (v := number(given)) is not None}
    return {}


#: A backend's name in a report, by what follows ``sdpa-`` in a variant's.
BACKENDS = {"flash": "flash", "math": "math", "cudnn": "cuDNN", "efficient": "efficient"}


def rows(shown: Shown, *, several: bool) -> Iterator[Row]:
    """Every timing of a run's benchmark documents; with the end of the run's id, where the report has ``several``."""
    checks: dict[str, Correctness] = {}
    for report in shown.documents.of("correctness"):  # several of one kernel are added up
        checks[label(report)] = _correctness(report.content, checks.get(label(report)))
    only = next(iter(checks.values())) if len(checks) == 1 else None
    suffix = f" ({shown.record.run_id[-6:]})" if several else ""
    imported = f" ({UNVERIFIED})" if shown.record.status == IMPORTED else ""
    for document in shown.documents.of("benchmark"):
        check = checks.get(label(document), only)
        timed, gpu = entries(document.content), gpu_of(shown)
        peers = Peers(timed, document.content)
        pairs = zip(timed, objects(document.content.get("benchmarks")), strict=True)
        for row in by_size([_row(document, timing, entry, peers, gpu) for timing, entry in pairs]):
            ours = not row.is_reference
            yield replace(
                row, run=shown.record.run_id, label=row.label + (suffix if ours else "") + imported,
                correctness=check if ours else None,
            )  # fmt: skip


def _row(document: Document, timing: Timing, entry: dict[str, Any], peers: Peers, gpu: str) -> Row:
    ours, content = not timing.is_reference, document.content
    named = timing.variant or timing.name
    if ours and content.get("label") and timing.variant and timing.variant == content.get("variant", timing.variant):
        named = str(content["label"])
    letter, step = part(entry, "grade", "letter"), part(entry, "grade", "next_step")
    return Row(
        run="", machine=gpu or clean(content.get("device") or "", 60) or NO_GPU, document=document.path,
        name=clean(timing.name, 80), label=clean(named if ours else _backend_label(timing), 60),
        case=clean(timing.case if timing.variant else "", 60), mode=clean(timing.mode, 20), unit=clean(timing.unit, 8),
        is_reference=timing.is_reference, stats=timing.stats,
        samples=tuple(v for s in listed(entry.get("samples"))[:100_000] if (v := number(s)) is not None),
        shape=timing.shape, against=_against(timing, peers), roofline_pct=number(part(entry, "roofline", "pct")),
        roofline_bound=clean(bound, 20) if isinstance(bound := part(entry, "roofline", "bound"), str) else None,
        tflops=number(part(entry, "roofline", "tflops")), error=clean(timing.error, 200),
        grade=Grade(clean(letter, 8), clean(step or "", 200)) if ours and isinstance(letter, str) else None,
    )  # fmt: skip


def _against(timing: Timing, peers: Peers) -> dict[str, Ratio]:
    """By backend, the fastest as ``best``; and by variant, where another of ours was timed beside it."""
    ratios: dict[str, Ratio] = {}
    for reference in peers.references(timing):
        if ratio := peers.ratio(timing, reference):
            ratios.setdefault(_backend(reference), ratio)
            ratios.setdefault("best", ratio)
    beside = [] if timing.is_reference else peers.groups[timing.case, timing.mode, timing.unit]
    for other in beside:
        named = not other.is_reference and other.variant != timing.variant
        if named and (ratio := peers.ratio(timing, other)):
            ratios.setdefault(clean(other.variant, 24), ratio)
    return ratios


def _backend(timing: Timing) -> str:
    """``flash`` of ``sdpa-flash``; ``sdpa`` where PyTorch chose for itself."""
    return timing.variant.lower().removeprefix("sdpa-") or "sdpa"


def _backend_label(timing: Timing) -> str:
    """PyTorch's attention by its backend; another reference by its own name."""
    if timing.variant.lower().startswith("sdpa-"):
        backend = _backend(timing)
        return f"SDPA {BACKENDS.get(backend, backend)}"
    if "sdpa" in f"{timing.name} {timing.variant}".lower():
        return "SDPA"
    return "PyTorch" if timing.variant.lower() in ("", "pytorch", "torch") else timing.variant


def tables(rows: list[Row]) -> Iterator[Table]:
    """The rows by machine, case, mode and unit."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.machine, row.case, row.mode, row.unit), []).append(row)
    # The mission first, then as measured; a case without a kernel of ours has no place at the top.
    ordered = sorted(groups.items(), key=lambda g: (all(r.is_reference for r in g[1]), g[0][1] != MISSION))
    for (machine, case, mode, unit), members in ordered:
        yield Table(machine, case, mode, unit, tuple(_arranged(members)))


def _arranged(members: list[Row]) -> list[Row]:
    """Ours, the fastest first; then each reference once, as timed beside the fastest of ours."""
    ours = sorted((r for r in members if not r.is_reference), key=lambda r: (r.typical is None, r.typical or 0.0))
    references: dict[str, Row] = {}
    beside = [r for r in members if ours and (r.run, r.document) == (ours[0].run, ours[0].document)]
    for row in [*beside, *members]:
        if row.is_reference:
            references.setdefault(row.label, row)
    return [*ours, *sorted(references.values(), key=lambda r: r.typical or 0.0)]


def _correctness(content: dict[str, Any], before: Correctness | None) -> Correctness:
    passed, total, skipped, worst = (
        number(part(content, "summary", key)) for key in ("passed", "total", "skipped", "max_err")
    )
    one = Correctness(int(passed or 0), int(total or 0), worst, int(skipped or 0))
    return one if before is None else before.with_more(one)


def build(shown: Iterable[Shown], comparison: Iterable[Comparison] = ()) -> Report:
    """Everything a report says of ``shown``; ``comparison``: of the first of several with each other one."""
    runs = list(shown)
    return Report(
        runs=tuple(run_part(one) for one in runs),
        tables=tuple(tables([row for one in runs for row in rows(one, several=len(runs) > 1)])),
        profiles=tuple(profile for one in runs for profile in profiled(one)),
        tunings=tuple(search for one in runs for search in tuned(one)),
        goals=tuple(goal for one in runs for goal in _goals(one)),
        comparison=tuple(comparison),
    )


def _goals(shown: Shown) -> Iterator[Goal]:
    for document in shown.documents.of("metrics"):
        met, text, name = (part(document.content, "goal", key) for key in ("met", "text", "label"))
        if isinstance(met, bool) and text:
            yield Goal(met, clean(text, 200), clean(name or "", 60))


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
