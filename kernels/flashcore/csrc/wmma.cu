// wmma: both products on the tensor cores, through CUDA's own C++ interface, nvcuda::wmma.
//
// The idea: WMMA does not say which lane holds which element of a fragment, so whatever needs rows goes through shared
// memory. The less that is, the better: shared memory is what such a kernel runs out of. So
//
// - Two warps share PAIR_ROWS query rows. Of each tile of keys each takes half, Q K^T for 32 rows by 16 keys, and of the
//   output half the columns. Each fragment of K and of V then feeds two products, and Q stays in fragments.
// - Scores never leave their registers. Weights are 2^(score - reference), and for a reference that is known before the
//   tile, element by element: only they, as halves, cross shared memory, which the other warp needs anyhow. Row sums
//   are a product, too: the weights times a column of ones.
// - The reference must not be below the row's maximum, or weights overflow. Whether any weight is above 1 is one vote of
//   the block, at the one barrier that a tile needs anyhow. If so, and only then, a pair looks at its rows: maxima go
//   through shared memory, outputs and sums are brought to the new references, the tile is weighed again.
// - That would be nearly every tile, since of 64 rows some row finds a new maximum. So a reference is 2^k times above
//   the maximum, as soon as the sum of the row's weights is 4 times 2^k: a key that passes the old maximum by less has
//   less than about a quarter of the weight. A power of two keeps the largest weight as exact as 1 is; FP16's rounding
//   of a weight that dominates its row would be seen in the output.
//
// Factors per row are loaded as fragments of their own, every column the same (a stride of zero). Elements of one place
// lie in the same place of fragments of halves and of floats: so it is on every architecture that this is built for, and
// each check of the kernel would see it change.

#if IN_REGISTERS  // another way, to be measured against this one
#include "wmma_registers.cuh"
#else

#include <mma.h>

#include "tiles.cuh"

#ifndef TILE_N  // keys per tile
#define TILE_N 32
#endif
#ifndef WARPS  // per block, in pairs
#define WARPS 4
#endif
#ifndef PAIR_ROWS  // query rows of a pair of warps
#define PAIR_ROWS 32
#endif
#ifndef MOST_REGISTERS  // of a thread; 0: the budgets below
#define MOST_REGISTERS 0
#endif
#ifndef KEEP_REFERENCE  // 1: rows' references stay in registers, instead of being loaded for each tile
#define KEEP_REFERENCE 0
#endif

