// The instructions of kernels/flashcore/csrc/fp8.cuh, for cuda_on_cpu.h.
#pragma once

namespace flashcore {

inline float e4m3_to_float(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  const float size = exponent ? std::ldexp(1.f + mantissa / 8.f, exponent - 7) : std::ldexp(mantissa / 8.f, -6);
  return (x & 0x7f) == 0x7f ? NAN : x & 0x80 ? -size : size;
}

inline uint8_t float_to_e4m3(float x) {  // to nearest, ties to even, beyond 448 to 448
  if (std::isnan(x)) return 0x7f;
  const float size = std::min(std::fabs(x), 448.f);
  const int exponent = std::max(size > 0.f ? std::ilogb(size) : -6, -6);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));  // of 2^(exponent - 3)
  return static_cast<uint8_t>((std::signbit(x) ? 0x80 : 0) + (steps + 8 * (exponent + 6)));
}

inline uint32_t pack_e4m3_pair(float low, float high) { return float_to_e4m3(low) | float_to_e4m3(high) << 8; }

// m16n8k32 as PTX has it: four neighbours in k per register.
template <typename Sum, typename Value>
void mma_16832(const char *operation, Sum (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Value value) {
  struct Operands {
    uint8_t a[16], b[8];
  } mine;
  std::memcpy(mine.a, a, 16), std::memcpy(mine.b, &b0, 4), std::memcpy(mine.b + 4, &b1, 4);
  const auto all = cuda_on_cpu::exchange(operation, mine);
  const int g = cuda_on_cpu::now->lane / 4, t = cuda_on_cpu::now->lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (int k = 0; k < 32; ++k) {
      const int source = k % 16 / 4;
      const uint8_t x = all[row % 8 * 4 + source].a[k % 4 + 4 * (row / 8) + 8 * (k / 16)];
      const uint8_t y = all[column * 4 + source].b[k % 4 + 4 * (k / 16)];
      c[i] += static_cast<Sum>(value(x) * value(y));
    }
  }
}

inline void mma_16832_e4m3(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16832("mma.e4m3", c, a, b0, b1, e4m3_to_float);
}
inline void mma_16832_s8(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16832("mma.s8", c, a, b0, b1, [](uint8_t x) { return static_cast<int>(static_cast<int8_t>(x)); });
}
inline void mma_16832_s8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const float (&c)[4]) {
  int x[4];
  std::memcpy(x, c, 16);
  mma_16832_s8(x, a, b0, b1);
  std::memcpy(d, x, 16);
}

}  // namespace flashcore
