// What a warp of flagship.cu does with its rows: scores, weights, what they add up to, and how groups merge.
#ifndef FLASHCORE_FLAGSHIP_ROWS_CUH
#define FLASHCORE_FLAGSHIP_ROWS_CUH

#include "flagship_tiling.cuh"
#include "online_softmax.cuh"

namespace flashcore {

// What a warp carries from step to step. Index [i][h]: row g + 8 * h of row tile i, g = lane / 4.
template <typename C>
struct State {
  uint32_t q[C::kRowTiles][C::kDepthTiles][4];  // unless they are read again in each step
  float out[C::kRowTiles][C::kOutTiles][4];
  float base[C::kRowTiles][2];  // what exponents are relative to: the largest score so far, in powers of two
  float sum[C::kRowTiles][4];   // [h]: of this lane's columns only; with tensor sums, a fragment of P times ones
  unsigned turn;                // out[i][n] is of column tile n ^ turn
};

template <typename C>
using Tile = float[C::kRowTiles][C::kKeyTiles][4];
template <typename C>
using Weights = uint32_t[C::kRowTiles][4];  // of 16 keys, packed as a left operand

// A group that merges begins with the columns that it will write, which it keeps in registers (kOwn of flagship_tiling.cuh).
template <typename C>
__device__ __forceinline__ void clear(State<C> &state, int group) {
  state.turn = C::kOwn * group;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
#pragma unroll
    for (int n = 0; n < C::kOutTiles; ++n) zero(state.out[i][n]);
    state.base[i][0] = state.base[i][1] = kLowest;  // finite: a difference of two is never NaN
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

// Scores of key tiles from .. from + COUNT - 1 of a K tile in shared memory.
template <typename C, int COUNT>
__device__ __forceinline__ void scores(Tile<C> &s, const State<C> &state, const Queries &queries, uint32_t k_tile,
                                       int from, int lane) {
  const auto fragment_of = [&](uint32_t (&q)[4], int i, int k) {
    if (C::kSharedQ) {
      read_q<C>(q, queries, i, k, lane);
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) q[r] = state.q[i][k][r];
    }
  };
  multiply_qk<C::kType, COUNT, C::kDepthTiles>(s, fragment_of, k_tile, from, lane, place_of<C>);
}

// Make what was summed up relative to the new maxima.
template <typename C>
__device__ __forceinline__ void rescale(State<C> &state, const float (&maxima)[C::kRowTiles][2], float factor) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float keep = raise_base(state.base[i][h], maxima[i][h], factor);
      if (C::kTensorSums) {
        state.sum[i][2 * h] *= keep, state.sum[i][2 * h + 1] *= keep;
      } else {
        state.sum[i][h] *= keep;
      }
      scale_row(state.out[i], h, keep);
    }
}

// The same of the first tile: nothing was summed up before it.
template <typename C>
__device__ __forceinline__ void begin_bases(State<C> &state, const float (&maxima)[C::kRowTiles][2], float factor) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) state.base[i][h] = fmaxf(maxima[i][h] * factor, kLowest);
}

// The weights of key tiles n and n + 1.
template <typename C>
__device__ __forceinline__ void weights_of(Weights<C> &p, State<C> &state, const Tile<C> &s, int n, float factor) {
  exp_and_pack<C::kType, !C::kTensorSums>(p, state.sum, state.base, s, n, factor);
}

// O += P V for the 16 keys from 8 * n on, and their part of the sums.
template <typename C>
__device__ __forceinline__ void add_up(State<C> &state, const Weights<C> &p, uint32_t v_tile, int n, int lane) {
  if constexpr (C::kTensorSums) {
    constexpr uint32_t kOnes = C::kType == Type::kHalf ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) mma<C::kType>(state.sum[i], p[i], kOnes, kOnes);
  }
  const auto place = [turn = state.turn](uint32_t row, uint32_t chunk) { return place_of<C>(row, chunk ^ turn); };
  multiply_pv<C::kType>(state.out, p, v_tile, n, lane, place);
}

