"""Runs to a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean, listed, number, objects, part
from orchestrator.results.documents import Document, label
from orchestrator.results.look import Shown
from orchestrator.results.records import IMPORTED, UNVERIFIED
from orchestrator.results.telemetry import load as load_telemetry
from orchestrator.results.timings import Peers, Ratio, Timing, entries
from orchestrator.views.report.model import (
    MISSION,
    NO_GPU,
    Correctness,
    Goal,
    Grade,
    Report,
    Row,
    RunPart,
    Table,
)
from orchestrator.views.report.profiles import profiled
from orchestrator.views.report.shapes import by_size
from orchestrator.views.report.tuning import tuned

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
    checks = {label(d): _correctness(d.content) for d in shown.documents.of("correctness")}
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


def _correctness(content: dict[str, Any]) -> Correctness:
    passed, total, skipped, worst = (
        number(part(content, "summary", key)) for key in ("passed", "total", "skipped", "max_err")
    )
    return Correctness(int(passed or 0), int(total or 0), worst, int(skipped or 0))


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
