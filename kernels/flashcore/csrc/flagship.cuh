// The kernel of flagship.cu, a template over its tiling. Its ideas are told there.
#ifndef FLASHCORE_FLAGSHIP_CUH
#define FLASHCORE_FLAGSHIP_CUH

#include "bfloat16.cuh"

#ifndef SLACK
#define SLACK 0
#endif
#ifndef READ_AHEAD  // with SHARED_Q: steps of 16 dimensions whose fragments the compiler may read before it needs them
#define READ_AHEAD 4
#endif
#ifndef SWIZZLE  // 0, to see what bank conflicts cost
#define SWIZZLE 1
#endif

namespace flashcore {

#if defined(TILE_M) && TILE_M
constexpr bool kOneTiling = true;  // whoever asks for one gets it wherever it can run
#else
constexpr bool kOneTiling = false;
#endif

// What a launch needs to know, prepared on the host. Strides in elements of 2 bytes.
struct Task {
  const uint16_t *q, *k, *v;
  uint16_t *o;
  flashcore_strides q_stride, k_stride, v_stride, o_stride;
  float factor;   // from scores to powers of 2, positive
  uint32_t flip;  // xor onto two packed values of Q: the sign of the scale
  int S_q, S_kv, causal;
  // Query heads that share a head of K and V, to divide by: (head * multiplier) >> 32 is exact for heads below 2^16.
  uint32_t sharing;
};

// Which row tile of which head. Without a mask consecutive blocks share a head, so that its K and V come from L2. With
// it the tiles of all heads of a batch that see the most keys start first, and the short ones fill the gaps.
struct Spot {
  unsigned tile, head, batch;
};

__device__ __forceinline__ Spot spot(const Task &task) {
  if (task.causal) return {gridDim.y - 1 - blockIdx.y, blockIdx.x, blockIdx.z};
  return {blockIdx.x, blockIdx.y, blockIdx.z};
}

template <typename T>
__device__ __forceinline__ T *head_at(T *base, const flashcore_strides &stride, unsigned batch, unsigned head) {
  return base + static_cast<uint64_t>(batch) * stride.batch + static_cast<uint64_t>(head) * stride.head;
}

template <Type TYPE, int DIM, int ROWS, int ROWS_OF_WARP, int KEYS, int GROUPS, int RING, bool OVERLAP, int BLOCKS = 0,
          bool LATE_HALF = false, bool ONES = false, bool READ_Q = false, bool VOTE = false>
struct Tiling {
  static constexpr Type kType = TYPE;
  static constexpr int kDim = DIM, kTileM = ROWS, kWarpRows = ROWS_OF_WARP, kTileN = KEYS;
  static constexpr int kGroups = GROUPS, kStages = RING, kMinBlocks = BLOCKS;
  static constexpr bool kPipelined = OVERLAP, kStaggered = LATE_HALF, kTensorSums = ONES, kSharedQ = READ_Q;
  static constexpr bool kVoted = VOTE;

  static constexpr int kRowGroups = kTileM / kWarpRows;  // warps of a group
  static constexpr int kGroupThreads = 32 * kRowGroups, kThreads = kGroupThreads * kGroups;
  static constexpr int kRowTiles = kWarpRows / 16, kKeyTiles = kTileN / 8;  // of mma
  static constexpr int kDepthTiles = kDim / 16, kOutTiles = kDim / 8;
  static constexpr int kRow = kDim * 2, kRowChunks = kRow / 16;  // bytes and 16-byte chunks of a row

  static constexpr uint32_t kTileBytes = kTileN * kRow;
  static constexpr uint32_t kRingBytes = 2 * kStages * kTileBytes;  // K and V of one group
  static constexpr uint32_t kQBytes = kTileM * kRow;
  static constexpr uint32_t kRowStateBytes = kGroups > 1 ? kGroups * kTileM * 8 : 0;  // maximum and sum
  static constexpr uint32_t kSharedBytes = kQBytes + kRowStateBytes + kGroups * kRingBytes;
  // Of a device that may choose it among others. Queries read in each step keep fast tensor cores supplied (an mma in 8
  // cycles or less: 8.0, 9.0); those of 8.6 and 8.9, whose blocks have 99 KB at most, take 16 and want for nothing.
  static constexpr uint32_t kLeastShared = kSharedQ && kSharedBytes < 100 * 1024 ? 100 * 1024 : kSharedBytes;

