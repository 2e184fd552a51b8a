"""Tilings of the flagship whose results once were a matter of luck: a warp left its output where its group's keys were,
while another warp of the group still read them in its last step. None of them is in the default library.
"""

from __future__ import annotations

#: TILE_M = 2 * TILE_N, and the output fits where the keys of four stages were, exactly; several warps a group, not
#: pipelined. Under a causal mask some warps skip the last step, so these were wrong nearly always.
SKIPPING = {
    "32-rows-a-warp": {
        "TILE_M": 128, "WARP_ROWS": 32, "TILE_N": 64, "WARPS_KV": 2, "STAGES": 4, "MIN_BLOCKS": 1, "TENSOR_SUMS": 1,
        "SHARED_Q": 1,
    },
    "2-groups": {"TILE_M": 32, "TILE_N": 16, "WARPS_KV": 2, "STAGES": 4},
    "8-groups": {"TILE_M": 32, "TILE_N": 16, "WARPS_KV": 8, "STAGES": 4, "STAGGERED": 1, "TENSOR_SUMS": 1},
    "4-groups": {
        "TILE_M": 64, "TILE_N": 32, "WARPS_KV": 4, "STAGES": 4, "MIN_BLOCKS": 1, "STAGGERED": 1, "TENSOR_SUMS": 1,
    },
}  # fmt: skip

#: No warp skips what another one needs, so only one that fell behind by a step read wrong keys.
BEHIND = {
    "2-stages": {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 2},
    "3-stages": {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 3},
    "large-heads": {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 2, "HEAD_DIM": 128, "BFLOAT16": 1},
}