namespace {

using namespace flashcore;
using namespace nvcuda;

constexpr int kThreads = 32 * WARPS;
constexpr int kPairs = WARPS / 2;
constexpr int kTileRows = kPairs * PAIR_ROWS;
constexpr int kRowTiles = PAIR_ROWS / 16;
constexpr int kKeyTiles = TILE_N / 32;            // of 16 keys, of a warp's half of a tile
constexpr int kColumnTiles = kHeadDim / 32;       // of 16 columns, of a warp's half of the output
constexpr int kDepthTiles = kHeadDim / 16;
static_assert(TILE_N % (kThreads / kChunks) == 0, "every thread copies equally many rows");
static_assert((PAIR_ROWS == 16 || PAIR_ROWS == 32) && TILE_N % 32 == 0 && WARPS % 2 == 0, "whole fragments, for each warp of a pair");

// Rows are 16 bytes longer than their contents: eight rows then start in eight different groups of four banks. (WMMA
// takes a start and a stride, so the swizzle of tiles.cuh is not for it.)
constexpr int kRow = kHeadDim + 8;      // halves, of Q, K, V and the output
constexpr int kWeightRow = TILE_N + 8;  // halves, of a pair's weights
constexpr int kBoxRow = 16 + 4;         // floats: of one fragment, laid out for reading by rows

// Shared memory: two tiles of K, two of V, two of weights for each pair (the second while somebody still reads the
// first), and numbers for each row. Until weights are written, their place is two boxes, for a fragment of each warp.
constexpr uint32_t kTileBytes = TILE_N * kRow * 2;
constexpr uint32_t kBoxBytes = 16 * kBoxRow * 4;
constexpr uint32_t kPairBytes = PAIR_ROWS * kWeightRow * 2 > 2 * kBoxBytes ? PAIR_ROWS * kWeightRow * 2 : 2 * kBoxBytes;
constexpr uint32_t kWeightBytes = kPairs * kPairBytes;
struct RowNumbers {  // of a pair's rows
  float reference[PAIR_ROWS], maximum[PAIR_ROWS], correction[PAIR_ROWS];
  float found[2][PAIR_ROWS], sum[2][PAIR_ROWS];  // by each warp of the pair; a sum is both parts together
  float above[16];  // [side]: whether a warp has weights above 1; padded for the alignment of the next pair
};
constexpr uint32_t kNumbersAt = 4 * kTileBytes + 2 * kWeightBytes;
constexpr uint32_t kSharedBytes = kNumbersAt + kPairs * sizeof(RowNumbers);
static_assert(kTileBytes % 32 == 0 && kPairBytes % 32 == 0 && PAIR_ROWS * 4 % 32 == 0, "WMMA wants 32-byte alignment");
static_assert(kTileRows * kRow * 2 <= kNumbersAt, "Q passes through shared memory at the start, the output at the end");
static_assert(kSharedBytes <= 64 * 1024, "the budget of this kernel");

// Left alone the compiler takes more registers than it needs, to fetch fragments earlier, and then fewer warps fit. 120
// are this kernel's budget on the card it is for; 128 let as many warps run. A compiler older than CUDA 12.4 cannot be
// told.
#if !defined(__maxnreg__)
#define REGISTERS __launch_bounds__(kThreads)
#elif MOST_REGISTERS
#define REGISTERS __maxnreg__(MOST_REGISTERS)
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define REGISTERS __maxnreg__(128)
#else
#define REGISTERS __maxnreg__(120)
#endif

using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using Keys = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major>;  // K's rows are B's columns
using Values = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using Halves = wmma::fragment<wmma::accumulator, 16, 16, 16, __half>;

constexpr float kRoom = 4.f;          // a row's sum may be this many times the largest weight above its maximum
constexpr float kMostRoom = 10.f;     // in powers of two: weights below 2^-14 lose digits

// Who this thread is, and what is its warp's. Rare paths make it anew, from thread_again(): registers are short.
struct Warp {
  int pair, side, lane;
  RowNumbers *rows;  // of the pair
  __half *weights;   // of the pair, of the tile in this half
  float *box;        // for a fragment, in the same place

  __device__ __forceinline__ Warp(unsigned char *memory, int half, unsigned thread) {
    pair = thread / 64, side = thread / 32 % 2, lane = thread % 32;
    rows = reinterpret_cast<RowNumbers *>(memory + kNumbersAt) + pair;
    unsigned char *mine = memory + 4 * kTileBytes + half * kWeightBytes + pair * kPairBytes;
    weights = reinterpret_cast<__half *>(mine);
    box = reinterpret_cast<float *>(mine + side * kBoxBytes);
  }
  __device__ __forceinline__ __half *own_weights() const { return weights + side * (TILE_N / 2); }
  // The first row of the i-th row tile. Each warp of a pair begins with another one: with the one whose sums it adds up.
  __device__ __forceinline__ int row_of(int i) const { return kRowTiles == 2 ? 16 * (i ^ side) : 0; }
  __device__ __forceinline__ void meet() const { barrier_sync(1 + pair, 64); }  // the other warp of the pair
};

// What a warp carries from tile to tile.
struct State {
  Left q[kRowTiles][kDepthTiles];
  Sum out[kRowTiles][kColumnTiles];
  Sum sum;  // every column the same: the row sums that this warp adds up (its_sum)
  Sum reference[KEEP_REFERENCE ? kRowTiles : 1];
};

using Scores = Sum[kRowTiles][kKeyTiles];

// A thread's share of the copies of K and V: chunk `thread % 8` of every kCopyRows-th row.
constexpr int kCopyRows = kThreads / kChunks;
struct Feed {
  const __half *k, *v;
  int left;     // rows from this thread's first one in V's next tile to the last there is
  uint32_t to;  // in the first tile of K

