// What the tensor-core kernels share: the instructions they are made of. sm_80 and later, nothing Hopper-only: one
// source for A100, L4 and H100. CUDA's own headers for FP16 are not needed for them, and would take as long to read as a
// small kernel takes to compile; tiles.cuh has them.
//
// Fragments of mma.sync.m16n8k16, g = lane / 4, t = lane % 4 (each 32-bit register of A and B holds two halves):
//   A 16x16  a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..], a[3] = A[g+8][2t+8..]
//   B 16x8   b0 = B[2t..][g], b1 = B[2t+8..][g]
//   C 16x8   c[0], c[1] = C[g][2t], C[g][2t+1];  c[2], c[3] = C[g+8][2t], C[g+8][2t+1]
// So the C of one product, packed to halves, is the A of the next: probabilities never leave registers.
#ifndef FLASHCORE_TENSOR_CUH
#define FLASHCORE_TENSOR_CUH

#ifdef OWN_DECLARATIONS
#include "declarations.cuh"
#else
#include <cuda_runtime.h>
#include <math_constants.h>
#endif

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

// Two floats, rounded to nearest, as two halves in one register, `low` in the lower bits: the order of a fragment.
__device__ __forceinline__ uint32_t pack_halves(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
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

// From sm_90 on a launch may begin while the one before it on its stream still runs; driver.cuh asks for it. It does so once
// each block of that one has called allow_next() or ended. wait_for_previous() returns when all launches before have ended and
// their results are visible: a kernel calls it before it first reads or writes global memory, and allow_next() after it, so
// that nothing behind begins before what is ahead has ended.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void allow_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

#endif  // CUDA_ON_CPU

// wait_for_previous() once it is known where the first reads are (an address or several in one, never 0): the compiler would
// compute that behind the wait.
__device__ __forceinline__ void wait_for_previous(uint64_t known) {
  if (known) wait_for_previous();
}
__device__ __forceinline__ uint64_t address_of(const void *pointer) { return reinterpret_cast<uint64_t>(pointer); }
// `pointer`, which is not computed again where it is used.
__device__ __forceinline__ const uint16_t *kept(const uint16_t *pointer) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("" : "+l"(pointer));
#endif
  return pointer;
}

// Whether tensor cores of the architecture that is compiled for do an mma of FP16 in 8 clocks or less, which leaves the rest
// of the multiprocessor behind, or in 16.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200)
constexpr bool kFastTensor = true;
#else
constexpr bool kFastTensor = false;
#endif

// ------------------------------------------------------------------------------------------------ numbers
constexpr unsigned kAllLanes = 0xffffffffu;

// Where maxima begin: below every score of finite inputs, and itself finite. A tile whose scores are all minus infinity
// (keys that are) then has weights of zero; minus infinity as a maximum would give infinity minus infinity.
constexpr float kLowest = -3.402823466e38f;

// Over LANES neighbouring lanes, all of which get the result: 4, a quad, holds one row of a C fragment.
template <int LANES>
__device__ __forceinline__ float reduce_max(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

template <int LANES>
__device__ __forceinline__ float reduce_sum(float x) {
#pragma unroll
  for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

__device__ __forceinline__ void zero(float (&c)[4]) { c[0] = c[1] = c[2] = c[3] = 0.f; }

// exp(scale * (s - maximum)) as 2^(s * factor - maximum * factor): one fused multiply-add and one exp2 per score. That
// takes a positive factor: a negative scale becomes a sign flip of Q's halves, which is exact, and a zero scale one too
// small to matter (times zero, the -inf of a masked score would become NaN).
struct FoldedScale {
  float factor;
  uint32_t flip;  // xor onto two packed halves of Q
};

__host__ __device__ __forceinline__ FoldedScale fold(float scale) {
  return {fmaxf(fabsf(scale) * 1.4426950408889634f, 1e-30f), scale < 0.f ? 0x80008000u : 0u};
}

// ------------------------------------------------------------------------------------------------ library
__host__ __device__ constexpr int64_t tiles_of(int rows, int per_tile) {
  return (static_cast<int64_t>(rows) + per_tile - 1) / per_tile;
}

// The tensors and the scale of a call, as the parameter of a kernel for both types has them.
template <typename Task>
void take_tensors(Task &task, const flashcore_args &args) {
  task.q = static_cast<const uint16_t *>(args.q), task.k = static_cast<const uint16_t *>(args.k);
  task.v = static_cast<const uint16_t *>(args.v), task.o = static_cast<uint16_t *>(args.o);
  task.q_stride = args.q_stride, task.k_stride = args.k_stride, task.v_stride = args.v_stride;
  task.o_stride = args.o_stride;
  const FoldedScale scale = fold(args.scale);
  task.factor = scale.factor, task.flip = scale.flip;
}

}  // namespace flashcore

// A library of several translation units (flagship.cu says how) has these in one of them; a kernel alone is no library.
#if !defined(KERNEL_ALONE) && (!defined(PART) || PART & 1)
FLASHCORE_API const char *flashcore_error(int code) { return cudaGetErrorName(static_cast<cudaError_t>(code)); }
FLASHCORE_API size_t flashcore_args_bytes(void) { return sizeof(flashcore_args); }
#endif

#endif
