"""What this GPU can do at most, measured: the ceilings that a kernel's time is held against.

Datasheets do not say which clock they mean, nor whether FP16 products with FP32 sums run at the full rate; a short loop
does. An idle GPU runs at a low clock and takes a while to raise it, so each loop runs for :data:`PREHEAT_S` first. Then
each block counts its own clocks and nanoseconds: its rate is what it does in a clock, times the clock that it had. The
``metrics`` document has, as flat numbers that a gate can read:

=====================================  =============================================================================
mma_f32_tflops, mma_f16_tflops         ``mma.sync.m16n8k16`` with FP32 and with FP16 sums, of zeros: little power
mma_f32_tflops_sustained               the same of random values for some seconds, as far as power and heat let it
mma_f32_cycles, mma_f16_cycles         clocks between two such instructions of one SM sub-partition
mma_f32_over_f16_cycles                2 where FP32 sums run at half the rate, 1 where they run at the full one
exp2_gops, exp2_per_clock_sm           ``ex2.approx``, 10^9 a second; and a clock and SM
clock_mhz, clock_mhz_sustained         of the loops of mma_f32_tflops and mma_f32_tflops_sustained
max_clock_mhz                          that this GPU may have at most, as its driver tells
dram_copy_gbps, l2_copy_gbps           bytes read plus bytes written, 10^9 a second
empty_graph_us                         an empty kernel in a replayed CUDA graph
empty_eager_us                         a call of an empty kernel between two events, on an idle GPU
empty_queue_us                         such a call as one of many in a row: what it costs the processor
sms, l2_bytes                          as the driver tells
=====================================  =============================================================================

The empty kernel is a :class:`flashcore.launch.Kernel` like any other, called with three tensors for a new output: what
its calls take is the floor of every eager row, in C or through ctypes, whichever way calls are made here.
"""

from __future__ import annotations

import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from flashcore import documents, inputs, timing
from flashcore.build import build
from flashcore.clocks import Clocks
from flashcore.errors import LaunchFailed, Unavailable
from flashcore.launch import Kernel
from flashcore.registry import CSRC
from flashcore.roofline import MMA_FLOP, SUB_PARTITIONS
from flashcore.variant import Variant

#: Not attention, hence not among the registry's variants; built and cached like one.
SOURCE = Variant(name="peaks", device="cuda", source=CSRC / "peaks.cu", summary="measured ceilings of this GPU")

LANES = 32
PREHEAT_S, SUSTAINED_S = 0.75, 3.0
BURST_US = 5000.0
REPEATS = 10
EMPTY_LAUNCHES = 500
MMA_F32, MMA_F16, EXP2, MMA_F32_RANDOM = range(4)
#: Rows and columns of a processor's matrix product, and how many are timed.
MATMUL, MATMULS = 256, 200


def run() -> dict[str, Any]:
    """Measure all ceilings of torch's current GPU, in some seconds; returns the ``metrics`` document.

    Raises:
        Unavailable: no GPU, or no nvcc to compile the loops with.
        LaunchFailed: CUDA refused a launch.
    """
    if not torch.cuda.is_available():
        raise Unavailable(
            "this machine has no GPU to measure", hint="run this on a GPU machine: fcctl run peaks --on HOST"
        )
    gpu = _Gpu()
    metrics = {**gpu.issue(), **gpu.copies(), **gpu.launches(), "sms": gpu.sms, "l2_bytes": gpu.l2_bytes}
    return documents.document(
        "metrics",
        metrics={name: round(value, 4) for name, value in metrics.items()},
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        clocks=gpu.reading,
    )


