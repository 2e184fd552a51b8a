// peaks: what this GPU can do at most, for a kernel's time to be held against. No attention here.
//
// The idea: each kernel does one thing only, as fast as the instruction set allows, and enough of it that nothing else
// counts. Tensor cores and exp2 units are fed from registers by independent chains, so that neither memory nor latency
// is in the way; their clocks per instruction come from the SM's own counter, whatever the GPU's frequency is. Copies move
// 16 bytes a thread past the L1 cache. An empty kernel shows what a launch costs; it has the functions of flashcore.h, so
// that it is called the way attention kernels are, and the least that such a call costs is what is measured.
//
// Every function returns a cudaError_t. `cycles` points to device memory: one number per block, clocks of the SM from the
// block's first instruction to its last.

#include <cuda_runtime.h>
#include <stdint.h>

#include "driver.cuh"
#include "flashcore.h"

namespace {

constexpr int kWarps = 8;   // per block: two for each of an SM's four sub-partitions
constexpr int kChains = 8;  // independent instructions of one kind in a warp; 16 in a sub-partition hide their latency

__device__ __forceinline__ void mma_f32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_f16(uint32_t (&c)[2], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
               : "+r"(c[0]), "+r"(c[1])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint4 load_past_l1(const uint4 *from) {
  uint4 x;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from));
  return x;
}

__device__ __forceinline__ void store_past_l1(uint4 *to, const uint4 &x) {
  asm volatile("st.global.cg.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// The block's clocks since `start`, once all its warps are here.
__device__ void finish(long long start, int64_t *cycles) {
  __syncthreads();
  if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
}

}  // namespace

static __global__ void __launch_bounds__(32 * kWarps) peak_mma_f32(int rounds, float *sink, int64_t *cycles) {
  uint32_t a[4] = {threadIdx.x, 0, 0, 0}, b[2] = {0, 0};  // values do not change the rate; zeros keep the power low
  float c[kChains][4] = {};
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) mma_f32(c[j], a, b);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
  if (sum == 1.5f) sink[0] = sum;  // never: the chains must not be thought useless
  finish(start, cycles);
}

static __global__ void __launch_bounds__(32 * kWarps) peak_mma_f16(int rounds, float *sink, int64_t *cycles) {
  uint32_t a[4] = {threadIdx.x, 0, 0, 0}, b[2] = {0, 0};
  uint32_t c[kChains][2] = {};
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) mma_f16(c[j], a, b);
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += c[j][0] + c[j][1];
  if (sum == 12345u) sink[0] = 1.f;
  finish(start, cycles);
}

static __global__ void __launch_bounds__(32 * kWarps) peak_exp2(int rounds, float *sink, int64_t *cycles) {
  float x[kChains];
#pragma unroll
  for (int j = 0; j < kChains; ++j) x[j] = -static_cast<float>(j) - threadIdx.x;
  __syncthreads();
  const long long start = clock64();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j]));
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += x[j];
  if (sum == -1.f) sink[0] = sum;
  finish(start, cycles);
}

// Each block copies its own stretch `rounds` times: the first time from wherever it lies, then from the L2 cache if
// both sides of all stretches fit there.
static __global__ void __launch_bounds__(512) peak_copy(const uint4 *from, uint4 *to, int64_t count, int rounds) {
  const int64_t each = (count + gridDim.x - 1) / gridDim.x;
  const int64_t first = each * blockIdx.x, end = min(first + each, count);
  constexpr int kAhead = 8;  // loads under way before the first store waits for one
  for (int i = 0; i < rounds; ++i)
    for (int64_t at = first + threadIdx.x; at < end; at += kAhead * blockDim.x) {
      uint4 x[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (at + j * blockDim.x < end) x[j] = load_past_l1(from + at + j * blockDim.x);
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (at + j * blockDim.x < end) store_past_l1(to + at + j * blockDim.x, x[j]);
    }
}

static __global__ void peak_empty(int) {}

// ------------------------------------------------------------------------------------------------ launchers
// kind: 0 mma with FP32 sums, 1 mma with FP16 sums, 2 exp2; each warp issues rounds * chains instructions.
FLASHCORE_API int flashcore_peak_issue(int kind, int blocks, int rounds, float *sink, int64_t *cycles, void *stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (kind == 0) {
    peak_mma_f32<<<blocks, 32 * kWarps, 0, on>>>(rounds, sink, cycles);
  } else if (kind == 1) {
    peak_mma_f16<<<blocks, 32 * kWarps, 0, on>>>(rounds, sink, cycles);
  } else if (kind == 2) {
    peak_exp2<<<blocks, 32 * kWarps, 0, on>>>(rounds, sink, cycles);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// bytes: of each side, a multiple of 16.
FLASHCORE_API int flashcore_peak_copy(const void *from, void *to, int64_t bytes, int blocks, int rounds, void *stream) {
  peak_copy<<<blocks, 512, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4 *>(from),
                                                                   static_cast<uint4 *>(to), bytes / 16, rounds);
  return cudaGetLastError();
}

// Writes nothing. Launched as the flagship's kernels are: through the driver, by a handle that each device is asked for
// once (two threads may both ask: they write the same).
FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  constexpr int kDevices = 64;
  static flashcore::Handle<int> handles[kDevices];
  static flashcore::Published<bool> ready[kDevices];
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (device >= kDevices) return cudaErrorInvalidValue;
  if (!ready[device].load()) {
    if (const int error = handles[device].open(peak_empty)) return error;
    ready[device].store(true);
  }
  return handles[device].start(peak_empty, dim3(1), 32, 0, args->stream, 0);
}
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }

FLASHCORE_API int flashcore_peak_warps(void) { return kWarps; }
FLASHCORE_API int flashcore_peak_chains(void) { return kChains; }
FLASHCORE_API const char *flashcore_error(int code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); }