  static_assert(kTileM % kWarpRows == 0 && kWarpRows % 16 == 0 && kTileN % 16 == 0, "whole mma tiles");
  static_assert(kThreads <= 1024 && kOutTiles % kGroups == 0 && kGroups < 16, "columns and barriers to share out");
  static_assert(!kPipelined || kStages >= 2, "the next K is needed during this step");
  static_assert(!kVoted || kTensorSums, "a vote takes whole rows' sums");
  // Where registers do not hold a tile's scores and its weights, the scores are computed again when they are needed.
  static constexpr bool kScoresAgain =
      kVoted && !kPipelined && kWarpRows * (kDim + kTileN + kTileN / 2) > 32 * 200;
  static_assert(!kStaggered || (kGroups % 2 == 0 && kGroups <= 8), "two halves, barrier 15 unused");
  // Where its keys and values were, if it does not fit where its keys were.
  static constexpr bool kFitsKeys = kTileM * kDim * 4 <= kStages * kTileBytes;
  static_assert(kGroups == 1 || kTileM * kDim * 4 <= kRingBytes, "a group's output fits where its tiles were");
};

// A number as an argument whose value the compiler knows.
template <int VALUE>
struct Number {
  static constexpr int value = VALUE;
};

template <typename C>
__device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t chunk) {
  return row * C::kRow + ((SWIZZLE ? chunk ^ row % 8 : chunk) << 4);
}

// Begin to copy rows first .. first + ROWS - 1 of a head; those from `end` on become zeros and are not read.
template <typename C, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows_of(uint32_t tile, const uint16_t *head, int64_t stride, unsigned first,
                                             unsigned end, unsigned thread) {
  constexpr unsigned kPass = THREADS / C::kRowChunks;  // rows at a time
  const unsigned row = thread / C::kRowChunks, chunk = thread % C::kRowChunks;
  const uint16_t *from = head + static_cast<uint64_t>(first + row) * stride + chunk * 8;
#pragma unroll
  for (unsigned down = 0; down < ROWS; down += kPass, from += kPass * stride) {
    if (ROWS % kPass == 0 || row + down < ROWS)
      cp_async_16(tile + place_of<C>(row + down, chunk), from, first + row + down < end);
  }
}

// A warp's queries: rows `first` on of a tile in shared memory; `flip` is the sign of the scale.
struct Queries {
  uint32_t tile;
  int first;
  uint32_t flip;
};

template <typename C>
__device__ __forceinline__ void read_q(uint32_t (&q)[4], const Queries &queries, int i, int k, int lane) {
  ldmatrix_x4(q, queries.tile + place_of<C>(queries.first + 16 * i + lane % 16, 2 * k + lane / 16));
  if (C::kSharedQ) return;  // flipped where they lie
#pragma unroll
  for (uint32_t &pair : q) pair ^= queries.flip;
}

// Give a tile of queries that is read in each step the sign of the scale, once, by all threads; it is here, for all.
template <typename C>
__device__ __forceinline__ void flip_tile(unsigned char *tile, uint32_t flip, unsigned thread) {
  if (flip == 0) return;
  for (unsigned at = thread * 16; at < C::kQBytes; at += C::kThreads * 16) {
    auto *chunk = reinterpret_cast<uint4 *>(tile + at);
    const uint4 x = *chunk;
    *chunk = make_uint4(x.x ^ flip, x.y ^ flip, x.z ^ flip, x.w ^ flip);
  }
  __syncthreads();
}

// What a warp carries from step to step. Index [i][h]: row g + 8 * h of row tile i, g = lane / 4.
template <typename C>
struct State {
  uint32_t q[C::kRowTiles][C::kDepthTiles][4];  // unless they are read again in each step
  float out[C::kRowTiles][C::kOutTiles][4];
  float maximum[C::kRowTiles][2];  // what exponents are relative to: the largest score so far, less any slack
  float base[C::kRowTiles][2];     // maximum * factor, finite
  float sum[C::kRowTiles][4];      // [h]: of this lane's columns only; with tensor sums, a fragment of P times ones
};

