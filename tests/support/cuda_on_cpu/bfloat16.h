// The instructions of kernels/flashcore/csrc/bfloat16.cuh, for cuda_on_cpu.h.
#pragma once

namespace flashcore {

inline float bfloat16_to_float(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

inline uint16_t float_to_bfloat16(float x) {  // to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline uint32_t pack_bfloat16s(float low, float high) {
  return float_to_bfloat16(low) | static_cast<uint32_t>(float_to_bfloat16(high)) << 16;
}

inline void mma_16816_bfloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint16_t a[8], b[4];
  } mine;
  std::memcpy(mine.a, a, 16), std::memcpy(mine.b, &b0, 4), std::memcpy(mine.b + 2, &b1, 4);
  const auto all = cuda_on_cpu::exchange("mma.bf16", mine);
  const int g = cuda_on_cpu::now->lane / 4, t = cuda_on_cpu::now->lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {  // where PTX says that A[row][k] and B[k][column] are
      const uint16_t x = all[row % 8 * 4 + k % 8 / 2].a[k % 2 + 2 * (row / 8) + 4 * (k / 8)];
      const uint16_t y = all[column * 4 + k % 8 / 2].b[k % 2 + 2 * (k / 8)];
      c[i] += bfloat16_to_float(x) * bfloat16_to_float(y);
    }
  }
}

inline float reciprocal(float x) { return 1.f / x; }

}  // namespace flashcore
