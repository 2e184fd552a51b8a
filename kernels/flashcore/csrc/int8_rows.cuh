// What a warp of int8.cu does with its rows: the layout of a block, scores, weights, and what they add up to.
#ifndef FLASHCORE_INT8_ROWS_CUH
#define FLASHCORE_INT8_ROWS_CUH

#include "int8_quantise.cuh"
#include "online_softmax.cuh"

namespace flashcore {

template <int D>
struct Layout {
  static constexpr int kKeys = keys_of(D), kWarpRows = WARP_ROWS;
  static constexpr int kTileM = TILE_M, kThreads = kTileM / kWarpRows * 32;
  static constexpr int kRowTiles = kWarpRows / 16, kKeyTiles = kKeys / 8, kOutTiles = D / 8, kDepthTiles = D / 32;
  static constexpr int kRow = D * 2, kRowChunks = kRow / 16;  // of V
  static constexpr bool kSharedQ = false;                     // as copy_rows_from() has it
  static constexpr bool kWide = D * kRowTiles > 128;  // outputs take half of the registers
  static constexpr bool kShortOfRegisters = kWide || !kFastTensor;
  static constexpr int kPlanesOfQ = kWide && !kFastTensor ? 0 : D / 64;  // of 64 dimensions, in registers
  static constexpr uint32_t kVBytes = kKeys * kRow, kRingBytes = STAGES * (kVBytes + kRecord);
  static constexpr uint32_t kKeptBytes = (kRowTiles + 2) * kThreads * 16, kQBytes = kWide * kTileM * D;
  static constexpr uint32_t kSharedBytes = kRingBytes + kKeptBytes + kQBytes;
  static constexpr bool kTensorSums = TENSOR_SUMS && (kFastTensor || kWide);
  static constexpr int kMinBlocks = kThreads > 128 ? 1 : 2;
};

// What a warp has of a step: scores as floats above kBias, the largest of this lane's, what they are multiplied by, and
// what is subtracted then: exponents of weights are score * factor - offset.
template <typename C>
struct Step {
  float s[C::kRowTiles][C::kKeyTiles][4], maxima[C::kRowTiles][2], factor[C::kRowTiles][2], offset[C::kRowTiles][2];
};

// What a warp carries from step to step. What is needed of rows once a step lies in shared memory meanwhile where registers
// are short.
template <typename C>
struct Rows : Attended<C::kRowTiles, C::kOutTiles> {
  float tensor_sum[C::kRowTiles][4];  // with C::kTensorSums: P times ones
  float unit[C::kRowTiles][2];        // of Q: what scores are multiplied by

  // Of this thread and row tile i: units and bases.
  static __device__ __forceinline__ float4 &stored(int i) {
    return reinterpret_cast<float4 *>(dynamic_shared() + C::kRingBytes)[i * C::kThreads + thread_again()];
  }

  __device__ __forceinline__ void store_rows() const {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
      if (C::kShortOfRegisters) stored(i) = make_float4(unit[i][0], unit[i][1], this->base[i][0], this->base[i][1]);
  }

  __device__ __forceinline__ void fetch_rows() {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
      if (C::kShortOfRegisters) {
        const float4 x = stored(i);
        unit[i][0] = x.x, unit[i][1] = x.y, this->base[i][0] = x.z, this->base[i][1] = x.w;
      }
  }

  __device__ __forceinline__ float last(int i, int h) const {
    return C::kTensorSums ? reciprocal(tensor_sum[i][2 * h]) : this->last_scale(i, h);
  }
};

// The largest of scores from key tile n on: above kBias floats and their bits have the same order, and so has minus infinity
// below. As integers three are compared at once (sm_90).
template <int COUNT, typename C>
__device__ __forceinline__ void row_max_of_bits(Step<C> &step, int n) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = n; m < n + COUNT; ++m)
        step.maxima[i][h] =
            __int_as_float(__vimax3_s32(__float_as_int(step.maxima[i][h]), __float_as_int(step.s[i][m][2 * h]),
                                        __float_as_int(step.s[i][m][2 * h + 1])));
}

// Where a thread reads next.
struct alignas(16) Cursor {
  const unsigned char *k;
  const uint16_t *v;
  const float *scale;
};

// The factors of a step, whose keys have this lane's scale `of_keys`; the base of rows, where it must rise.
template <typename C>
__device__ __forceinline__ void rescale(Rows<C> &rows, Step<C> &step, float of_keys) {
  const auto each_row = [](auto body) {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) body(i, h);
  };
  const auto offset = [&](int i, int h) { step.offset[i][h] = kBias * step.factor[i][h] + rows.base[i][h]; };
  bool rises = false;
  each_row([&](int i, int h) {
    step.factor[i][h] = rows.unit[i][h] * of_keys;
    offset(i, h);
    rises |= step.maxima[i][h] * step.factor[i][h] - step.offset[i][h] > kSlack;
  });
  if (!__any_sync(kAllLanes, rises)) return;
  each_row([&](int i, int h) { step.maxima[i][h] = (step.maxima[i][h] - kBias) * step.factor[i][h]; });
  quad_max(step.maxima);
  each_row([&](int i, int h) {
    const float keep = raise_base(rows.base[i][h], step.maxima[i][h], 1.f);
    rows.sum[i][h] *= keep, rows.tensor_sum[i][2 * h] *= keep, rows.tensor_sum[i][2 * h + 1] *= keep;
    scale_row(rows.out[i], h, keep);
    offset(i, h);
  });
  rows.store_rows();
}

// The weights of the 16 keys from 8 * n on, and with them O += P V.
template <typename C>
__device__ __forceinline__ void exp_and_pack(uint32_t (&p)[C::kRowTiles][4], Rows<C> &rows, const Step<C> &step, int n) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = r % 2;
      const auto weight = [&](int e) {
        return exp2_approx(step.s[i][n + r / 2][2 * h + e] * step.factor[i][h] - step.offset[i][h]);
      };
      const float x = weight(0), y = weight(1);
      if (!C::kTensorSums) rows.sum[i][h] += x + y;
      p[i][r] = pack_halves(x, y);
    }
}

template <typename C>
__device__ __forceinline__ void add_up(Rows<C> &rows, const uint32_t (&p)[C::kRowTiles][4], uint32_t v_tile, int n) {
  constexpr uint32_t kOnes = 0x3c003c00u;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
    if (C::kTensorSums) mma_16816(rows.tensor_sum[i], p[i], kOnes, kOnes);
  // `v_tile` is the lane's own place in the first 16 rows: the lane is in it, so multiply_pv() is told of none.
  const auto place = [=](uint32_t row, uint32_t chunk) {
    return (v_tile ^ chunk % 8 << 4) + chunk / 8 * 128 + row * C::kRow;
  };
  multiply_pv<Type::kHalf>(rows.out, p, 0, n, 0, place);
}

}  // namespace flashcore

#endif