template <typename C>
using Tile = float[C::kRowTiles][C::kKeyTiles][4];
template <typename C>
using Weights = uint32_t[C::kRowTiles][C::kKeyTiles / 2][4];  // packed, as left operands

constexpr float kSlack = SLACK;  // in powers of 2; FP16 weights stay below 2^SLACK, their sums are FP32

__device__ __forceinline__ void zero(float (&c)[4]) { c[0] = c[1] = c[2] = c[3] = 0.f; }

template <typename C>
__device__ __forceinline__ void clear(State<C> &state) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
#pragma unroll
    for (int n = 0; n < C::kOutTiles; ++n) zero(state.out[i][n]);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      state.maximum[i][h] = -CUDART_INF_F, state.base[i][h] = C::kVoted ? kLowest : 0.f;
    zero(state.sum[i]);
  }
}

template <typename C>
__device__ __forceinline__ void keep_q(State<C> &state, const Queries &queries, int lane) {
  if (C::kSharedQ) return;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int k = 0; k < C::kDepthTiles; ++k) read_q<C>(state.q[i][k], queries, i, k, lane);
}

// Scores of key tiles n .. n + COUNT - 1 of a K tile in shared memory.
template <typename C, int COUNT>
__device__ __forceinline__ void scores(Tile<C> &s, const State<C> &state, const Queries &queries, uint32_t k_tile,
                                       int from, int lane) {
  constexpr int kAtOnce = C::kSharedQ ? READ_AHEAD : C::kDepthTiles;  // registers are scarce
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int n = from; n < from + COUNT; ++n) zero(s[i][n]);
#pragma unroll kAtOnce
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

// Follow the maxima of this tile's scores; where one grew beyond the slack, rescale what was summed up before.
template <typename C>
__device__ __forceinline__ void follow(State<C> &state, const Tile<C> &s, float factor, bool first) {
  float maximum[C::kRowTiles][2];
  bool grown = false;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < C::kKeyTiles; ++n) m = fmaxf(m, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
      maximum[i][h] = max_across<4>(m);
      grown |= maximum[i][h] * factor > state.maximum[i][h] * factor + kSlack;  // never with -inf on the left
    }
  if (!__any_sync(kAllLanes, grown)) return;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float m = fmaxf(maximum[i][h], state.maximum[i][h]);
      // No key seen yet: the maximum is -inf, and -inf - -inf is NaN. Any finite base gives 2^-inf = 0.
      const float base = m == -CUDART_INF_F ? 0.f : m * factor;
      if (!first) {
        const float keep = exp2_approx(state.maximum[i][h] * factor - base);
        if (C::kTensorSums) {
          state.sum[i][2 * h] *= keep, state.sum[i][2 * h + 1] *= keep;
        } else {
          state.sum[i][h] *= keep;
        }
#pragma unroll
        for (int n = 0; n < C::kOutTiles; ++n) state.out[i][n][2 * h] *= keep, state.out[i][n][2 * h + 1] *= keep;
      }
      state.maximum[i][h] = m;
      state.base[i][h] = base;
    }
}

// Voted: a row's base is set before its tile is looked at. So no maximum is looked for, unless the warp finds a weight
// above 1: then, and only then, bases are raised, and the tile is weighed again. That would be nearly every tile, since of
// 32 rows some row finds a new maximum. So a base is 2^k times above the maximum as soon as the sum of the row's weights
// is 4 times 2^k: a key that passes the old maximum by less has less than about a quarter of the weight. A power of two
// keeps the largest weight as exact as 1 is; the rounding of a weight that dominates its row would be seen in the output.
constexpr float kRoom = 4.f, kMostRoom = 10.f;  // the latter in powers of two: FP16's weights below 2^-14 lose digits

