// What the kernels of 8-bit operands share: values to bytes.
#ifndef FLASHCORE_QUANTISE_CUH
#define FLASHCORE_QUANTISE_CUH

#include "fp8.cuh"
#include "tiles.cuh"

namespace flashcore {

constexpr float kTiny = 1e-30f;

// Signed bytes, or E4M3.
template <bool BYTES>
constexpr float kLargest = BYTES ? 127.f : kLargestE4M3;

template <bool BYTES>
__device__ __forceinline__ uint32_t pack_four(float x0, float x1, float x2, float x3) {
  return BYTES ? pack_s8(x0, x1, x2, x3) : pack_e4m3(x0, x1, x2, x3);
}

// 8 halves as floats.
__device__ __forceinline__ void widen(const uint4 &raw, float (&x)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&words[i]));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
}

// Of a warp whose FIRST neighbouring lanes share a row: over its rows.
template <int FIRST, typename Merge>
__device__ __forceinline__ float across_rows(float x, Merge merge) {
#pragma unroll
  for (int step = FIRST; step < 32; step *= 2) x = merge(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// A row of Q, of which each lane of a quad has WORDS x 4 dimensions, from offset(0), offset(1) .. on. Returns from products
// with it to powers of 2. `flip` is -1 for a negative scale.
template <bool BYTES, int WORDS, typename Offset>
__device__ __forceinline__ float quantise_row(const __half *q, bool present, float flip, float scale,
                                              uint32_t (&words)[WORDS], Offset offset) {
  float x[WORDS][4], most = 0.f, poison = 0.f;  // poison: NaN if anything is not finite, which fmaxf would not tell
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    uint2 raw = make_uint2(0, 0);
    if (present) raw = *reinterpret_cast<const uint2 *>(q + offset(w));
    const float2 low = __half22float2(*reinterpret_cast<const __half2 *>(&raw.x));
    const float2 high = __half22float2(*reinterpret_cast<const __half2 *>(&raw.y));
    const float values[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[w][i] = values[i] * flip;
      most = fmaxf(most, fabsf(values[i])), poison += values[i] * 0.f;
    }
  }
  most = reduce_max<4>(most) + reduce_sum<4>(poison);
  const float unit = kLargest<BYTES> / (most + kTiny);
#pragma unroll
  for (int w = 0; w < WORDS; ++w)
    words[w] = pack_four<BYTES>(x[w][0] * unit, x[w][1] * unit, x[w][2] * unit, x[w][3] * unit);
  const float factor = most / kLargest<BYTES> * scale;
  return factor < kTiny ? kTiny : factor;  // as fold() of tensor.cuh has it, but NaN stays NaN
}

}  // namespace flashcore

#endif
