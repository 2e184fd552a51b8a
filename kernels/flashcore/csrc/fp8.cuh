// The 8-bit types a tensor core multiplies: m16n8k32, twice the work of an instruction for 16-bit types. Lane i has
// g = i / 4 and t = i % 4 of these fragments, four neighbours in k per register:
//   A 16x32  a[0] = A[g][4t..4t+3], a[1] = A[g+8][4t..], a[2] = A[g][16+4t..], a[3] = A[g+8][16+4t..]
//   B 32x8   b0 = B[4t..4t+3][g], b1 = B[16+4t..][g]
//   C 16x8   as for 16-bit types (tensor.cuh)
#ifndef FLASHCORE_FP8_CUH
#define FLASHCORE_FP8_CUH

#include "bfloat16.cuh"

namespace flashcore {

// Instructions; the tests emulate them (tests/support/cuda_on_cpu/fp8.h).
#ifndef CUDA_ON_CPU

#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ < 1204
#error "mma.sync takes E4M3 from CUDA 12.4 (PTX ISA 8.4) on"
#endif

// c += a b for E4M3. sm_89 multiplies them as they are, but sums at less than FP32's precision; sm_90 has no such
// mma.sync and converts to FP16 first.
__device__ __forceinline__ void mma_16832_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += a b for signed bytes, exactly.
__device__ __forceinline__ void mma_16832_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same of bits that are read as floats: d = c + a b, where sums are `kBias` + an integer below 2^22 in magnitude: a float
// whose unit is 1, so that it is the integer plus 1.5 * 2^23, without a conversion.
__device__ __forceinline__ void mma_16832_s8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                             const float (&c)[4]) {
  int x[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%10, %11, %12, %13};\n"
      : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(__float_as_int(c[0])),
        "r"(__float_as_int(c[1])), "r"(__float_as_int(c[2])), "r"(__float_as_int(c[3])));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = __int_as_float(x[i]);
}

// Two floats, to the nearest E4M3, beyond 448 to 448; `low` in the lower byte. NaN stays NaN.
__device__ __forceinline__ uint32_t pack_e4m3_pair(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

#endif  // CUDA_ON_CPU

constexpr float kLargestE4M3 = 448.f;
constexpr float kBias = 12582912.f;  // 1.5 * 2^23

__device__ __forceinline__ uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  return pack_e4m3_pair(x0, x1) | pack_e4m3_pair(x2, x3) << 16;
}

// Four floats of at most 127 as signed bytes, to the nearest.
__device__ __forceinline__ uint32_t pack_s8(float x0, float x1, float x2, float x3) {
  const auto byte = [](float x) { return static_cast<uint32_t>(__float_as_int(x + kBias)) & 0xffu; };
  return byte(x0) | byte(x1) << 8 | byte(x2) << 16 | byte(x3) << 24;
}

}  // namespace flashcore

#endif