template <typename C>
__device__ __forceinline__ void raise(State<C> &state, const Tile<C> &s, float factor) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]);
#pragma unroll
      for (int n = 1; n < C::kKeyTiles; ++n) m = fmaxf(m, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
      m = max_across<4>(m) * factor;
      const float old = state.base[i][h], least = fmaxf(old, m);
      const float sum = state.sum[i][2 * h] * exp2_approx(old - least);  // of the weights, were it the base
      const float room = fminf(log2f(sum * (1.f / kRoom)), m + kMostRoom - least);
      const float base = least + fmaxf(floorf(room), 0.f);
      const float keep = exp2_approx(old - base);
      state.base[i][h] = base;
      state.sum[i][2 * h] *= keep, state.sum[i][2 * h + 1] *= keep;
#pragma unroll
      for (int n = 0; n < C::kOutTiles; ++n) state.out[i][n][2 * h] *= keep, state.out[i][n][2 * h + 1] *= keep;
    }
}

// The weights of key tile n, and the largest so far.
template <typename C>
__device__ __forceinline__ void weigh_tile(Weights<C> &p, const Tile<C> &s, const State<C> &state, int n, float factor,
                                           uint32_t &largest) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float x = exp2_approx(s[i][n][2 * h] * factor - state.base[i][h]);
      const float y = exp2_approx(s[i][n][2 * h + 1] * factor - state.base[i][h]);
      uint32_t &pair = p[i][n / 2][n % 2 * 2 + h];
      pair = pack<C::kType>(x, y);
      largest = max_packed<C::kType>(largest, pair);
    }
}

// The weights of a whole tile; whether any is above 1.
template <typename C>
__device__ __forceinline__ bool weigh_all(Weights<C> &p, const Tile<C> &s, const State<C> &state, float factor) {
  uint32_t largest = 0;
#pragma unroll
  for (int n = 0; n < C::kKeyTiles; ++n) weigh_tile(p, s, state, n, factor, largest);
  return above_one<C::kType>(largest);
}

// O += P V for the 16 keys from 8 * n on, and their part of the sums; V's rows are B's.
template <typename C>
__device__ __forceinline__ void add_up(State<C> &state, const uint32_t (&a)[C::kRowTiles][4], uint32_t v_tile, int n,
                                       int lane) {
  if constexpr (C::kTensorSums) {
    constexpr uint32_t kOnes = C::kType == Type::kHalf ? 0x3c003c00u : 0x3f803f80u;
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) mma<C::kType>(state.sum[i], a[i], kOnes, kOnes);
  }
#pragma unroll
  for (int column = 0; column < C::kOutTiles; column += 2) {
    uint32_t b[4];  // columns 8c.. with keys 8n.., 8n+8..; columns 8c+8.. with the same
    ldmatrix_x4_trans(b, v_tile + place_of<C>(8 * n + lane % 16, column + lane / 16));
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) {
      mma<C::kType>(state.out[i][column], a[i], b[0], b[1]);
      mma<C::kType>(state.out[i][column + 1], a[i], b[2], b[3]);
    }
  }
}

template <typename C>
__device__ __forceinline__ void add_up_weights(State<C> &state, const Weights<C> &p, uint32_t v_tile, int n,
                                               int lane) {
  uint32_t a[C::kRowTiles][4];
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) a[i][r] = p[i][n / 2][r];
  add_up<C>(state, a, v_tile, n, lane);
}

// O += P V for key tiles n and n + 1: their scores become weights, packed as the left operand.
template <typename C>
__device__ __forceinline__ void weigh(State<C> &state, const Tile<C> &s, uint32_t v_tile, int n, float factor,
                                      int lane) {
  uint32_t a[C::kRowTiles][4];
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = r % 2;
      const float x = exp2_approx(s[i][n + r / 2][2 * h] * factor - state.base[i][h]);
      const float y = exp2_approx(s[i][n + r / 2][2 * h + 1] * factor - state.base[i][h]);
      if (!C::kTensorSums) state.sum[i][h] += x + y;
      a[i][r] = pack<C::kType>(x, y);
    }
  add_up(state, a, v_tile, n, lane);
}

// The sum of a row's weights, for all lanes that hold parts of the row.
template <typename C>
__device__ __forceinline__ float row_sum(const State<C> &state, int i, int h) {
  return C::kTensorSums ? state.sum[i][2 * h] : sum_across<4>(state.sum[i][h]);
}