  __device__ Feed(const flashcore_args &a, const Place &at, int rows, uint32_t tiles) {
    const int row = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    k = head_of(a.k, a.k_stride, at) + row * a.k_stride.row + chunk * 8;
    v = head_of(a.v, a.v_stride, at) + row * a.v_stride.row + chunk * 8;
    left = rows - row, to = tiles + row * kRow * 2 + chunk * 16;
  }

  // Begin to copy a tile to one of K's two places, V's tile before that to the other one of V's, and go on to the next.
  __device__ __forceinline__ void next(const flashcore_args &a, int half) {
    next_k(a, half, left - TILE_N);
    copy(to + (3 - half) * kTileBytes, v, a.v_stride.row, left);
    v += TILE_N * a.v_stride.row, left -= TILE_N;
  }
  __device__ __forceinline__ void next_k(const flashcore_args &a, int half, int rows) {
    copy(to + half * kTileBytes, k, a.k_stride.row, rows);
    k += TILE_N * a.k_stride.row;
  }

 private:
  // Rows that do not exist become zeros (a weight of 0 times leftover NaN would be NaN) and are not read.
  static __device__ __forceinline__ void copy(uint32_t to, const __half *from, int64_t stride, int rows) {
#pragma unroll
    for (int down = 0; down < TILE_N; down += kCopyRows)
      cp_async_16(to + down * kRow * 2, from + down * stride, rows > down);
  }
};

// A fragment whose every column is `numbers`.
__device__ __forceinline__ Sum by_row(const float *numbers) {
  Sum by;  // element (row, column) lies at numbers[row + 0 * column]
  wmma::load_matrix_sync(by, numbers, 0, wmma::mem_col_major);
  return by;
}

// S = Q K^T for this warp's rows and keys. The sum over the head dimension is the outer loop: every product in the inner
// ones adds to another fragment, so that none waits for the one before.
__device__ __forceinline__ void multiply_qk(Scores &s, const State &state, const Warp &warp, const __half *keys) {
#pragma unroll
  for (auto &row : s)
#pragma unroll
    for (Sum &tile : row) wmma::fill_fragment(tile, 0.f);
#pragma unroll
  for (int d = 0; d < kDepthTiles; ++d)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Keys k;
      wmma::load_matrix_sync(k, keys + (warp.side * (TILE_N / 2) + 16 * n) * kRow + 16 * d, kRow);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) wmma::mma_sync(s[i][n], state.q[i][d], k, s[i][n]);
    }
}

// -inf for the scores of keys that do not exist or that a causal row must not see: which element is which is read from
// a fragment that says so. `row` is the pair's first row, `key` the tile's first key.
__device__ __forceinline__ void mask(Scores &s, const Warp &warp, int row, int key, int keys, bool causal) {
  const int line = warp.lane % 16, column = warp.lane / 16 * 8;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int first = key + warp.side * (TILE_N / 2) + 16 * n;
      const int seen = (causal ? min(keys, row + warp.row_of(i) + line + 1) : keys) - first;
      __syncwarp();  // the last fragment has been read
#pragma unroll
      for (int e = 0; e < 8; ++e) warp.box[line * kBoxRow + column + e] = column + e < seen ? 1.f : 0.f;
      __syncwarp();
      Sum present;
      wmma::load_matrix_sync(present, warp.box, kBoxRow, wmma::mem_row_major);
#pragma unroll
      for (int e = 0; e < present.num_elements; ++e)
        s[i][n].x[e] = present.x[e] != 0.f ? s[i][n].x[e] : -CUDART_INF_F;
    }
  warp.meet();  // the boxes have been used
}

// The references of row tile i.
__device__ __forceinline__ Sum reference_of(const State &state, const Warp &warp, int i) {
  return KEEP_REFERENCE ? state.reference[i] : by_row(warp.rows->reference + warp.row_of(i));
}
__device__ __forceinline__ void keep_references(State &state, const Warp &warp) {
  if (!KEEP_REFERENCE) return;
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) state.reference[i] = by_row(warp.rows->reference + warp.row_of(i));
}

