"""FlashCore's targets, levers and grades: fields of its documents that fcctl's reports show (docs/report.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flashcore.grades import grade

#: What metrics of a fused kernel should reach at least.
TARGETS = {"tensor_active_pct": 50.0, "dram_throughput_pct": 50.0}
#: The most registers a thread should take, by variant: the user's figures.
REGISTERS = {"wmma": 120.0, "fused": 96.0}
#: What to do about a bottleneck, by the rule that found it.
LEVERS = {
    "scalar_fallback": "move both products to the tensor cores (mma.sync or WMMA), and check for a remaining scalar "
    "path",
    "memory_bound": "move fewer bytes: use larger query tiles per pass over K and V, and order the blocks for L2 reuse",
    "tensor_bound": "this algorithm is close to its limit: use FP8 products, or fewer products (skip masked tiles)",
    "underfilled": "split the keys over more blocks (split-KV with a reduction), or use smaller query tiles",
    "shared_latency": "keep probabilities in registers, load with ldmatrix.x4, avoid bank conflicts with a swizzle",
    "shared_throughput": "use fewer and wider accesses: 16 bytes per thread, ldmatrix.x4, reuse fragments across rows",
    "dependencies": "interleave two tiles: compute the softmax of one during the products of the other",
    "math_pipe": "use fewer instructions around the products: lazy rescaling, exp2 with a folded scale, wider mma "
    "shapes",
}
MISSION = "mission"


def targets(variant: str) -> dict[str, float]:
    """The targets of a variant's profile: an upper limit for registers, a lower limit for every other metric."""
    return {**TARGETS, **({"registers": REGISTERS[variant]} if variant in REGISTERS else {})}


def grade_of(row: Mapping[str, Any], shape: str, device: str | None) -> dict[str, Any] | None:
    """Of a kernel's time on the mission shape."""
    given = grade(row["stats"]["p50"], device) if shape == MISSION else None
    return asdict(given) if given else None