// Fragments to memory: two neighbours at a time, 16 bytes of a row by each quad.
template <typename C, int TILES>
__device__ __forceinline__ void write(const float (&out)[TILES][4], const float (&scale)[2], uint16_t *o,
                                      int64_t stride, int row, int end, int column, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h, row += 8) {
    if (row >= end) return;
    uint16_t *to = o + static_cast<uint64_t>(static_cast<unsigned>(row)) * stride + column + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILES; ++n)
      *reinterpret_cast<uint32_t *>(to + 8 * n) =
          pack<C::kType>(out[n][2 * h] * scale[h], out[n][2 * h + 1] * scale[h]);
  }
}

// All groups' results for the same rows become one. Each group leaves its output where its keys were, which nobody reads
// any more once the last step has begun; after one barrier each warp adds up some of the columns of its rows and writes
// them.
template <typename C>
__device__ __forceinline__ void merge(State<C> &state, unsigned char *rings, float2 *row_states, int group, int warp_row,
                                      float factor, uint16_t *o, int64_t stride, int count, int lane) {
  constexpr int kShare = C::kOutTiles / C::kGroups;  // column tiles per group
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
            make_float2(C::kVoted ? state.base[i][h] : state.maximum[i][h], sum);
    }
#pragma unroll
    for (int n = 0; n < C::kOutTiles; ++n) {
      const float(&c)[4] = state.out[i][n];
      *box(group, i, n) = make_float4(c[0], c[1], c[2], c[3]);
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
      float maximum = -CUDART_INF_F, sum = 0.f;
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) maximum = fmaxf(maximum, states[g * C::kTileM].x);
#pragma unroll
      for (int g = 0; g < C::kGroups; ++g) {  // the maximum is finite: some group has seen key 0
        weight[g][h] = exp2_approx((states[g * C::kTileM].x - maximum) * (C::kVoted ? 1.f : factor));
        sum += states[g * C::kTileM].y * weight[g][h];
      }
      scale[h] = reciprocal(sum);
    }
    float out[kShare][4];
#pragma unroll
    for (int n = 0; n < kShare; ++n) zero(out[n]);
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g)
#pragma unroll
      for (int n = 0; n < kShare; ++n) {
        const float4 part = *box(g, i, group * kShare + n);
        out[n][0] += part.x * weight[g][0], out[n][1] += part.y * weight[g][0];
        out[n][2] += part.z * weight[g][1], out[n][3] += part.w * weight[g][1];
      }
    write<C>(out, scale, o, stride, warp_row + 16 * i + lane / 4, count, 8 * kShare * group, lane);
  }
}

// The most shared memory a block can have on the architecture that is compiled for. A tiling that wants more is never
// chosen there (flagship.cu asks the device), and its kernel is left out: a quarter of the time of a build for an L4.
#if !defined(__CUDA_ARCH__)
constexpr uint32_t kMostShared = UINT32_MAX;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr uint32_t kMostShared = 99 * 1024;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr uint32_t kMostShared = 163 * 1024;
#else
constexpr uint32_t kMostShared = 227 * 1024;
#endif

