"""A kernel's grade: p50 of the mission shape (B=1 H=8 S=512 D=64) to a letter and the next step to take.

The bounds are FlashCore's own and mean an L4; on any other GPU there is no grade.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GPU = "NVIDIA L4"


@dataclass(frozen=True)
class Grade:
    letter: str
    next_step: str


#: Up to this p50 in microseconds, the grade is this one. Faster than the 40 us where A+ begins is A+, too.
_GRADES = (
    (50.0, Grade("A+", "search the parameters: fcctl run phase4")),
    (70.0, Grade("A", "give every SM work: split the keys further, or make the blocks persistent")),
    (
        100.0,
        Grade("B+", "overlap copies with arithmetic: use cp.async in two stages, and a swizzle without bank conflicts"),
    ),
    (150.0, Grade("B", "keep probabilities in registers instead of shared memory: use mma.sync instead of WMMA")),
    (
        200.0,
        Grade("C", "move both products to the tensor cores; tensor_active_pct of the profile should be above 50 %"),
    ),
)
_LAST = Grade(
    "D", "profile the kernel: look for a scalar fallback, for spills (see the build's gates) and for uncoalesced loads"
)


def grade(p50_us: float, gpu_name: str | None) -> Grade | None:
    """The grade of ``p50_us`` on ``gpu_name``; None off the L4, and where there is no such time."""
    if gpu_name != GPU or not math.isfinite(p50_us) or p50_us <= 0:
        return None
    return next((found for bound, found in _GRADES if p50_us <= bound), _LAST)