// Weights of all scores under their rows' references, as halves, to this warp's columns of the pair's; whether any is
// above 1.
__device__ __forceinline__ bool weigh(const Scores &s, const State &state, const Warp &warp, float factor) {
  __half2 largest = __floats2half2_rn(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const Sum reference = reference_of(state, warp, i);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Halves p;
#pragma unroll
      for (int e = 0; e < p.num_elements; e += 2) {
        const __half2 pair =
            __floats2half2_rn(exp2_approx(fmaf(s[i][n].x[e], factor, -reference.x[e])),
                              exp2_approx(fmaf(s[i][n].x[e + 1], factor, -reference.x[e + 1])));
        largest = __hmax2(largest, pair);
        p.x[e] = pair.x, p.x[e + 1] = pair.y;
      }
      wmma::store_matrix_sync(warp.own_weights() + warp.row_of(i) * kWeightRow + 16 * n, p, kWeightRow,
                              wmma::mem_row_major);
    }
  }
  return __half2float(__hmax(largest.x, largest.y)) > 1.f;
}

// Whether a product with the column of ones is this warp's: of two row tiles its first, of one every second 16 keys.
__device__ __forceinline__ bool its_sum(const Warp &warp, int i, int n) {
  return kRowTiles == 2 ? i == 0 : n % 2 == warp.side;
}

// Row maxima of this warp's scores, for the pair.
__device__ __forceinline__ void find_maxima(const Scores &s, const Warp &warp, float factor) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    Sum largest = s[i][0];
#pragma unroll
    for (int n = 1; n < kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < largest.num_elements; ++e) largest.x[e] = fmaxf(largest.x[e], s[i][n].x[e]);
    __syncwarp();  // the last fragment has been read
    wmma::store_matrix_sync(warp.box, largest, kBoxRow, wmma::mem_row_major);
    __syncwarp();
    const float *row = warp.box + warp.lane % 16 * kBoxRow + warp.lane / 16 * 8;
    float maximum = row[0];
#pragma unroll
    for (int e = 1; e < 8; ++e) maximum = fmaxf(maximum, row[e]);
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 16));
    if (warp.lane < 16) warp.rows->found[warp.side][warp.row_of(i) + warp.lane] = maximum * factor;
  }
}

// This warp's part of the row sums, for the pair.
__device__ __forceinline__ void tell_sums(const State &state, const Warp &warp) {
  __syncwarp();  // the last fragment has been read
  wmma::store_matrix_sync(warp.box, state.sum, kBoxRow, wmma::mem_row_major);
  __syncwarp();
  if (warp.lane < 16) warp.rows->sum[warp.side][warp.row_of(0) + warp.lane] = warp.box[warp.lane * kBoxRow];
}

// New references, from the maxima and sums that both warps told; by one lane for each row.
__device__ __forceinline__ void choose_reference(RowNumbers &rows, int row) {
  const float old = rows.reference[row];
  const float maximum = fmaxf(rows.maximum[row], fmaxf(rows.found[0][row], rows.found[1][row]));
  const float sum = (rows.sum[0][row] + rows.sum[1][row]) * exp2_approx(old - maximum);  // in the largest weight's units
  const float room = sum > kRoom ? fminf(floorf(log2f(sum * (1.f / kRoom))), kMostRoom) : 0.f;
  rows.maximum[row] = maximum;
  rows.reference[row] = maximum + room;
  rows.correction[row] = exp2_approx(old - (maximum + room));
}

// Multiply each row of 16 rows by its factor.
__device__ __forceinline__ void scale_rows(Sum &tile, const float *factors) {
  const Sum by = by_row(factors);
#pragma unroll
  for (int e = 0; e < tile.num_elements; ++e) tile.x[e] *= by.x[e];  // same type, same layout, whatever it is
}
template <int N>
__device__ __forceinline__ void scale_rows(Sum (&tiles)[N], const float *factors) {
#pragma unroll
  for (Sum &tile : tiles) scale_rows(tile, factors);
}

