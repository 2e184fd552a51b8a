// peaks: what this GPU can do at most, for a kernel's time to be held against. No attention here.
//
// The idea: each kernel does one thing only, as fast as the instruction set allows, and enough of it that nothing else
// counts. Tensor cores and exp2 units are fed from registers by independent chains, so that neither memory nor latency
// is in the way. Each block says how many clocks of its multiprocessor it took, and how many nanoseconds: so clocks per
// instruction and the frequency at which they ran are known of the same work. Copies move 16 bytes a thread past the L1
// cache. An empty kernel shows what a launch costs; it has the functions of flashcore.h, so that it is called the way
// attention kernels are, and the least that such a call costs is what is measured.
//
// Every function returns a cudaError_t. `took` points to device memory: two numbers per block, clocks and nanoseconds
// from its first instruction to its last.

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

struct Start {
  long long clock;
  uint64_t ns;
};

__device__ __forceinline__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}

__device__ __forceinline__ Start begin() {
  __syncthreads();
  return {clock64(), nanoseconds()};
}

// What the block took since `start`, once all its warps are here.
__device__ __forceinline__ void finish(const Start &start, int64_t *took) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  took[2 * blockIdx.x] = clock64() - start.clock;
  took[2 * blockIdx.x + 1] = static_cast<int64_t>(nanoseconds() - start.ns);
}

// Two halves between 1/2 and 2, of either sign.
__device__ __forceinline__ uint32_t random_pair(uint32_t number) {
  uint32_t x = (number + 32 * kWarps * blockIdx.x + 1) * 2654435761u;
  x = (x ^ x >> 15) * 2246822519u;
  x ^= x >> 13;
  return (x & 0x87ff87ffu) | 0x38003800u;
}

}  // namespace

// Values do not change the rate, but the power: zeros keep it low, so that the clock stays high. With RANDOM each chain
// has operands of its own, so that inputs change from one instruction to the next.
template <bool RANDOM>
static __global__ void __launch_bounds__(32 * kWarps) peak_mma_f32(int rounds, float *sink, int64_t *took) {
  constexpr int kSets = RANDOM ? kChains : 1;
  const uint32_t zero = static_cast<uint32_t>(rounds) >> 31;  // in a register, since the compiler cannot know
  uint32_t a[kSets][4], b[kSets][2];
#pragma unroll
  for (int j = 0; j < kSets; ++j)
#pragma unroll
    for (int r = 0; r < 6; ++r)
      (r < 4 ? a[j][r % 4] : b[j][r % 2]) = RANDOM ? random_pair(6 * (32 * kWarps * j + threadIdx.x) + r) : zero;
  float c[kChains][4] = {};
  const Start start = begin();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) mma_f32(c[j], a[j % kSets], b[j % kSets]);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += c[j][0] + c[j][1] + c[j][2] + c[j][3];
  if (sum == 1.5f) sink[0] = sum;  // hardly ever: the chains must not be thought useless
  finish(start, took);
}

static __global__ void __launch_bounds__(32 * kWarps) peak_mma_f16(int rounds, float *sink, int64_t *took) {
  const uint32_t zero = static_cast<uint32_t>(rounds) >> 31;
  const uint32_t a[4] = {zero, zero, zero, zero}, b[2] = {zero, zero};
  uint32_t c[kChains][2] = {};
  const Start start = begin();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) mma_f16(c[j], a, b);
  uint32_t sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += c[j][0] + c[j][1];
  if (sum == 12345u) sink[0] = 1.f;
  finish(start, took);
}

static __global__ void __launch_bounds__(32 * kWarps) peak_exp2(int rounds, float *sink, int64_t *took) {
  float x[kChains];
#pragma unroll
  for (int j = 0; j < kChains; ++j) x[j] = -static_cast<float>(j) - threadIdx.x;
  const Start start = begin();
#pragma unroll 1
  for (int i = 0; i < rounds; ++i)
#pragma unroll
    for (int j = 0; j < kChains; ++j) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[j]));
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kChains; ++j) sum += x[j];
  if (sum == -1.f) sink[0] = sum;
  finish(start, took);
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
// kind: 0 mma with FP32 sums, 1 mma with FP16 sums, 2 exp2, 3 as 0 with random values; each warp issues rounds * chains
// instructions.
FLASHCORE_API int flashcore_peak_issue(int kind, int blocks, int rounds, float *sink, int64_t *took, void *stream) {
  constexpr void (*kKernels[])(int, float *, int64_t *) = {peak_mma_f32<false>, peak_mma_f16, peak_exp2,
                                                           peak_mma_f32<true>};
  if (kind < 0 || kind > 3) return cudaErrorInvalidValue;
  kKernels[kind]<<<blocks, 32 * kWarps, 0, static_cast<cudaStream_t>(stream)>>>(rounds, sink, took);
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