template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) flashcore_flagship(const Task task) {
  if constexpr ((kOneTiling ? C::kSharedBytes : C::kLeastShared) > kMostShared) {
    __trap();
    return;
  }
  constexpr int kStages = C::kStages;
  const unsigned thread = threadIdx.x, group_thread = thread % C::kGroupThreads;
  const int lane = thread % 32, group = thread / C::kGroupThreads;
  const int warp_row = group_thread / 32 * C::kWarpRows;
  const Spot at = spot(task);
  const unsigned kv_head = task.sharing ? __umulhi(at.head, task.sharing) : at.head;
  const uint16_t *k = head_at(task.k, task.k_stride, at.batch, kv_head);
  const uint16_t *v = head_at(task.v, task.v_stride, at.batch, kv_head);
  const int tile_row = at.tile * C::kTileM, first_row = tile_row + warp_row;
  const int keys = task.causal ? min(task.S_kv, tile_row + C::kTileM) : task.S_kv;  // that any row of this block sees
  const int key_tiles = static_cast<unsigned>(keys + C::kTileN - 1) / C::kTileN;
  // Of this group: tiles group, group + kGroups ..
  const int steps = static_cast<unsigned>(key_tiles - group + C::kGroups - 1) / C::kGroups;
  const float factor = task.factor;

  unsigned char *const memory = dynamic_shared();
  unsigned char *const rings = memory + C::kQBytes + C::kRowStateBytes;
  const uint32_t q_tile = shared_address(memory);
  const Queries queries = {q_tile, warp_row, task.flip};
  const uint32_t k_ring = shared_address(rings) + group * C::kRingBytes, v_ring = k_ring + kStages * C::kTileBytes;
  const auto key_of = [&](int step) { return (step * C::kGroups + group) * C::kTileN; };
  const auto slot = [&](int step) { return (kStages == 1 ? 0 : step % kStages) * C::kTileBytes; };
  const auto load = [&](uint32_t ring, const uint16_t *head, int64_t stride, int step) {
    if (step < steps)
      copy_rows_of<C, C::kTileN, C::kGroupThreads>(ring + slot(step), head, stride, key_of(step), keys, group_thread);
  };
  const auto load_k = [&](int step) { load(k_ring, k, task.k_stride.row, step); };
  const auto load_v = [&](int step) { load(v_ring, v, task.v_stride.row, step); };
  const auto meet = [&] {  // all that share this group's rings
    if (C::kRowGroups > 1) {
      barrier_sync(1 + group, C::kGroupThreads);
    } else {
      __syncwarp();
    }
  };

  const auto load_q = [&](auto threads) {
    const uint16_t *q = head_at(task.q, task.q_stride, at.batch, at.head);
    copy_rows_of<C, C::kTileM, decltype(threads)::value>(q_tile, q, task.q_stride.row, tile_row, task.S_q, thread);
  };

  // Staggered: the second half of the groups begins to copy when the first half's copies are on their way, so that the
  // first half computes while the rest arrives. The first half copies the queries, first of all, and waits for them
  // before it lets the second half go: they are here by the time that all of its copies have been issued, so that this
  // one barrier, which the second half has long reached, says both.
  constexpr int kEarly = C::kStaggered ? C::kThreads / 2 : C::kThreads;  // threads
  const bool early = !C::kStaggered || thread < kEarly;
  if constexpr (C::kStaggered) {
    if (early) {
      load_q(Number<kEarly>{});
      cp_async_commit();
    } else {
      barrier_sync(15, C::kThreads);
    }
    load_k(0);
  } else {
    load_k(0);
    load_q(Number<kEarly>{});
  }
  cp_async_commit();
  const auto first_here = [&](auto pending) {  // the queries, and each group's first keys; `pending` copies may be late
    constexpr int kPending = decltype(pending)::value;
    if constexpr (C::kStaggered) {
      if (early) {
        cp_async_wait<kPending + 1>();
        barrier_sync(15, C::kThreads);
      }
      cp_async_wait<kPending>();
      meet();
    } else {
      cp_async_wait<kPending>();
      __syncthreads();
    }
  };

  State<C> state;
  Tile<C> s;
  clear(state);
  const auto masked = [&](Tile<C> &of, int step) {
    const int key = key_of(step);
    if (key + C::kTileN > keys || (task.causal && key + C::kTileN - 1 > first_row))
      mask<C>(of, key, first_row, keys, task.causal, lane);
  };

  if constexpr (!C::kPipelined) {
    // Copies in flight, oldest first: K(0) V(0) K(1) V(1) ..; K's slot is free once its scores are, V's after the step.
    load_v(0);
    cp_async_commit();
#pragma unroll
    for (int step = 1; step < kStages; ++step) {
      load_k(step);
      cp_async_commit();
      load_v(step);
      cp_async_commit();
    }
    first_here(Number<2 * kStages - 1>{});
    if constexpr (C::kSharedQ) flip_tile<C>(memory, task.flip, thread);
    keep_q(state, queries, lane);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      if (step > 0) {
        cp_async_wait<2 * kStages - 2>();
        meet();
        load_v(step - 1 + kStages);
        cp_async_commit();
      }
      const bool needed = !(task.causal && key_of(step) > first_row + C::kWarpRows - 1);
      Weights<C> p;
      if (needed && C::kVoted) {
        bool above = false, again = false;
        do {
          if (!again || C::kScoresAgain) {
            scores<C, C::kKeyTiles>(s, state, queries, k_ring + slot(step), 0, lane);
            masked(s, step);
          }
          if (again) raise(state, s, factor);
          above = weigh_all(p, s, state, factor);
          again = !again && __any_sync(kAllLanes, above);
        } while (again);
      } else if (needed) {
        scores<C, C::kKeyTiles>(s, state, queries, k_ring + slot(step), 0, lane);
        masked(s, step);
        follow(state, s, factor, step == 0);
      }
      cp_async_wait<2 * kStages - 2>();
      meet();
      load_k(step + kStages);
      cp_async_commit();
      if (needed) {
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; n += 2) {
          if constexpr (C::kVoted) {
            add_up_weights<C>(state, p, v_ring + slot(step), n, lane);
          } else {
            weigh(state, s, v_ring + slot(step), n, factor, lane);
          }
        }
      }
    }
  } else {
    // Copies in flight: K(0), then V(n) with K(n + 1), which a step needs together.
    //
    // Voted, P V is a tile behind: V(n) is multiplied between the exponentials of tile n + 1.
    const auto load_pair = [&](int step) {
      load_v(step);
      load_k(step + 1);
      cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) load_pair(step);
    first_here(Number<kStages - 1>{});
    if constexpr (C::kSharedQ) flip_tile<C>(memory, task.flip, thread);
    keep_q(state, queries, lane);
    if (steps > 0) {
      scores<C, C::kKeyTiles>(s, state, queries, k_ring, 0, lane);
      masked(s, 0);
    }
    Weights<C> p;
    if (C::kVoted && steps > 0) {
      raise(state, s, factor);
      weigh_all(p, s, state, factor);
    }
#pragma unroll 1
    for (int step = 0; C::kVoted && step < steps - 1; ++step) {
      cp_async_wait<kStages - 2>();
      meet();
      load_pair(step + kStages - 1);
      scores<C, C::kKeyTiles>(s, state, queries, k_ring + slot(step + 1), 0, lane);
      masked(s, step + 1);
      uint32_t largest = 0;
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; n += 2) {
        add_up_weights<C>(state, p, v_ring + slot(step), n, lane);
        weigh_tile(p, s, state, n, factor, largest);
        weigh_tile(p, s, state, n + 1, factor, largest);
      }
      if (__any_sync(kAllLanes, above_one<C::kType>(largest))) {
        raise(state, s, factor);
        weigh_all(p, s, state, factor);
      }
    }
