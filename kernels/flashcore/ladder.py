"""The ladder: from a scalar kernel to the flagship, a rung for each idea, named by it.

A rung is a variant, or the flagship with settings that leave out the ideas above. Its name is an alias of that label
wherever a variant is asked for; results have the label.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LadderStep:
    name: str
    label: str
    below: str | None  # the name of the rung that it builds on. A step up that is slower is a negative result
    idea: str


_SHORT = "flagship:TILE_M=32+TILE_N=128+WARPS_KV=4+MIN_BLOCKS=1"  # for short sequences
_LONG = "flagship:TILE_M=128+WARP_ROWS=32+STAGES=2"
RUNGS = (
    LadderStep("scalar", "baseline", None, "online softmax, a block for each query row"),
    LadderStep("tensor_cores", "wmma", "scalar", "both products on tensor cores"),
    LadderStep("copy_ahead", "stage2", "tensor_cores", "the next tiles are copied while this one is used"),
    LadderStep("registers", "fused", "tensor_cores", "weights stay in registers"),
    LadderStep("producers", "stage5", "registers", "producer warps copy for consumer warps, in persistent blocks"),
    LadderStep("groups", "flagship:TILE_M=32+TILE_N=32+WARPS_KV=4+STAGES=2", "registers",
               "groups of warps with keys and barriers of their own"),
    LadderStep("one_burst", _SHORT, "groups", "all keys of a short sequence are loaded at once"),
    LadderStep("staggered", _SHORT + "+STAGGERED=1", "one_burst", "half of the groups copy while the others compute"),
    LadderStep("tensor_sums", "flagship:TILE_M=64+STAGES=2+TENSOR_SUMS=1", "registers",
               "row sums on tensor cores, too"),
    LadderStep("wide_rows", _LONG + "+TENSOR_SUMS=1", "tensor_sums",
               "32 rows a warp: half of the reads of shared memory"),
    LadderStep("pipelined", _LONG + "+PIPELINED=1+TENSOR_SUMS=1", "wide_rows",
               "the next tile's products between this one's exponentials"),
    LadderStep("chosen", "flagship", "registers", "a tiling for each shape and device"),
)  # fmt: skip
NAMED = {rung.name: rung for rung in RUNGS}
#: In the order of the ladder: which label each builds on.
BUILDS_ON = {rung.label: NAMED[rung.below].label if rung.below else None for rung in RUNGS}
IDEAS = {rung.label: rung.idea for rung in RUNGS}
#: The names of rungs that are the flagship with settings, by label.
ALIASES = {rung.label: rung.name for rung in RUNGS if ":" in rung.label}