def processor() -> dict[str, Any]:
    """The one ceiling of a processor: matmul_tflops, of PyTorch's fastest matrix product on one core, times the cores;
    a ``metrics`` document. One core, and products of less than a millisecond, since other work on the machine must not
    make a ceiling of what is none."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fastest = min(map(_matmul_s, (torch.float32, torch.bfloat16)))
    finally:
        torch.set_num_threads(threads)
    tflops = cores * 2 * MATMUL**3 / fastest * 1e-12
    return documents.document("metrics", metrics={"matmul_tflops": tflops}, device="cpu", torch=torch.__version__)


def _matmul_s(dtype: torch.dtype) -> float:
    a, b = (torch.ones(MATMUL, MATMUL, dtype=dtype) for _ in range(2))
    times = []
    for _ in range(MATMULS):
        started = time.perf_counter()
        torch.mm(a, b)
        times.append(time.perf_counter() - started)
    return min(times)


@dataclass(frozen=True)
class Rate:
    """Of warp instructions: clocks of a sub-partition for each, how many a second on the whole GPU, at which clock."""

    cycles: float
    per_s: float
    mhz: float


class _Gpu:
    def __init__(self) -> None:
        built = build(SOURCE)
        self.empty = Kernel(built)
        self.library = ctypes.PyDLL(str(built.library))
        self.library.flashcore_error.restype = ctypes.c_char_p
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.sms = int(properties.multi_processor_count)
        self.l2_bytes = int(properties.L2_cache_size)
        self.per_round = self.library.flashcore_peak_warps() * self.library.flashcore_peak_chains()
        self.sink = torch.zeros(1, device="cuda")
        self.clocks = Clocks()
        self.reading: dict[str, Any] | None = None  # under load

    # ---------------------------------------------------------------------------------------- tensor cores and exp2
    def issue(self) -> dict[str, float]:
        f32, f16, exp2 = (self._issue(kind) for kind in (MMA_F32, MMA_F16, EXP2))
        random = self._issue(MMA_F32_RANDOM, SUSTAINED_S)
        flop, lanes = MMA_FLOP * 1e-12, LANES * 1e-9
        return {
            "mma_f32_tflops": f32.per_s * flop,
            "mma_f32_tflops_sustained": random.per_s * flop,
            "mma_f32_cycles": f32.cycles,
            "mma_f16_tflops": f16.per_s * flop,
            "mma_f16_cycles": f16.cycles,
            "mma_f32_over_f16_cycles": f32.cycles / f16.cycles,
            "exp2_gops": exp2.per_s * lanes,
            "exp2_per_clock_sm": LANES * SUB_PARTITIONS / exp2.cycles,
            "clock_mhz": f32.mhz,
            "clock_mhz_sustained": random.mhz,
            "max_clock_mhz": max(self.clocks.most_mhz() or 0, *(rate.mhz for rate in (f32, f16, exp2, random))),
        }

    def _issue(self, kind: int, preheat_s: float = PREHEAT_S) -> Rate:
        """Of the last :data:`REPEATS` of so many launches, without a pause, that the first of these ended after
        ``preheat_s``."""
        took = torch.zeros(1, self.sms, 2, dtype=torch.int64, device="cuda")

        def launch(rounds: int, number: int = 0) -> None:
            self._ok(
                self.library.flashcore_peak_issue(
                    kind, self.sms, rounds, _pointer(self.sink), _pointer(took[number]), _stream()
                )
            )

        rounds = _calibrate(launch, 512, BURST_US)
        launches = REPEATS + math.ceil(preheat_s * 1e6 / BURST_US)
        took = torch.zeros(launches, self.sms, 2, dtype=torch.int64, device="cuda")
        for number in range(launches):
            launch(rounds, number)
        time.sleep(preheat_s / 2)
        self.reading = self.clocks.read()
        cycles, ns = took[-REPEATS:].double().flatten(0, 1).unbind(dim=-1)
        of_sub_partition = rounds * self.per_round / SUB_PARTITIONS
        return Rate(
            cycles=statistics.median(cycles.tolist()) / of_sub_partition,
            per_s=statistics.median((1 / ns).tolist()) * rounds * self.per_round * self.sms * 1e9,
            mhz=statistics.median((cycles / ns).tolist()) * 1000,
        )

    # ---------------------------------------------------------------------------------------- memory
    def copies(self) -> dict[str, float]:
        room = torch.cuda.mem_get_info()[0] // 4
        beyond = min(max(16 * self.l2_bytes, 2**28), room) // 4096 * 4096
        within = self.l2_bytes // 8 // 4096 * 4096  # half of an H100's L2 cache is far from each SM, and holds copies
        return {"dram_copy_gbps": self._copy(beyond, 1, BURST_US), "l2_copy_gbps": self._copy(within, 0, BURST_US)}

    def _copy(self, each: int, rounds: int, burst_us: float) -> float:
        """10^9 bytes a second, both directions counted. ``rounds`` 0: as many as last ``burst_us``."""
        source, target = (torch.zeros(each, dtype=torch.uint8, device="cuda") for _ in range(2))

        def launch(times: int) -> None:
            self._ok(
                self.library.flashcore_peak_copy(
                    _pointer(source), _pointer(target), ctypes.c_int64(each), 2 * self.sms, times, _stream()
                )
            )

        rounds = rounds or _calibrate(launch, 16, burst_us)
        for _ in range(math.ceil(PREHEAT_S * 1e6 / _timed(lambda: launch(rounds)))):
            launch(rounds)
        best = min(_timed(lambda: launch(rounds)) for _ in range(REPEATS))
        return 2 * each * rounds / best * 1e-3

    # ---------------------------------------------------------------------------------------- launches
    def launches(self) -> dict[str, float]:
        tensors = empty_tensors("cuda")
        out = torch.empty_like(tensors[0])
        graph = torch.cuda.CUDAGraph()
        self.empty(*tensors, out=out)  # before the capture: the driver is asked for its function once
        with torch.cuda.graph(graph):
            for _ in range(EMPTY_LAUNCHES):
                self.empty(*tensors, out=out)
        replayed = min(_timed(graph.replay) for _ in range(REPEATS)) / EMPTY_LAUNCHES
        calls = min(_timed(lambda: [self.empty(*tensors) for _ in range(EMPTY_LAUNCHES)]) for _ in range(REPEATS))
        eager = timing.Eager(self.empty, [tensors])
        eager.lead_in()
        single = min(statistics.median(eager.sample() for _ in range(100)) for _ in range(REPEATS))
        return {
            "empty_graph_us": replayed,
            "empty_eager_us": single,
            "empty_queue_us": calls / EMPTY_LAUNCHES,
        }

    def _ok(self, code: int) -> None:
        if code:
            raise LaunchFailed(f"a peaks kernel failed to launch: {self.library.flashcore_error(code).decode()}")


def empty_tensors(device: str) -> inputs.Tensors:
    """The least that a kernel takes as q, k and v."""
    q, k, v = (torch.zeros(1, 1, 1, 64, dtype=torch.float16, device=device) for _ in range(3))
    return q, k, v


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


def _timed(work: Callable[[], object]) -> float:
    """Microseconds of device time between two events around ``work``."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1000


def _calibrate(launch: Callable[[int], None], few: int, wanted_us: float) -> int:
    """The number of rounds for which ``launch`` takes about ``wanted_us``; the search starts at ``few``."""
    rounds = few
    for _ in range(20):
        us = _timed(lambda: launch(rounds))  # noqa: B023 (called at once)
        if us >= wanted_us / 2:
            break
        rounds = min(2**24, max(2 * rounds, round(rounds * wanted_us / us)))
    return max(1, round(rounds * wanted_us / us))
