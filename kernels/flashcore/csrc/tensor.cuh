// What the tensor-core kernels share: the instructions they are made of, the layout of a tile in shared memory, and the
// launch. sm_80 and later, nothing Hopper-only: one source for A100, L4 and H100.
//
// A tile is some rows of 64 halves, 128 bytes each: 8 chunks of 16 bytes, the unit that cp.async copies and ldmatrix
// reads. A 128-byte row spans all 32 banks, so the same chunk of 8 rows would lie in the same 4 banks: chunk c of row r
// is kept at place c ^ (r % 8) instead, and reading a column of chunks touches every bank once (swizzle()).
//
// Fragments of mma.sync.m16n8k16, g = lane / 4, t = lane % 4 (each 32-bit register of A and B holds two halves):
//   A 16x16  a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
//   B 16x8   b0 = B[2t..][g], b1 = B[2t+8..][g]
//   C 16x8   c[0], c[1] = C[g][2t], C[g][2t+1];  c[2], c[3] = C[g+8][2t], C[g+8][2t+1]
// So the C of one product, packed to halves, is the A of the next: probabilities never leave registers.
#ifndef FLASHCORE_TENSOR_CUH
#define FLASHCORE_TENSOR_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math_constants.h>

#include <atomic>

#include "flashcore.h"

namespace flashcore {

// ------------------------------------------------------------------------------------------------ instructions
// The tests run these kernels on a processor, where tests/support/cuda_on_cpu emulates exactly this section.
#ifndef CUDA_ON_CPU

// Shared memory sized at launch: the only kind that may exceed 48 KB.
__device__ __forceinline__ unsigned char *dynamic_shared() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// 32-bit addresses inside shared memory: half the registers of a pointer, and what the instructions below take.
__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory without passing through registers; zeros, and no read at all, unless `present`.
// .cg keeps them out of L1: every byte is read once per block, and reuse happens in L2.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, bool present) {
  const int bytes = present ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copies this thread began since the last commit are one group; groups finish in order.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Wait until at most the newest PENDING groups of this thread are unfinished. Others see them after a barrier only.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of halves; lane i gives the address of row i % 8 of matrix i / 8. Lane i receives, per matrix, the
// two neighbours at row i / 4, columns 2 * (i % 4): one register of an A fragment, or of B when rows are B's columns.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// The same with each matrix transposed: B from rows that are B's rows.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row)
               : "memory");
}

// c += a b on the tensor cores: 4096 multiply-adds, halves in, floats accumulated. Not volatile: free to be scheduled.
__device__ __forceinline__ void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 2^x by the special function unit, 2 ulp, no range reduction around it; 2^-inf is exactly 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// threadIdx.x, read where it is written: the compiler neither keeps it in a register until then nor what follows from
// it. For paths that run rarely, in kernels short of registers.
__device__ __forceinline__ unsigned thread_again() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

// Barriers among some of a block's warps: `threads` of them in all, a multiple of 32; id 1..15 (0 is __syncthreads).
// arrive() tells and goes on, sync() tells and waits.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

#endif  // CUDA_ON_CPU

// ------------------------------------------------------------------------------------------------ numbers
constexpr unsigned kAllLanes = 0xffffffffu;

// Where maxima begin: below every score of finite inputs, and itself finite. A tile whose scores are all minus infinity
// (keys that are) then has weights of zero; minus infinity as a maximum would give infinity minus infinity.
constexpr float kLowest = -1e30f;

// Two floats as two halves in one register, `low` in the lower bits: the order of a fragment.
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t *>(&pair);
}

// Across the LANES neighbouring lanes, all of which get the result: 4, a quad, holds one row of a C fragment.
template <int LANES>
__device__ __forceinline__ float max_across(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

template <int LANES>
__device__ __forceinline__ float sum_across(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

// exp(scale * (s - maximum)) as 2^(s * factor - maximum * factor): one fused multiply-add and one exp2 per score. That
// takes a positive factor: a negative scale becomes a sign flip of Q's halves, which is exact, and a zero scale one too
// small to matter (times zero, the -inf of a masked score would become NaN).
struct FoldedScale {
  float factor;
  uint32_t flip;  // xor onto two packed halves of Q
};

__device__ __forceinline__ FoldedScale fold(float scale) {
  return {fmaxf(fabsf(scale) * 1.4426950408889634f, 1e-30f), scale < 0.f ? 0x80008000u : 0u};
}

// ------------------------------------------------------------------------------------------------ tensors and tiles
constexpr int kHeadDim = 64;
constexpr int kRowBytes = kHeadDim * 2;
constexpr int kChunks = kRowBytes / 16;

// Byte offset of chunk `chunk` of row `row` in a tile.
__device__ __forceinline__ uint32_t swizzle(uint32_t row, uint32_t chunk) {  // unsigned: % is then a mask
  return row * kRowBytes + ((chunk ^ row % kChunks) << 4);
}

// What one block works on: consecutive blocks share a head, so that its K and V are read from L2, not from DRAM.
struct Place {
  int tile, head, batch;
};

__device__ __forceinline__ Place place(int block, int tiles, int heads) {
  return {block % tiles, block / tiles % heads, block / tiles / heads};
}

// The first row of one head of one batch.
__device__ __forceinline__ const __half *head_of(const void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<const __half *>(base) + at.batch * stride.batch + at.head * stride.head;
}
__device__ __forceinline__ __half *head_of(void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<__half *>(base) + at.batch * stride.batch + at.head * stride.head;
}

// Begin to copy rows first .. first + ROWS - 1 of a head into a swizzled tile; rows from `end` on become zeros, so that
// a weight of zero meets a value of zero and never a NaN that happened to lie in memory. Commit afterwards.
// Each thread keeps its chunk and strides over rows: one address that grows, not one per row held in registers.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(uint32_t tile, const __half *head, int64_t stride, int first, int end,
                                          int thread) {
  static_assert(THREADS % kChunks == 0, "a pass over the tile is whole rows");
  constexpr int kPass = THREADS / kChunks;  // rows
  const int chunk = thread % kChunks;
  int row = thread / kChunks;
  const __half *from = head + (first + row) * stride + chunk * 8;
#pragma unroll
  for (int pass = 0; pass < (ROWS + kPass - 1) / kPass; ++pass, row += kPass, from += kPass * stride) {
    if (ROWS % kPass == 0 || row < ROWS) cp_async_16(tile + swizzle(row, chunk), from, first + row < end);
  }
}

// ------------------------------------------------------------------------------------------------ launch
__host__ __device__ constexpr int64_t tiles_of(int rows, int per_tile) {
  return (static_cast<int64_t>(rows) + per_tile - 1) / per_tile;
}

// Launch `blocks` blocks of a kernel that takes flashcore_args; cudaErrorInvalidValue for shapes no kernel here takes.
template <void (*kernel)(flashcore_args)>
int launch(const flashcore_args &args, int64_t blocks, int threads, size_t shared_bytes) {
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0;
  if (!positive || args.D != kHeadDim || blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (shared_bytes > 48 * 1024) {  // beyond what every kernel may use, each device wants to be asked once
    static std::atomic<uint64_t> asked{0};
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device)) return error;
    const uint64_t bit = uint64_t{1} << (device % 64);
    if (!(asked.load() & bit)) {
      const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if (const cudaError_t error = cudaFuncSetAttribute(kernel, limit, static_cast<int>(shared_bytes))) return error;
      asked.fetch_or(bit);
    }
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, static_cast<cudaStream_t>(args.stream)>>>(args);
  return cudaGetLastError();
}

}  // namespace flashcore

FLASHCORE_API const char *flashcore_error(int code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }

#endif
