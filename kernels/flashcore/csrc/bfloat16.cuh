// The two 16-bit types a tensor core multiplies, told apart at compile time: a tile, a swizzle and ldmatrix are the
// same for both; only packing floats and the multiplication differ.
#ifndef FLASHCORE_BFLOAT16_CUH
#define FLASHCORE_BFLOAT16_CUH

#include "tensor.cuh"

namespace flashcore {

// Instructions; the tests emulate them (tests/support/cuda_on_cpu/bfloat16.h).
#ifndef CUDA_ON_CPU

// mma_16816 with bfloat16 in A and B.
__device__ __forceinline__ void mma_16816_bfloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats, rounded to nearest, as two bfloat16 in one register, `low` in the lower bits.
__device__ __forceinline__ uint32_t pack_bfloat16s(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 1 / x to 1 ulp, without the branch for what is too small or too large to invert.
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

#endif  // CUDA_ON_CPU

enum class Type { kHalf, kBfloat16 };  // values as flashcore_args.dtype has them

template <Type T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (T == Type::kHalf) {
    mma_16816(c, a, b0, b1);
  } else {
    mma_16816_bfloat16(c, a, b0, b1);
  }
}

template <Type T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return T == Type::kHalf ? pack_halves(low, high) : pack_bfloat16s(low, high);
}

}  // namespace flashcore

#endif
