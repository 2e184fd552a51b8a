"""Profile documents beside the build's figures and the benchmark's, so that the rules can look at all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from orchestrator.base.sanitize import clean
from orchestrator.results.documents import Document, label, objects, part
from orchestrator.results.levers.levers import WARPS_PER_SM, Measured, findings
from orchestrator.results.look import Shown
from orchestrator.results.timings import number, shape_of
from orchestrator.views.report.model import Profiled, Row

#: FlashCore's targets for a fused kernel: percent of the tensor pipe's, and of DRAM's peak.
TENSOR_TARGET_PCT = 50.0
DRAM_TARGET_PCT = 50.0


def profiled(shown: Shown, ceilings: dict[str, float], rows: list[Row]) -> Iterator[Profiled]:
    """Every profiled kernel of a run; and each variant of which there is a build or a timing, but no profile."""
    mine = [r for r in rows if r.run == shown.record.run_id and not r.is_reference]
    seen = set()
    for document in shown.documents.of("profile"):
        seen.add(label(document))
        for kernel in objects(document.content.get("kernels")):
            yield _kernel(shown, document, kernel, ceilings, mine)
    for document in shown.documents.of("build"):
        name = label(document)
        if name and name not in seen:
            seen.add(name)
            spilled, stack = _local_memory(shown, name, "")
            found = findings(Measured(spill_bytes=spilled, stack_bytes=stack))
            if found:
                yield Profiled(shown.record.run_id, clean(name, 60), "", "", {}, {}, tuple(found))


def _kernel(
    shown: Shown,
    document: Document,
    kernel: dict[str, Any],
    ceilings: dict[str, float],
    rows: list[Row],
) -> Profiled:
    name = label(document)
    given = part(kernel, "metrics")
    metrics = {str(k): v for k, raw in given.items() if (v := number(raw)) is not None} if _is(given) else {}
    waits = part(kernel, "stalls")
    stalls = {clean(k, 40): v for k, raw in waits.items() if (v := number(raw)) and v > 0} if _is(waits) else {}
    capability = str(kernel.get("compute_capability") or "")
    shape = shape_of(document.content.get("shape"))
    row = _timed(rows, name, str(part(document.content, "shape", "name") or ""), shape)
    spilled, stack = _local_memory(shown, name, capability)
    measured = Measured(
        tensor_pct=metrics.get("tensor_active_pct"),
        sm_pct=metrics.get("sm_throughput_pct"),
        dram_pct=metrics.get("dram_throughput_pct"),
        l2_hit_pct=metrics.get("l2_hit_pct"),
        occupancy_pct=metrics.get("occupancy_pct"),
        theoretical_occupancy_pct=metrics.get("theoretical_occupancy_pct"),
        warps_per_sm=WARPS_PER_SM.get(capability, 64) if capability else None,
        registers=metrics.get("registers"),
        smem_bytes=metrics.get("smem_static", 0.0) + metrics["smem_dynamic"] if "smem_dynamic" in metrics else None,
        threads=_product(kernel.get("block")),
        blocks=_product(kernel.get("grid")),
        sms=ceilings.get("sms"),
        stalls=stalls,
        p50_us=row.p50 if row and row.unit == "us" else None,
        launch_floor_us=row.launch_floor_us if row else None,
        roofline_pct=row.roofline_pct if row else None,
        roofline_bound=row.roofline_bound if row else None,
        spill_bytes=spilled,
        stack_bytes=stack,
    )
    return Profiled(
        shown.record.run_id,
        clean(name, 60) or clean(kernel.get("name") or "?", 60),
        clean(kernel.get("name") or "?", 80),
        _shape_text(document, shape),
        metrics,
        stalls,
        tuple(findings(measured)),
    )


def _local_memory(shown: Shown, name: str, capability: str) -> tuple[float | None, float | None]:
    """Bytes of spills and of stack, the worst of the variant's kernels, on this GPU's architecture if it is there."""
    arch = f"sm_{capability.replace('.', '')}"
    kernels = [
        k for d in shown.documents.of("build") if label(d) == name for k in objects(d.content.get("kernels"))
    ]  # fmt: skip
    kernels = [k for k in kernels if k.get("arch") == arch] or kernels
    spilled = [(number(k.get("spill_store_bytes")) or 0) + (number(k.get("spill_load_bytes")) or 0) for k in kernels]
    stacks = [number(k.get("stack_bytes")) or 0 for k in kernels]
    return max(spilled, default=None), max(stacks, default=None)


def _timed(rows: list[Row], variant: str, name: str, shape: dict[str, int] | None) -> Row | None:
    """The first timing (the mode that comes first) of the same variant on the same shape."""
    for row in rows:
        same = row.shape == shape if shape else row.case == name
        if same and (row.label == variant or row.label.startswith(f"{variant} (")):
            return row
    return None


def _shape_text(document: Document, shape: dict[str, int] | None) -> str:
    name = part(document.content, "shape", "name")
    sizes = ",".join(str(shape[k]) for k in "BHSD") if shape else ""
    if isinstance(name, str) and name and name != sizes:
        return clean(f"{name} ({sizes})" if sizes else name, 60)
    return sizes


def _product(value: object) -> int | None:
    if not isinstance(value, list) or not value or not all(type(v) is int and 0 < v < 2**31 for v in value):
        return None
    return math.prod(value)


def _is(value: object) -> bool:
    return isinstance(value, dict)
