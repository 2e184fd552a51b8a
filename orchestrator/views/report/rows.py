"""Timings of the benchmark documents, beside the references and what the checks say of the kernel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.base.sanitize import clean
from orchestrator.results.documents import Document, label, objects, part
from orchestrator.results.levers.grades import grade
from orchestrator.results.look import Shown
from orchestrator.results.timings import Ratio, Timing, entries, number, ratio_of
from orchestrator.views.report.model import MISSION, NO_GPU, Correctness, Row, Table
from orchestrator.views.report.run_parts import gpu_of

#: A backend's name in a report, by what follows ``sdpa-`` in a variant's.
BACKENDS = {"flash": "flash", "math": "math", "cudnn": "cuDNN", "efficient": "efficient"}


def rows(shown: Shown, *, several: bool) -> Iterable[Row]:
    checks = {label(d): _correctness(d.content) for d in shown.documents.of("correctness")}
    only = next(iter(checks.values())) if len(checks) == 1 else None
    suffix = f" ({shown.record.run_id[-6:]})" if several else ""
    gpu = gpu_of(shown)
    for document in shown.documents.of("benchmark"):
        check = checks.get(label(document), only)
        found = entries(document.content)
        raw = objects(document.content.get("benchmarks"))
        for timing, entry in zip(found, raw, strict=True):
            yield _row(shown, document, timing, entry, found, check, suffix, gpu)


def _row(
    shown: Shown,
    document: Document,
    timing: Timing,
    entry: dict[str, Any],
    found: list[Timing],
    check: Correctness | None,
    suffix: str,
    gpu: str,
) -> Row:
    named = timing.variant or timing.name
    ours = not timing.is_reference
    if ours and timing.variant and document.content.get("label"):
        named = str(document.content["label"])
    against, best = _against(timing, found, document.content) if ours else ({}, "")
    case = timing.case if timing.variant else ""
    p50 = timing.p50
    device = str(document.content.get("device") or gpu)
    return Row(
        run=shown.record.run_id,
        machine=gpu or clean(device, 60) or NO_GPU,
        document=document.path,
        label=clean(_backend_label(timing) if timing.is_reference else named, 60) + (suffix if ours else ""),
        case=clean(case, 60),
        mode=clean(timing.mode, 20),
        unit=clean(timing.unit, 8),
        is_reference=timing.is_reference,
        stats=timing.stats,
        samples=_samples(entry),
        shape=timing.shape,
        against=against,
        best_name=best,
        roofline_pct=number(part(entry, "roofline", "pct")),
        roofline_bound=_word(part(entry, "roofline", "bound")),
        launch_floor_us=number(part(entry, "roofline", "floors_us", "launch")),
        tflops=number(part(entry, "roofline", "tflops")),
        error=clean(timing.error, 200),
        correctness=check if ours else None,
        grade=grade(p50, device) if ours and p50 is not None and case == MISSION and timing.unit == "us" else None,
    )


def _against(timing: Timing, found: list[Timing], content: dict[str, Any]) -> tuple[dict[str, Ratio], str]:
    peers = [
        t for t in found
        if t.is_reference and t.p50 and (t.case, t.mode, t.unit) == (timing.case, timing.mode, timing.unit)
    ]  # fmt: skip
    ratios: dict[str, Ratio] = {}
    for peer in peers:
        ratio = ratio_of(timing, peer, content)
        if ratio:
            ratios[_backend(peer)] = ratio
    best = min(peers, key=lambda t: t.p50 or 0.0, default=None)
    if best and (ratio := ratios.get(_backend(best))):
        ratios["best"] = ratio
    return ratios, clean(_backend_label(best), 40) if best else ""


def _backend(timing: Timing) -> str:
    """``flash`` of ``sdpa-flash``; ``sdpa`` where PyTorch chose for itself."""
    return timing.variant.lower().removeprefix("sdpa-") or "sdpa"


def _backend_label(timing: Timing) -> str:
    backend = _backend(timing)
    return f"SDPA {BACKENDS.get(backend, backend)}" if timing.variant.lower().startswith("sdpa-") else "SDPA"


def _samples(entry: dict[str, Any]) -> tuple[float, ...]:
    given = entry.get("samples")
    return tuple(v for s in given[:100_000] if (v := number(s)) is not None) if isinstance(given, list) else ()


def tables(rows: list[Row]) -> Iterable[Table]:
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
    summary = part(content, "summary")
    rms = [v for c in objects(content.get("cases")) if (v := number(c.get("rel_rms"))) is not None]
    return Correctness(
        int(number(part(summary, "passed")) or 0),
        int(number(part(summary, "total")) or 0),
        number(part(summary, "max_err")),
        max(rms, default=None),
        int(number(part(summary, "skipped")) or 0),
    )


def _word(value: object) -> str | None:
    return clean(value, 20) if isinstance(value, str) else None