// Both, for a whole tile.
template <typename C>
__device__ __forceinline__ void exp_and_add_up(State<C> &state, const Tile<C> &s, uint32_t v_tile, float factor,
                                               int lane) {
#pragma unroll
  for (int n = 0; n < C::kKeyTiles; n += 2) {
    Weights<C> p;
    weights_of<C>(p, state, s, n, factor);
    add_up<C>(state, p, v_tile, n, lane);
  }
}

// The sum of a row's weights, for all lanes that hold parts of the row.
template <typename C>
__device__ __forceinline__ float row_sum(const State<C> &state, int i, int h) {
  return C::kTensorSums ? state.sum[i][2 * h] : reduce_sum<4>(state.sum[i][h]);
}

// What a row's output is multiplied by at the end. Without a mask every row sees a key.
template <typename C>
__device__ __forceinline__ float scale_of(float sum) {
  return C::kSpan && sum == 0.f ? 0.f : reciprocal(sum);
}

// All groups' results for the same rows become one. Each group leaves its output where its keys were, which none of its
// warps reads any more (kReadToTheEnd), but for the columns of its own; after one barrier each warp adds these up for its rows
// and writes them. Index g, beside columns of its own: of group g ^ group.
template <typename C>
__device__ __forceinline__ void merge(State<C> &state, unsigned char *rings, float2 *row_states, int group, int warp_row,
                                      uint16_t *o, int64_t stride, int count, int lane) {
  constexpr int kShare = C::kOutTiles / C::kGroups;  // column tiles per group
  const auto other = [&](int g) { return C::kOwn ? g ^ group : g; };
  const auto box = [&](int of, int i, int n) {       // a fragment: 16 bytes a lane, neighbours side by side
    const int tile = ((warp_row / 16 + i) * C::kOutTiles + n) * 32 + lane;
    return reinterpret_cast<float4 *>(rings + of * C::kRingBytes) + tile;
  };
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = row_sum(state, i, h);
      if (lane % 4 == 0)
        row_states[group * C::kTileM + warp_row + 16 * i + lane / 4 + 8 * h] =
            make_float2(state.base[i][h], sum);
    }
#pragma unroll
    for (int n = C::kOwn; n < C::kOutTiles; ++n) {
      const float(&c)[4] = state.out[i][n];
      *box(group, i, n ^ state.turn) = make_float4(c[0], c[1], c[2], c[3]);
    }
  }
  // The second barrier is compute-sanitizer's: with one, its racecheck reports writes before and reads behind it as a
  // race, on some warps of nearly every run. There is none: delaying any group before it changes no bit of the results
  // (leaving it out does, in every launch). With two it is silent, and they cost 0.1 % (docs/flagship-notes.md).
  __syncthreads();
  __syncthreads();
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
    float weight[C::kGroups][2], scale[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 *states = row_states + warp_row + 16 * i + lane / 4 + 8 * h;
      float base = kLowest, sum = 0.f;
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) base = fmaxf(base, states[other(g) * C::kTileM].x);
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {
        weight[g][h] = exp2_approx(states[other(g) * C::kTileM].x - base);
        sum += states[other(g) * C::kTileM].y * weight[g][h];
      }
      scale[h] = scale_of<C>(sum);
    }
    float out[kShare][4];
#pragma unroll
    for (int n = 0; n < kShare; ++n) zero(out[n]);
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g)
#pragma unroll
      for (int n = 0; n < kShare; ++n) {
        const float(&own)[4] = state.out[i][n];
        const float4 part = C::kOwn && g == 0 ? make_float4(own[0], own[1], own[2], own[3])
                                              : *box(other(g), i, group * kShare + n);
        out[n][0] += part.x * weight[g][0], out[n][1] += part.y * weight[g][0];
        out[n][2] += part.z * weight[g][1], out[n][3] += part.w * weight[g][1];
      }
    store<C::kType>(out, scale, o, stride, warp_row + 16 * i + lane / 4, count, 8 * kShare * group, lane);
  }
}

}  // namespace flashcore

#endif
