// What a warp of flagship.cu does with its rows: scores, weights, and what they add up to.
#ifndef FLASHCORE_FLAGSHIP_ROWS_CUH
#define FLASHCORE_FLAGSHIP_ROWS_CUH

#include <float.h>

#include "flagship_tiling.cuh"

namespace flashcore {

// What a warp carries from step to step. Index [i][h]: row g + 8 * h of row tile i, g = lane / 4.
template <typename C>
struct State {
  uint32_t q[C::kRowTiles][C::kDepthTiles][4];  // unless they are read again in each step
  float out[C::kRowTiles][C::kOutTiles][4];
  float base[C::kRowTiles][2];  // what exponents are relative to: the largest score so far, in powers of two
  float sum[C::kRowTiles][4];   // [h]: of this lane's columns only; with tensor sums, a fragment of P times ones
};

template <typename C>
using Tile = float[C::kRowTiles][C::kKeyTiles][4];
template <typename C>
using Weights = uint32_t[C::kRowTiles][4];  // of 16 keys, packed as a left operand
template <typename C>
using Maxima = float[C::kRowTiles][2];

__device__ __forceinline__ void zero(float (&c)[4]) { c[0] = c[1] = c[2] = c[3] = 0.f; }

template <typename C>
__device__ __forceinline__ void clear(State<C> &state) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
#pragma unroll
    for (int n = 0; n < C::kOutTiles; ++n) zero(state.out[i][n]);
    state.base[i][0] = state.base[i][1] = -FLT_MAX;  // finite: a difference of two is never NaN
    zero(state.sum[i]);
  }
}

template <typename C>
__device__ __forceinline__ void keep_q(State<C> &state, const Queries &queries, int lane) {
  if constexpr (!C::kSharedQ) {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < C::kDepthTiles; ++k) read_q<C>(state.q[i][k], queries, i, k, lane);
  }
}

// Scores of key tiles n .. n + COUNT - 1 of a K tile in shared memory.
template <typename C, int COUNT>
__device__ __forceinline__ void scores(Tile<C> &s, const State<C> &state, const Queries &queries, uint32_t k_tile,
                                       int from, int lane) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int n = from; n < from + COUNT; ++n) zero(s[i][n]);
#pragma unroll
  for (int k = 0; k < C::kDepthTiles; ++k) {
    uint32_t q[C::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) {
      if (C::kSharedQ) {
        read_q<C>(q[i], queries, i, k, lane);
      } else {
#pragma unroll
        for (int r = 0; r < 4; ++r) q[i][r] = state.q[i][k][r];
      }
    }
#pragma unroll
    for (int n = from; n < from + COUNT; n += 2) {
      uint32_t b[4];  // keys 8n.. with dimensions 16k.., 16k+8..; keys 8n+8.. with the same
      ldmatrix_x4(b, k_tile + place_of<C>(8 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < C::kRowTiles; ++i) {
        mma<C::kType>(s[i][n], q[i], b[0], b[1]);
        mma<C::kType>(s[i][n + 1], q[i], b[2], b[3]);
      }
    }
  }
}

// -inf for keys that do not exist, or that causal rows must not see. `key` and `row` are those of the tile's corner.
template <typename C>
__device__ __forceinline__ void mask(Tile<C> &s, int key, int row, int keys, int causal, int lane) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = causal ? min(keys, row + 16 * i + lane / 4 + 8 * h + 1) : keys;
      const int left = end - key - lane % 4 * 2;  // of this lane's columns, those below are seen
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * n + e >= left) s[i][n][2 * h + e] = -CUDART_INF_F;
    }
}

// The largest scores of this lane's columns: none yet, and those of key tiles from .. from + COUNT - 1, too.
template <typename C>
__device__ __forceinline__ void reset_max(Maxima<C> &maxima) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) maxima[i][0] = maxima[i][1] = -CUDART_INF_F;
}

template <typename C, int COUNT>
__device__ __forceinline__ void row_max(Maxima<C> &maxima, const Tile<C> &s, int from) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = from; n < from + COUNT; ++n)
        maxima[i][h] = fmaxf(maxima[i][h], fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
}

// Of whole rows: the rows' shuffles are on their way at once.
template <typename C>
__device__ __forceinline__ void quad_max(Maxima<C> &maxima) {
#pragma unroll
  for (int step = 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        maxima[i][h] = fmaxf(maxima[i][h], __shfl_xor_sync(kAllLanes, maxima[i][h], step));
}

// Make what was summed up relative to the new maxima. Without asking whether any grew: with 16 or 32 rows a warp one
// mostly has, and a branch would keep these products from being mixed with what comes before and after.
template <typename C>
__device__ __forceinline__ void rescale(State<C> &state, const Maxima<C> &maxima, float factor) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float base = fmaxf(maxima[i][h] * factor, state.base[i][h]);
      const float keep = exp2_approx(state.base[i][h] - base);
      if (C::kTensorSums) {
        state.sum[i][2 * h] *= keep, state.sum[i][2 * h + 1] *= keep;
      } else {
        state.sum[i][h] *= keep;
      }
#pragma unroll
      for (int n = 0; n < C::kOutTiles; ++n) state.out[i][n][2 * h] *= keep, state.out[i][n][2 * h + 1] *= keep;
      state.base[i][h] = base;
    }
}

// The weights of key tiles n and n + 1.
template <typename C>
__device__ __forceinline__ void exp_and_pack(Weights<C> &p, State<C> &state, const Tile<C> &s, int n, float factor) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = r % 2;
      const float x = exp2_approx(s[i][n + r / 2][2 * h] * factor - state.base[i][h]);
      const float y = exp2_approx(s[i][n + r / 2][2 * h + 1] * factor - state.base[i][h]);
      if (!C::kTensorSums) state.sum[i][h] += x + y;
      p[i][r] = pack<C::kType>(x, y);
    }
}

// O += P V for the 16 keys from 8 * n on, and their part of the sums; V's rows are B's.
template <typename C>
__device__ __forceinline__ void add_up(State<C> &state, const Weights<C> &p, uint32_t v_tile, int n, int lane) {
  if constexpr (C::kTensorSums) {
    constexpr uint32_t kOnes = C::kType == Type::kHalf ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) mma<C::kType>(state.sum[i], p[i], kOnes, kOnes);
  }
#pragma unroll
  for (int column = 0; column < C::kOutTiles; column += 2) {
    uint32_t b[4];  // columns 8c.. with keys 8n.., 8n+8..; columns 8c+8.. with the same
    ldmatrix_x4_trans(b, v_tile + place_of<C>(8 * n + lane % 16, column + lane / 16));
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) {
      mma<C::kType>(state.out[i][column], p[i], b[0], b[1]);
      mma<C::kType>(state.out[i][column + 1], p[i], b[2], b[3]);
    }
  }
}

// Both, for a whole tile.
template <typename C>
__device__ __forceinline__ void exp_and_add_up(State<C> &state, const Tile<C> &s, uint32_t v_tile, float factor,
                                                 int lane) {
#pragma unroll
  for (int n = 0; n < C::kKeyTiles; n += 2) {
    Weights<C> p;
    exp_and_pack<C>(p, state, s, n, factor);
    add_up<C>(state, p, v_tile, n, lane);
  }
}

// The sum of a row's weights, for all lanes that hold parts of the row.
template <typename C>
__device__ __forceinline__ float row_sum(const State<C> &state, int i, int h) {
  return C::kTensorSums ? state.sum[i][2 * h] : sum_across<4>(state.sum[i][h]);
}

}  // namespace flashcore

#endif
