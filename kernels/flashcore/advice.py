"""What FlashCore's authors say to figures, in the form that fcctl's reports know from any repository's documents.

``findings`` of a kernel (of a build or a profile) and of a benchmark's row, ``targets`` of a profile's metrics, and the
``grade`` of a row. docs/report.md describes these fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flashcore.grades import grade
from flashcore.levers import WARPS_PER_SM, Measured, findings

#: What metrics of a fused kernel should reach at least.
TARGETS = {"tensor_active_pct": 50.0, "dram_throughput_pct": 50.0}
MISSION = "mission"


def of_profile(kernel: Mapping[str, Any], sms: float | None = None) -> list[dict[str, Any]]:
    """Of a profiled kernel on a GPU with ``sms`` SMs; without that number, two rules say nothing."""
    metrics = {name: value for name, value in (kernel.get("metrics") or {}).items() if value is not None}
    capability, dynamic = str(kernel.get("compute_capability") or ""), metrics.get("smem_dynamic")
    return _found(
        Measured(
            tensor_pct=metrics.get("tensor_active_pct"),
            sm_pct=metrics.get("sm_throughput_pct"),
            dram_pct=metrics.get("dram_throughput_pct"),
            l2_hit_pct=metrics.get("l2_hit_pct"),
            occupancy_pct=metrics.get("occupancy_pct"),
            theoretical_occupancy_pct=metrics.get("theoretical_occupancy_pct"),
            warps_per_sm=WARPS_PER_SM.get(capability, 64) if capability else None,
            registers=metrics.get("registers"),
            smem_bytes=None if dynamic is None else dynamic + metrics.get("smem_static", 0.0),
            threads=math.prod(kernel["block"]) if kernel.get("block") else None,
            blocks=math.prod(kernel["grid"]) if kernel.get("grid") else None,
            sms=sms,
            stalls={reason: warps for reason, warps in (kernel.get("stalls") or {}).items() if warps > 0},
        )
    )


def of_build(kernel: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of a compiled kernel."""
    spilled = (kernel.get("spill_store_bytes") or 0) + (kernel.get("spill_load_bytes") or 0)
    return _found(Measured(spill_bytes=spilled, stack_bytes=kernel.get("stack_bytes")))


def of_row(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of a kernel's time beside its roofline."""
    line = row.get("roofline") or {}
    return _found(
        Measured(
            p50_us=row["stats"]["p50"],
            launch_floor_us=(line.get("floors_us") or {}).get("launch"),
            roofline_pct=line.get("pct"),
            roofline_bound=line.get("bound"),
        )
    )


def grade_of(row: Mapping[str, Any], shape: str, device: str | None) -> dict[str, Any] | None:
    """Of a kernel's time on the mission shape."""
    given = grade(row["stats"]["p50"], device) if shape == MISSION else None
    return asdict(given) if given else None


def _found(measured: Measured) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in findings(measured, None)]