#pragma unroll 1
    for (int step = 0; !C::kVoted && step < steps - 1; ++step) {
      cp_async_wait<kStages - 2>();
      meet();
      load_pair(step + kStages - 1);
      follow(state, s, factor, step == 0);
      constexpr int kCount = C::kRowTiles == 1 && C::kKeyTiles % 4 == 0 ? 4 : 2;  // key tiles whose sums run in parallel
      Tile<C> next;
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; n += kCount) {
        scores<C, kCount>(next, state, queries, k_ring + slot(step + 1), n, lane);
#pragma unroll
        for (int m = n; m < n + kCount; m += 2) weigh(state, s, v_ring + slot(step), m, factor, lane);
      }
      masked(next, step + 1);
#pragma unroll
      for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[i][n][e] = next[i][n][e];
    }
    if (steps > 0) {
      cp_async_wait<0>();
      meet();
      if (!C::kVoted) follow(state, s, factor, steps == 1);
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; n += 2) {
        if constexpr (C::kVoted) {
          add_up_weights<C>(state, p, v_ring + slot(steps - 1), n, lane);
        } else {
          weigh(state, s, v_ring + slot(steps - 1), n, factor, lane);
        }
      }
    }
  }

  uint16_t *o = head_at(task.o, task.o_stride, at.batch, at.head) + tile_row * task.o_stride.row;
  if constexpr (C::kGroups > 1) {
    if (!C::kFitsKeys) meet();  // all have left this group's values
    auto *row_states = reinterpret_cast<float2 *>(memory + C::kQBytes);
    merge(state, rings, row_states, group, warp_row, factor, o, task.o_stride.row, task.S_q - tile_row, lane);
  } else {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i) {
      float scale[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) scale[h] = reciprocal(row_sum(state, i, h));
      write<C>(state.out[i], scale, o, task.o_stride.row, warp_row + 16 * i + lane / 4, task.S_q - tile_row, 0, lane);
    }
  }
}

}  // namespace flashcore

#endif