// New references for the pair's rows; what was summed up so far is brought to them.
__device__ __forceinline__ void raise_references(const Scores &s, State &state, const Warp &warp, float factor) {
  find_maxima(s, warp, factor);
  tell_sums(state, warp);
  warp.meet();
  if (warp.side == 0 && warp.lane < PAIR_ROWS) choose_reference(*warp.rows, warp.lane);
  warp.meet();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) scale_rows(state.out[i], warp.rows->correction + warp.row_of(i));
  scale_rows(state.sum, warp.rows->correction + warp.row_of(0));
  keep_references(state, warp);
}

// O += P V for this warp's columns, and the sums over every second 16 keys: the other warp takes the others.
__device__ __forceinline__ void multiply_pv(State &state, const Warp &warp, const __half *values) {
  Values ones;
  wmma::fill_fragment(ones, __float2half_rn(1.f));
#pragma unroll
  for (int n = 0; n < TILE_N / 16; ++n) {
    Left p[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      wmma::load_matrix_sync(p[i], warp.weights + warp.row_of(i) * kWeightRow + 16 * n, kWeightRow);
#pragma unroll
    for (int d = 0; d < kColumnTiles; ++d) {
      Values v;
      wmma::load_matrix_sync(v, values + 16 * n * kRow + 16 * d + warp.side * (kHeadDim / 2), kRow);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) wmma::mma_sync(state.out[i][d], p[i], v, state.out[i][d]);
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      if (its_sum(warp, i, n)) wmma::mma_sync(state.sum, p[i], ones, state.sum);
  }
}

}  // namespace

