"""No two threads of a kernel touch the same shared memory without a barrier between (races.cpp of cuda_on_cpu).

Global memory is not looked at.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from flashcore.library import Args
from flashcore.registry import VARIANTS
from flashcore.variant import Variant
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import arguments

#: One for each way that a kernel's barriers can be placed.
CONFIGURATIONS: list[tuple[str, dict[str, int]]] = [
    ("baseline", {}),
    ("wmma", {}),
    ("fused", {}),
    ("fused", {"STAGES": 1, "WARPS_KV": 2, "TILE_M": 64}),
    ("stage2", {"STAGES": 3}),
    ("stage5", {"TILE_M": 32, "TILE_N": 128, "NUM_PRODUCER_WARPS": 2, "STAGES": 3}),
    ("stage5", {"TILE_N": 128, "STAGES": 3}),
    ("fp8", {"TILE_M": 32}),
    ("int8", {"TILE_M": 64}),
    ("int8", {"TILE_M": 64, "STAGES": 3, "WARP_ROWS": 16}),
    ("flagship", {"TILE_M": 64, "TILE_N": 64}),
    ("flagship", {"TILE_M": 64, "TILE_N": 32, "WARPS_KV": 2, "STAGES": 3, "PIPELINED": 1, "SHARED_Q": 1}),
    ("flagship", {"TILE_M": 32, "TILE_N": 32, "WARPS_KV": 4, "STAGES": 1, "STAGGERED": 1, "HEAD_DIM": 128}),
]

SOURCE = """
#include "tiles.cuh"
using namespace flashcore;
static __global__ void kernel(const flashcore_args a) {
  float *memory = reinterpret_cast<float *>(dynamic_shared());
  const int thread = threadIdx.x, other = thread ^ (a.B == 1 ? 1 : 32);  // of the same warp, or not
  const uint32_t place = shared_address(memory) + 16 * thread;
  switch (a.S_q) {
    case 0: memory[thread] = 1; break;
    case 1: memory[thread] = 1, __syncthreads(); break;
    case 2: memory[thread] = 1, __syncwarp(); break;
    case 3: memory[thread] = 1, reduce_max<4>(0.f); break;
    case 4: memory[thread] = 1, barrier_sync(3, 64); break;
    case 5: cp_async_16(place, a.q, true), cp_async_commit(), cp_async_wait<0>(), __syncthreads(); break;
    case 6: cp_async_16(place, a.q, true), cp_async_commit(), cp_async_wait<1>(), __syncthreads(); break;
    case 7: cp_async_16(place, a.q, true), cp_async_commit(), cp_async_wait<0>(); break;
    case 8: memory[thread] = 1, __syncthreads(), memory[other] += 1; break;
    case 9: memory[thread] = 1, __syncthreads(), memory[thread] = memory[other]; break;
  }
  static_cast<float *>(a.o)[thread] = memory[a.S_q < 5 ? other : 4 * other];
}
FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  cuda_on_cpu::launch(kernel, 1, 64, 1024, nullptr)(*args);
  return cudaGetLastError();
}
"""


def test_what_orders_memory_and_what_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.cu").write_text(SOURCE)
    small = Variant(name="small", device="cuda", source=tmp_path / "small.cu", summary="")
    library = compile_on_cpu(small, {}, tmp_path, races=True)
    memory = torch.zeros(64)
    for seed in ("1", "2"):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", seed)
        ordered = {}
        for step in range(10):
            for far in (0, 1):
                args = Args(B=1 + far, S_q=step, q=memory.data_ptr(), o=memory.data_ptr())
                code = library.flashcore_forward(args)
                assert code == 0 or library.flashcore_error(code).startswith(b"race: byte"), step
                ordered[step, far] = code == 0
        right = {(1, 0), (1, 1), (2, 0), (4, 0), (4, 1), (5, 0), (5, 1)}
        assert {key for key, value in ordered.items() if value} == right


def launch(library: ctypes.CDLL, D: int, S_q: int, S_kv: int, causal: int) -> str:
    q, k, v = (torch.randn(1, 1, S, D).half() for S in (S_q, S_kv, S_kv))
    out, workspace = torch.empty_like(q), torch.empty(1 << 20, dtype=torch.uint8)
    code = library.flashcore_forward(arguments(q, k, v, out, causal=causal, workspace=workspace.data_ptr()))
    return library.flashcore_error(code).decode() if code else ""


def label(one: tuple[str, dict[str, int]]) -> str:
    return "-".join([one[0], *(f"{k}={v}" for k, v in one[1].items())])


@pytest.mark.full  # make test has decode (test_decode_on_cpu.py)
@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=label)
def test_no_kernel_has_a_race(
    configuration: tuple[str, dict[str, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, overrides = configuration
    fragments = "Ampere" if name == "wmma" else "Scattered"
    library = compile_on_cpu(VARIANTS[name], overrides, tmp_path, fragments, races=True)
    monkeypatch.setenv("CUDA_ON_CPU_SEED", "7")
    D = overrides.get("HEAD_DIM", VARIANTS[name].head_dims[-1] if name == "int8" else 64)
    for S_q, S_kv, causal in ((193, 193, 1), (33, 300, 0), (130, 1, 1)):
        assert launch(library, D, S_q, S_kv, causal) == "", (S_q, S_kv)
