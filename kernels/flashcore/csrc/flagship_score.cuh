// What is done to scores for extended.cu: a tiling that is Scored caps them, biases them by distance (ALiBi) and sees a
// window of keys, each where the launch asks for it. All else is as in a tiling that is Masked.
//
// Query i stands at key i + align: distances and windows count from there. Keys behind the window are hidden as by a causal
// mask, whose shift has the window's width in it; tiles before the window are left out, as padding is.
#ifndef FLASHCORE_FLAGSHIP_SCORE_CUH
#define FLASHCORE_FLAGSHIP_SCORE_CUH

#include "flagship_mask.cuh"
#include "online_softmax.cuh"

namespace flashcore {

template <typename C>
struct Scored : Masked<C> {
  static constexpr bool kScored = true;
  static_assert(!C::kPipelined, "scores are changed before their maxima are looked for");
};

// For launches that ask for a window, or for sequences of different lengths, and nothing else: no score is changed but to -inf,
// at either end of a row, so that it may be pipelined, and a step in the middle is the flagship's own.
template <typename C>
struct Windowed : C {
  static constexpr bool kWindowed = true, kSpan = true;
};

// A window without an end; longer than any sequence that is taken.
constexpr int kUnbounded = 1 << 29;

struct ScoredTask : Task {
  float cap;            // 0: none. Else 2 log2(e) scale / cap, and `factor` is cap log2(e)
  const float *slopes;  // of ALiBi, or null: [B or 1][H]
  int64_t slope_batch;  // from those of a batch to the next, in elements
  float slope_factor;   // from a slope to one in the units of scores, which `factor` multiplies
  int align, left;      // keys before a query's place that it sees
  int width, right;     // from the first key that a row sees to its last, and from its place to its last, if causal
};

__device__ __forceinline__ float slope_of(const ScoredTask &task, const Spot &at) {
  return task.slopes ? task.slopes[at.batch * task.slope_batch + at.head] * task.slope_factor : 0.f;
}

// The first key that row `row` sees; negative where all are seen.
__device__ __forceinline__ int window_of(const ScoredTask &task, int row) { return row + task.align - task.left; }

template <typename C>
__device__ __forceinline__ Span within_window(const ScoredTask &task, Span span, int tile_row) {
  const int from = window_of(task, tile_row) / C::kTileN * C::kTileN;
  span.first = min(max(span.first, from), span.end);
  return span;
}

// To about 1e-7 of 1 (tanh.approx errs by 5e-4, which a cap of 50 makes 2.5 % of a weight). `x` is 2 log2(e) times the
// argument.
__device__ __forceinline__ float tanh_of(float x) { return 1.f - 2.f * reciprocal(exp2_approx(x) + 1.f); }

// The same of arguments to 0.5, so of `x` to kSmall, without the special function unit: errs by 5e-8 (fitted).
constexpr float kSmall = 1.4426950f;

__device__ __forceinline__ float tanh_of_small(float x) {
  const float square = x * x;
  const float high = (1.2074008e-06f * square - 3.1687691e-05f) * square + 6.6603976e-04f;
  return ((high * square - 1.3875796e-02f) * square + 3.4657356e-01f) * x;
}

// Caps all scores of a warp, by the short way where all are small against the cap, as most of a model's are.
template <typename C>
__device__ __forceinline__ void cap(float (&s)[C::kRowTiles][C::kKeyTiles][4], float factor) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
      for (float &x : s[i][n]) x *= factor, largest = fmaxf(largest, fabsf(x));
  const bool small = __all_sync(kAllLanes, largest <= kSmall);
  const auto each = [&](auto function) {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
        for (float &x : s[i][n]) x = function(x);
  };
  if (small) {
    each([](float x) { return tanh_of_small(x); });
  } else {
    each([](float x) { return tanh_of(x); });
  }
}

// -inf for keys before the rows' windows; that of a warp's first row begins `hidden` keys behind the tile's first.
template <int I, int N>
__device__ __forceinline__ void hide_before(float (&s)[I][N][4], int hidden, int lane) {
#pragma unroll
  for (int i = 0; i < I; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int before = hidden + 16 * i + lane / 4 + 8 * h - lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * n + e < before) s[i][n][2 * h + e] = -CUDART_INF_F;
    }
}

// The scores of a warp's rows with keys `key` and on: capped, biased, -inf before the window. `last`: the last key that the
// first row sees, if causal.
template <typename C>
__device__ __forceinline__ void adjust(float (&s)[C::kRowTiles][C::kKeyTiles][4], const ScoredTask &task, float slope,
                                       int key, int last, int lane) {
  if (task.cap != 0.f) cap<C>(s, task.cap);
  const int hidden = last - task.width - key;
  if (task.slopes) {
    const int ahead = last - task.right - key + lane / 4 - lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            s[i][n][2 * h + e] -= slope * fabsf(static_cast<float>(ahead + 16 * i + 8 * h) - static_cast<float>(8 * n + e));
  }
  if (hidden + C::kWarpRows - 1 > 0) hide_before(s, hidden, lane);
}

}  // namespace flashcore

#endif