static __global__ void REGISTERS flashcore_wmma(const flashcore_args a) {
  unsigned char *memory = dynamic_shared();
  const int tiles = static_cast<int>(tiles_of(a.S_q, kTileRows));
  Place at = place(blockIdx.x, tiles, a.H);
  if (a.causal) at.tile = tiles - 1 - at.tile;  // the longest first: the short ones fill the gaps at the end
  const int block_row = at.tile * kTileRows;
  const int keys = a.causal ? min(a.S_kv, block_row + kTileRows) : a.S_kv;  // that any row of this block sees
  const FoldedScale scale = fold(a.scale);

  // Q through shared memory into fragments.
  __half *rows = reinterpret_cast<__half *>(memory);
  const __half *q = head_of(a.q, a.q_stride, at);
#pragma unroll 1
  for (int i = threadIdx.x; i < kTileRows * kChunks; i += kThreads) {
    const int row = block_row + i / kChunks;
    uint4 data = make_uint4(0, 0, 0, 0);
    if (row < a.S_q) data = *reinterpret_cast<const uint4 *>(q + row * a.q_stride.row + i % kChunks * 8);
    data = make_uint4(data.x ^ scale.flip, data.y ^ scale.flip, data.z ^ scale.flip, data.w ^ scale.flip);
    *reinterpret_cast<uint4 *>(rows + i / kChunks * kRow + i % kChunks * 8) = data;
  }
  __syncthreads();
  State state;
  wmma::fill_fragment(state.sum, 0.f);
  {
    const Warp warp(memory, 0, threadIdx.x);
    if (warp.side == 0 && warp.lane < PAIR_ROWS) {
      warp.rows->reference[warp.lane] = warp.rows->maximum[warp.lane] = kLowest;
      warp.rows->sum[0][warp.lane] = warp.rows->sum[1][warp.lane] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (Sum &tile : state.out[i]) wmma::fill_fragment(tile, 0.f);
#pragma unroll
      for (int d = 0; d < kDepthTiles; ++d)
        wmma::load_matrix_sync(state.q[i][d], rows + (warp.pair * PAIR_ROWS + warp.row_of(i)) * kRow + 16 * d, kRow);
    }
  }
  __syncthreads();  // Q's place is free
  keep_references(state, Warp(memory, 0, threadIdx.x));

  // Tile t lies in half t % 2 of K's and V's memory. K is fetched a tile earlier than V, since it is used earlier.
  Feed feed(a, at, keys, shared_address(memory));
  feed.next_k(a, 0, feed.left);
  cp_async_commit();
  feed.next(a, 1);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();

  // The last key that the pair's first row sees, as far as a causal mask is concerned.
  const int seen = a.causal ? block_row + static_cast<int>(threadIdx.x / 64 * PAIR_ROWS) : INT32_MAX / 2;
  const auto step = [&](int key, int half) {
    const Warp warp(memory, half, threadIdx.x);
    Scores s;
    bool above = false;
    if (key < seen + PAIR_ROWS) {
      multiply_qk(s, state, warp, reinterpret_cast<const __half *>(memory + half * kTileBytes));
      if (key + TILE_N > min(keys, seen + 1)) {
        const Warp again(memory, half, thread_again());
        mask(s, again, block_row + again.pair * PAIR_ROWS, key, keys, a.causal);
      }
      above = weigh(s, state, warp, scale.factor);
    }
    cp_async_wait<0>();  // this tile's V and the next one's K are here,
    const bool any = __syncthreads_or(above);  // for all; all have left this K and the last V; weights are written
    feed.next(a, half);
    cp_async_commit();
    if (any) {
      const Warp again(memory, half, thread_again());
      const bool own = __any_sync(kAllLanes, above);
      if (again.lane == 0) again.rows->above[again.side] = own ? 1.f : 0.f;
      again.meet();
      if (again.rows->above[0] + again.rows->above[1] != 0.f) {
        raise_references(s, state, again, scale.factor);
        weigh(s, state, again, scale.factor);
        again.meet();
      }
    }
    if (key < seen + PAIR_ROWS) multiply_pv(state, warp, reinterpret_cast<const __half *>(memory + (2 + half) * kTileBytes));
  };
#pragma unroll 1
  for (int key = 0; key < keys; key += 2 * TILE_N) {  // by twos: of addresses only the thread's part is left to compute
    step(key, 0);
    if (key + TILE_N >= keys) break;
    step(key + TILE_N, 1);
  }

  // Divide by the sums, and write whole rows, through shared memory. The box is where the last weights are not: the
  // other warp may be reading them.
  const Warp warp(memory, (keys + TILE_N - 1) / TILE_N % 2, thread_again());
  tell_sums(state, warp);
  cp_async_wait<0>();  // the zeros for tiles beyond the last one: they must not land in the output
  __syncthreads();
  if (warp.side == 0 && warp.lane < PAIR_ROWS)
    warp.rows->correction[warp.lane] = 1.f / (warp.rows->sum[0][warp.lane] + warp.rows->sum[1][warp.lane]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    scale_rows(state.out[i], warp.rows->correction + warp.row_of(i));
#pragma unroll
    for (int d = 0; d < kColumnTiles; ++d) {
      Halves o;
#pragma unroll
      for (int e = 0; e < o.num_elements; ++e) o.x[e] = __float2half_rn(state.out[i][d].x[e]);
      wmma::store_matrix_sync(
          rows + (warp.pair * PAIR_ROWS + warp.row_of(i)) * kRow + warp.side * (kHeadDim / 2) + 16 * d, o, kRow,
          wmma::mem_row_major);
    }
  }
  __syncthreads();
  __half *o = head_of(a.o, a.o_stride, at);
#pragma unroll 1
  for (int i = threadIdx.x; i < kTileRows * kChunks; i += kThreads) {
    const int row = block_row + i / kChunks;
    if (row < a.S_q)
      *reinterpret_cast<uint4 *>(o + row * a.o_stride.row + i % kChunks * 8) =
          *reinterpret_cast<const uint4 *>(rows + i / kChunks * kRow + i % kChunks * 8);
  }
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t blocks = tiles_of(args->S_q, kTileRows) * args->B * args->H;
  return launch<flashcore_wmma>(*args, blocks, kThreads, kSharedBytes);
}

#endif
