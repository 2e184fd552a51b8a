"""Metrics of Nsight Compute that profiles, gates, reports and levers know: the one place to add one.

Other chips and versions have other names for them; here each has one. A profile without it has null, never 0.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple

_ACTIVE = ".avg.pct_of_peak_sustained_active"
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_DRAM = ("dram__throughput" + _ELAPSED, "gpu__dram_throughput" + _ELAPSED)
_HMMA = "sm__pipe_tensor_op_hmma_cycles_active"
_TENSOR = (_HMMA + "_v2", _HMMA, "sm__pipe_tensor_cycles_active_v2", "sm__pipe_tensor_cycles_active")
_IMMA = ("sm__pipe_tensor_op_imma_cycles_active_v2", "sm__pipe_tensor_op_imma_cycles_active")
_INSTRUCTIONS = ("sm__inst_executed_pipe_tensor_op_hmma_v2.sum", "sm__inst_executed_pipe_tensor_op_hmma.sum")


class Metric(NamedTuple):
    """``names`` in Nsight Compute: the first present one counts. ``unit``: %, B, or empty for a count. Reports have a
    column for each metric with a ``title``."""

    key: str
    unit: str
    names: Tuple[str, ...]
    title: str = ""


METRICS = (
    Metric("tensor_active_pct", "%", tuple(n + _ACTIVE for n in _TENSOR), "tensor cores"),
    Metric("tensor_elapsed_pct", "%", tuple(n + _ELAPSED for n in _TENSOR)),
    Metric("tensor_int8_active_pct", "%", tuple(n + _ACTIVE for n in _IMMA)),
    Metric("tensor_instructions", "", _INSTRUCTIONS),
    Metric("sm_throughput_pct", "%", ("sm__throughput" + _ELAPSED,), "SM throughput"),
    Metric("memory_throughput_pct", "%", ("gpu__compute_memory_throughput" + _ELAPSED,)),
    Metric("occupancy_pct", "%", ("sm__warps_active" + _ACTIVE,), "occupancy"),
    Metric("theoretical_occupancy_pct", "%", ("sm__maximum_warps_per_active_cycle_pct",)),
    Metric("dram_throughput_pct", "%", _DRAM, "DRAM throughput"),
    Metric("dram_bytes_read", "B", ("dram__bytes_read.sum",)),
    Metric("dram_bytes_written", "B", ("dram__bytes_write.sum",)),
    Metric("l2_hit_pct", "%", ("lts__t_sector_hit_rate.pct",), "L2 hits"),
    Metric("l1_hit_pct", "%", ("l1tex__t_sector_hit_rate.pct",)),
    Metric("registers", "", ("launch__registers_per_thread",), "registers"),
    Metric("smem_static", "B", ("launch__shared_mem_per_block_static",)),
    Metric("smem_dynamic", "B", ("launch__shared_mem_per_block_dynamic",)),
)
