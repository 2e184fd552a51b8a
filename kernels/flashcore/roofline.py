"""The least time a shape can take on this GPU, by its measured ceilings (:mod:`flashcore.peaks`).

=======  ===========================================================================================================
tensor   4 B H S S_kv D floating point operations at the rate of ``mma.sync`` with FP32 sums, where all keys are seen
exp2     B H S S_kv of them; likewise
memory   Q, K and V read (and, if caches are warm, O written) once: cold at the rate of DRAM, else as much as the L2
         cache holds at the rate of that. Cold, what is written may stay in the cache, and is not counted.
launch   an empty kernel in the same mode
=======  ===========================================================================================================

On a processor there is one, ``arithmetic``: the same operations at the rate of PyTorch's fastest matrix product.

These overlap at best, so the floor is the largest of them. It is a floor for this algorithm in FP16 on these units, at
the clock that they were measured at; a kernel that computes exponentials elsewhere may pass the one of ``exp2``, none
can pass ``tensor`` at that clock. What no kernel can do at any clock is decided in clocks (:func:`impossible`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashcore.errors import UsageError
from flashcore.shapes import Shape

#: Of an ``mma.sync.m16n8k16``; and of an SM, on every chip from sm_80 on.
MMA_FLOP, SUB_PARTITIONS = 2 * 16 * 8 * 16, 4
#: What must be known of a GPU.
NEEDED = (
    "mma_f32_tflops", "mma_f32_cycles", "mma_f16_cycles", "max_clock_mhz", "sms", "exp2_gops", "dram_copy_gbps",
    "l2_copy_gbps", "empty_graph_us", "empty_eager_us", "l2_bytes",
)  # fmt: skip


def load(path: str) -> dict[str, Any]:
    """The ``metrics`` document that ``python -m flashcore peaks`` wrote to ``path``.

    Raises:
        UsageError: no such file, or not such a document.
    """
    hint = "write one with python -m flashcore peaks --out DIR, or remove --peaks to measure now"
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        metrics = document["metrics"]
        missing = [n for n in NEEDED if not (isinstance(metrics.get(n), (int, float)) and metrics[n] > 0)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
        raise UsageError(f"{path} is not a document of `peaks`", cause=str(e), hint=hint) from e
    if missing:
        raise UsageError(f"{path} has no {', '.join(missing)}", hint=hint)
    return dict(document)


def floors(shape: Shape, mode: str, ceilings: Mapping[str, float]) -> dict[str, float]:
    """Microseconds per launch that each ceiling asks for, by the names above; ``mode`` is hot, cold, eager or wall."""
    scores = shape.scores
    if mode == "wall":
        return {"arithmetic": 4 * scores * shape.D / ceilings["matmul_tflops"] * 1e-6}
    traffic, warm = float(shape.input_bytes), 0.0
    if mode != "cold":
        traffic += 2 * shape.B * shape.H * shape.S * shape.D
        warm = min(traffic, ceilings["l2_bytes"])
    return {
        "tensor": 4 * scores * shape.D / ceilings["mma_f32_tflops"] * 1e-6,
        "exp2": scores / ceilings["exp2_gops"] * 1e-3,
        "memory": ((traffic - warm) / ceilings["dram_copy_gbps"] + warm / ceilings["l2_copy_gbps"]) * 1e-3,
        "launch": ceilings["empty_eager_us" if mode == "eager" else "empty_graph_us"],
    }


def distance(shape: Shape, mode: str, ceilings: Mapping[str, float], p50_us: float) -> dict[str, Any]:
    """A row's ``roofline``: the floor, what sets it, and how much of it ``p50_us`` reaches."""
    each = floors(shape, mode, ceilings)
    bound = max(each, key=lambda name: each[name])
    return {
        "us": round(each[bound], 4),
        "bound": bound,
        "pct": round(100 * each[bound] / p50_us, 2) if p50_us > 0 else None,
        "floors_us": {name: round(us, 4) for name, us in each.items()},
        "tflops": round(4 * shape.scores * shape.D / p50_us * 1e-6, 3) if p50_us else None,
    }


def impossible(
    shape: Shape, mode: str, ceilings: Mapping[str, float], p50_us: float, bits: int = 16, slack: float = 0.98
) -> bool:
    """Whether ``p50_us`` is below what the arithmetic needs: then the measurement is wrong.

    On a GPU that is counted in clocks of tensor instructions, and the clock is the highest that the GPU may have, so
    that an honest kernel is not refused. Operands of half as many ``bits``, on average, make twice the rate. ``slack``
    is for what the loops of :mod:`flashcore.peaks` do beside their instructions.
    """
    scores = shape.scores
    if mode == "wall":
        least = 0.9 * floors(shape, mode, ceilings)["arithmetic"]  # its clock may have risen
    else:
        each = min(ceilings["mma_f32_cycles"], ceilings["mma_f16_cycles"]) * bits / 16
        clocks = 4 * scores * shape.D / MMA_FLOP / (SUB_PARTITIONS * ceilings["sms"]) * each
        least = slack * clocks / ceilings["max_clock_mhz"]
    return not math.isfinite(p50_us) or p50_us < least
