// The online softmax of one warp, on the fragments of mma.sync (tensor.cuh): what all kernels of the ladder share.
//
// Indices: [i][h] is row g + 8 * h of row tile i, where a row tile is 16 rows and g = lane / 4; [i][n] is key tile n, of 8
// keys. The 4 lanes of a quad hold a row. `base` is the largest score of a row so far, times the scale: exponents are
// relative to it, in powers of two, so that the largest weight is exactly 1. When it grows, what was summed up before is
// multiplied by `keep`.
#ifndef FLASHCORE_ONLINE_SOFTMAX_CUH
#define FLASHCORE_ONLINE_SOFTMAX_CUH

#include "bfloat16.cuh"

namespace flashcore {

// -inf for keys that do not exist, or that causal rows must not see. `key` and `row` are those of the tile's corner.
template <int R, int N>
__device__ __forceinline__ void mask(float (&s)[R][N][4], int key, int row, int keys, int causal, int lane) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int end = causal ? min(keys, row + 16 * i + lane / 4 + 8 * h + 1) : keys;
      const int left = end - key - lane % 4 * 2;  // of this lane's columns, those below are seen
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * n + e >= left) s[i][n][2 * h + e] = -CUDART_INF_F;
    }
}

// The same, and for keys before a row's first one, by one comparison. `first_of(last)` is the first key that a row sees whose
// last one, if causal, is `last`.
template <int R, int N, typename First>
__device__ __forceinline__ void mask_both_ends(float (&s)[R][N][4], int key, int row, int keys, int causal, int lane,
                                               First first_of) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int last = row + 16 * i + lane / 4 + 8 * h, first = first_of(last), end = causal ? min(keys, last + 1) : keys;
      const unsigned count = max(end - first, 0);
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (static_cast<unsigned>(key + lane % 4 * 2 + 8 * n + e - first) >= count) s[i][n][2 * h + e] = -CUDART_INF_F;
    }
}

// The largest scores of this lane's columns: none yet; and those of COUNT key tiles, too, from `from` on.
template <int R>
__device__ __forceinline__ void reset_max(float (&maxima)[R][2]) {
#pragma unroll
  for (int i = 0; i < R; ++i) maxima[i][0] = maxima[i][1] = -CUDART_INF_F;
}

template <int COUNT, int R, int N>
__device__ __forceinline__ void row_max(float (&maxima)[R][2], const float (&s)[R][N][4], int from = 0) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int n = from; n < from + COUNT; ++n)
        maxima[i][h] = fmaxf(maxima[i][h], fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
}

// Of whole rows: the rows' shuffles are under way at once.
template <int R>
__device__ __forceinline__ void quad_max(float (&maxima)[R][2]) {
#pragma unroll
  for (int step = 2; step > 0; step /= 2)
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        maxima[i][h] = fmaxf(maxima[i][h], __shfl_xor_sync(kAllLanes, maxima[i][h], step));
}

template <int R, int N>
__device__ __forceinline__ void max_of_tile(float (&maxima)[R][2], const float (&s)[R][N][4]) {
  reset_max(maxima);
  row_max<N>(maxima, s);
  quad_max(maxima);
}

// Bring one row's base to a new maximum; returns `keep`. Without asking whether it grew: of 16 or 32 rows one mostly has,
// and a branch would keep these products from being mixed with what comes before and after.
__device__ __forceinline__ float raise_base(float &base, float maximum, float factor) {
  const float raised = fmaxf(maximum * factor, base), keep = exp2_approx(base - raised);
  base = raised;
  return keep;
}

// Multiply a row's output by `keep`.
template <int O>
__device__ __forceinline__ void scale_row(float (&out)[O][4], int h, float keep) {
#pragma unroll
  for (int n = 0; n < O; ++n) out[n][2 * h] *= keep, out[n][2 * h + 1] *= keep;
}

// The weights of the 16 keys from 8 * n on, packed as a left operand: C fragments of S become an A fragment of P. They are
// added to this lane's sums, if SUMS.
template <Type T, bool SUMS, int R, int N, int S>
__device__ __forceinline__ void exp_and_pack(uint32_t (&p)[R][4], float (&sum)[R][S], const float (&base)[R][2],
                                             const float (&s)[R][N][4], int n, float factor) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = r % 2;
      const float x = exp2_approx(s[i][n + r / 2][2 * h] * factor - base[i][h]);  // exactly 0 where masked
      const float y = exp2_approx(s[i][n + r / 2][2 * h + 1] * factor - base[i][h]);
      if (SUMS) sum[i][h] += x + y;
      p[i][r] = pack<T>(x, y);
    }
}

// What a warp of FP16 carries from tile to tile: its output so far, not yet divided by the sums.
template <int R, int O>
struct Attended {
  float out[R][O][4];
  float base[R][2];
  float sum[R][2];  // of this lane's columns; the quad is added up once, at the end

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int n = 0; n < O; ++n) zero(out[i][n]);
      base[i][0] = base[i][1] = kLowest, sum[i][0] = sum[i][1] = 0.f;
    }
  }

  // One step: the weights `p` of a whole tile of scores; sums and output are brought to the new maxima.
  template <int N>
  __device__ __forceinline__ void softmax(uint32_t (&p)[N / 2][R][4], const float (&s)[R][N][4], float factor) {
    float maxima[R][2];
    max_of_tile(maxima, s);
#pragma unroll
    for (int i = 0; i < R; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float keep = raise_base(base[i][h], maxima[i][h], factor);
        sum[i][h] *= keep;
        scale_row(out[i], h, keep);
      }
#pragma unroll
    for (int n = 0; n < N; n += 2) exp_and_pack<Type::kHalf, true>(p[n / 2], sum, base, s, n, factor);
  }

  // What a row's output is to be multiplied by at the end. All lanes take part.
  __device__ __forceinline__ float last_scale(int i, int h) const { return reciprocal(reduce_sum<4>(sum[i][h])); }
};

}  // namespace flashcore

#endif
