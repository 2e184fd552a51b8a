// wmma: both products on the tensor cores, through CUDA's own C++ interface, nvcuda::wmma.
//
// The idea: the weights of a tile are what one product gives and the left operand of the next. WMMA does not say which
// lane holds which element of a fragment. But from sm_80 on, element e of an accumulator and element e of a left operand
// are the same element of the matrix, in the same lane, so that weights need not leave their registers. A warp then works
// on rows of its own, and meets the others only at the one barrier that copying a tile takes.
//
// That is not promised, so it is not taken on trust: before the first launch on a device, one warp looks where elements
// lie, and sends numbers through a product by the way that weights go. Where they come out otherwise, this kernel is
// refused (fragments.cuh).
//
// - Weights are 2^(score - reference), for a reference that a row has before the tile: no maximum is looked for. The
//   reference must not be below the row's maximum, or weights overflow. So a warp votes whether any of its weights is
//   above 1. If so, and only then, it looks at its rows, brings outputs and sums to new references, and weighs again.
// - That would be nearly every tile, since of 32 rows some row finds a new maximum. So a reference is 2^k times above
//   the maximum, as soon as the sum of the row's weights is 4 times 2^k: a key that passes the old maximum by less has
//   less than about a quarter of the weight. A power of two keeps the largest weight as exact as 1 is; FP16's rounding
//   of a weight that dominates its row would be seen in the output.
// - Row sums are a product, too: the weights times ones.
// - P V is a tile behind: the last tile's products are issued between this tile's exponentials, so that both units work
//   at the same time within one warp.
// - With 32 rows a warp, each fragment of K and of V that is read feeds two products. That takes twice the registers, and
//   fills a large GPU with long sequences only: a launch chooses between 32 rows and 16.

#include "fragments.cuh"
#include "online_softmax.cuh"

#ifndef TILE_N  // keys per tile
#define TILE_N 64
#endif
#ifndef WARPS  // per block
#define WARPS 4
#endif
#ifndef WARP_ROWS  // query rows per warp; 0: 16 or 32, by shape and device
#define WARP_ROWS 0
#endif

namespace {

using namespace flashcore;

// Where tensor cores are slow (kFastTensor of tensor.cuh) a thread is held to 120 registers, for the sake of more warps, and
// there is no kernel of 32 rows: to a tensor core that takes 16 cycles for a product, it is nothing that fragments are read
// twice as often.
#if defined(__maxnreg__)  // from CUDA 12.4 on
#define REGISTERS(most) __maxnreg__(most)
#else
#define REGISTERS(most) __launch_bounds__(kThreads)
#endif

constexpr int kThreads = 32 * WARPS;
constexpr int kKeyTiles = TILE_N / 16;
constexpr int kDepthTiles = kHeadDim / 16;  // of Q and K; for V and the output, tiles of columns
static_assert(WARP_ROWS == 0 || WARP_ROWS == 16 || WARP_ROWS == 32, "more have no place in registers");
static_assert(TILE_N % (kThreads / kChunks) == 0, "every thread copies equally many rows");

// Rows are 16 bytes longer than their contents: eight rows then start in eight different groups of four banks. (WMMA
// takes a start and a stride, so the swizzle of tiles.cuh is not for it.)
constexpr int kRow = kHeadDim + 8;  // halves
constexpr uint32_t kTileBytes = TILE_N * kRow * 2;
constexpr uint32_t kStageBytes = 2 * kTileBytes;  // K, then V
constexpr uint32_t shared_bytes(int rows) {  // of a block: Q passes through at the start, the output at the end
  const uint32_t whole = rows * kRow * 2;
  return 2 * kStageBytes > whole ? 2 * kStageBytes : whole;
}
static_assert(kTileBytes % 32 == 0, "WMMA wants 32-byte alignment");
static_assert(shared_bytes(WARPS * 32) <= 64 * 1024, "the budget of this kernel");

// ------------------------------------------------------------------------------------------------ a tile
constexpr float kRoom = 4.f;       // a row's sum may be this many times the largest weight above its maximum
constexpr float kMostRoom = 10.f;  // in powers of two: weights below 2^-14 lose digits

// What a warp carries from tile to tile, for R row tiles. Index [i][h]: this lane's row of half h of row tile i.
template <int R>
struct State {
  Left q[R][kDepthTiles];
  Sum out[R][kDepthTiles];
  Sum sum[R];  // every column the same, which the compiler sees: 4 registers, and one product of two
  float reference[R][2];
};

template <int R>
using Scores = float[R][2 * kKeyTiles][4];  // as mma.sync's fragments (online_softmax.cuh): two of them make one of WMMA's
template <int R>
using Weights = Left[R][kKeyTiles];

// S = Q K^T. The sum over the head dimension is the outer loop: every product in the inner ones adds to another
// fragment, so that none waits for the one before.
template <int R>
__device__ __forceinline__ void multiply_qk(Scores<R> &s, const State<R> &state, const __half *keys) {
  Sum sums[R][kKeyTiles];
#pragma unroll
  for (auto &row : sums)
#pragma unroll
    for (Sum &tile : row) wmma::fill_fragment(tile, 0.f);
#pragma unroll
  for (int d = 0; d < kDepthTiles; ++d)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Keys k;
      wmma::load_matrix_sync(k, keys + 16 * n * kRow + 16 * d, kRow);
#pragma unroll
      for (int i = 0; i < R; ++i) wmma::mma_sync(sums[i][n], state.q[i][d], k, sums[i][n]);
    }
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < kElements; ++e) s[i][2 * n + e / 4][e % 4] = sums[i][n].x[e];
}

// Weights of 16 keys' scores under their rows' references, and the largest so far, in pairs.
template <int R>
__device__ __forceinline__ void exp_and_pack(Weights<R> &p, const Scores<R> &s, const State<R> &state, int n, float factor,
                                             __half2 &largest) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int e = 0; e < kElements; e += 2) {
      const float reference = state.reference[i][half_of(e)];
      const float(&two)[4] = s[i][2 * n + e / 4];
      const __half2 pair = __floats2half2_rn(exp2_approx(fmaf(two[e % 4], factor, -reference)),
                                             exp2_approx(fmaf(two[e % 4 + 1], factor, -reference)));
      largest = __hmax2(largest, pair);
      put(p[i][n], e, pair);
    }
}

// New references for the warp's rows; what was summed up so far is brought to them.
template <int R>
__device__ __forceinline__ void raise_references(const Scores<R> &s, State<R> &state, float factor) {
  float maxima[R][2];
  max_of_tile(maxima, s);
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float found = maxima[i][h] * factor;
      const float old = state.reference[i][h], least = fmaxf(old, found);
      const float sum = state.sum[i].x[2 * h] * exp2_approx(old - least);  // of the weights, were it the reference
      const float room = fminf(log2f(sum * (1.f / kRoom)), found + kMostRoom - least);
      const float reference = least + fmaxf(floorf(room), 0.f);
      const float correction = exp2_approx(old - reference);
      state.reference[i][h] = reference;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (half_of(e) != h) continue;
        state.sum[i].x[e] *= correction;
#pragma unroll
        for (Sum &tile : state.out[i]) tile.x[e] *= correction;
      }
    }
}

// O += P V for 16 keys, and their part of the row sums.
template <int R>
__device__ __forceinline__ void multiply_pv(State<R> &state, const Weights<R> &p, int n, const __half *values) {
  Values ones;
  wmma::fill_fragment(ones, __float2half_rn(1.f));
#pragma unroll
  for (int d = 0; d < kDepthTiles; ++d) {
    Values v;
    wmma::load_matrix_sync(v, values + 16 * n * kRow + 16 * d, kRow);
#pragma unroll
    for (int i = 0; i < R; ++i) wmma::mma_sync(state.out[i][d], p[i][n], v, state.out[i][d]);
  }
#pragma unroll
  for (int i = 0; i < R; ++i) wmma::mma_sync(state.sum[i], p[i][n], ones, state.sum[i]);
}

// ------------------------------------------------------------------------------------------------ a block
// Q through shared memory into fragments.
template <int R>
__device__ __forceinline__ void load_q(State<R> &state, const flashcore_args &a, const Place &at, int first,
                                       uint32_t flip, __half *rows) {
  const __half *q = head_of(a.q, a.q_stride, at);
#pragma unroll 1
  for (int i = threadIdx.x; i < WARPS * 16 * R * kChunks; i += kThreads) {
    const int row = first + i / kChunks;
    uint4 data = make_uint4(0, 0, 0, 0);
    if (row < a.S_q) data = *reinterpret_cast<const uint4 *>(q + row * a.q_stride.row + i % kChunks * 8);
    data = make_uint4(data.x ^ flip, data.y ^ flip, data.z ^ flip, data.w ^ flip);
    *reinterpret_cast<uint4 *>(rows + i / kChunks * kRow + i % kChunks * 8) = data;
  }
  __syncthreads();
  const __half *own = rows + threadIdx.x / 32 * 16 * R * kRow;
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int d = 0; d < kDepthTiles; ++d)
      wmma::load_matrix_sync(state.q[i][d], own + 16 * i * kRow + 16 * d, kRow);
  __syncthreads();  // Q's place is free
}

// Divide by the sums, and write whole rows, through shared memory.
template <int R>
__device__ __forceinline__ void store(const State<R> &state, const flashcore_args &a, const Place &at, int first,
                                      __half *rows) {
  __half *own = rows + thread_again() / 32 * 16 * R * kRow;
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float by[2] = {1.f / state.sum[i].x[0], 1.f / state.sum[i].x[2]};
#pragma unroll
    for (int d = 0; d < kDepthTiles; ++d) {
      Halves o;
#pragma unroll
      for (int e = 0; e < kElements; ++e) o.x[e] = __float2half_rn(state.out[i][d].x[e] * by[half_of(e)]);
      wmma::store_matrix_sync(own + 16 * i * kRow + 16 * d, o, kRow, wmma::mem_row_major);
    }
  }
  __syncthreads();
  __half *o = head_of(a.o, a.o_stride, at);
#pragma unroll 1
  for (int i = threadIdx.x; i < WARPS * 16 * R * kChunks; i += kThreads) {
    const int row = first + i / kChunks;
    if (row < a.S_q)
      *reinterpret_cast<uint4 *>(o + row * a.o_stride.row + i % kChunks * 8) =
          *reinterpret_cast<const uint4 *>(rows + i / kChunks * kRow + i % kChunks * 8);
  }
}

// Byte offset of a chunk of a row.
__device__ __forceinline__ uint32_t padded(uint32_t row, uint32_t chunk) { return row * kRow * 2 + chunk * 16; }

// Begin to copy the tile whose first key is `key`, if there is one.
__device__ __forceinline__ void copy(uint32_t to, const __half *head, int64_t stride, int key, int keys) {
  if (key < keys) copy_rows<TILE_N, kThreads>(to, head, stride, key, keys, thread_again(), padded);
}

// One block: 16 * R rows for each warp.
template <int R>
__device__ __forceinline__ void attend(const flashcore_args &a) {
  constexpr int kWarpRows = 16 * R, kBlockRows = WARPS * kWarpRows;
  unsigned char *memory = dynamic_shared();
  __half *rows = reinterpret_cast<__half *>(memory);
  const int blocks = static_cast<int>(tiles_of(a.S_q, kBlockRows));
  Place at = place(blockIdx.x, blocks, a.H);
  if (a.causal) at.tile = blocks - 1 - at.tile;  // the longest first: the short ones fill the gaps at the end
  const int first = at.tile * kBlockRows;
  const FoldedScale scale = fold(a.scale);
  State<R> state;
  load_q(state, a, at, first, scale.flip, rows);
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (Sum &tile : state.out[i]) wmma::fill_fragment(tile, 0.f);
    wmma::fill_fragment(state.sum[i], 0.f);
    state.reference[i][0] = state.reference[i][1] = kLowest;
  }

  const int keys = a.causal ? min(a.S_kv, first + kBlockRows) : a.S_kv;  // that any of these rows sees
  const int warp_row = first + static_cast<int>(threadIdx.x / 32 * kWarpRows);
  const int whole = a.causal ? min(keys, warp_row + 1) : keys;         // tiles up to here need no mask
  const int seen = a.causal ? min(keys, warp_row + kWarpRows) : keys;  // by this warp
  const __half *k = head_of(a.k, a.k_stride, at), *v = head_of(a.v, a.v_stride, at);
  const auto scores = [&](Scores<R> &s, int key, uint32_t stage) {
    multiply_qk(s, state, reinterpret_cast<const __half *>(memory + stage));
    if (key + TILE_N > whole) {
      const int thread = static_cast<int>(thread_again());
      mask(s, key, first + thread / 32 * kWarpRows, keys, a.causal, thread % 32);
    }
  };
  Weights<R> p;
  const auto exp_all = [&](const Scores<R> &s) {
    __half2 ignored = __floats2half2_rn(0.f, 0.f);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) exp_and_pack(p, s, state, n, scale.factor, ignored);
  };

  // Tile t of K and of V lies in stage t % 2. K is fetched a tile earlier, since it is used a tile earlier. The first tile
  // has no P V beside it, and no references.
  const uint32_t tiles = shared_address(memory);
  copy(tiles, k, a.k_stride.row, 0, keys);
  cp_async_commit();
  copy(tiles + kStageBytes, k, a.k_stride.row, TILE_N, keys);
  copy(tiles + kTileBytes, v, a.v_stride.row, 0, keys);
  cp_async_commit();
  cp_async_wait<1>();
  __syncthreads();
  {
    Scores<R> s;
    scores(s, 0, 0);
    raise_references(s, state, scale.factor);
    exp_all(s);
  }
  uint32_t stage = kStageBytes;
#pragma unroll 1
  for (int key = TILE_N;; key += TILE_N) {
    cp_async_wait<0>();
    __syncthreads();  // these keys are here, and the values before them, for all; all have left what was before
    copy(tiles + (stage ^ kStageBytes), k, a.k_stride.row, key + TILE_N, keys);
    copy(tiles + stage + kTileBytes, v, a.v_stride.row, key, keys);
    cp_async_commit();
    const __half *values = reinterpret_cast<const __half *>(memory + (stage ^ kStageBytes) + kTileBytes);
    if (key < seen) {
      Scores<R> s;
      scores(s, key, stage);
      __half2 largest = __floats2half2_rn(0.f, 0.f);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        multiply_pv(state, p, n, values);
        exp_and_pack(p, s, state, n, scale.factor, largest);
      }
      if (__any_sync(kAllLanes, __half2float(__hmax(largest.x, largest.y)) > 1.f)) {
        raise_references(s, state, scale.factor);
        exp_all(s);
      }
    } else if (key < seen + TILE_N) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) multiply_pv(state, p, n, values);
    }
    if (key >= keys) break;
    stage ^= kStageBytes;
  }
  __syncthreads();  // all have left the last tile
  store(state, a, at, first, rows);
}

}  // namespace

static __global__ void REGISTERS(kFastTensor ? 128 : 120) flashcore_wmma(const flashcore_args a) { attend<1>(a); }

static __global__ void REGISTERS(255) flashcore_wmma_32_rows(const flashcore_args a) {
  if constexpr (kFastTensor) {
    attend<2>(a);
  } else {
    __trap();  // never launched there
  }
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  Device device;
  if (const int error = look_at_device(device)) return error;
  const auto blocks = [&](int rows) { return tiles_of(args->S_q, WARPS * rows) * args->B * args->H; };
  // 32 rows where they leave few multiprocessors without a block.
  const bool wide = WARP_ROWS == 0 ? device.fast_tensor && 4 * blocks(32) >= 3 * device.processors : WARP_ROWS == 32;
  if (!wide) return launch<flashcore_wmma>(*args, blocks(16), kThreads, shared_bytes(WARPS * 16));
  if (!device.fast_tensor) return cudaErrorInvalidValue;
  return launch<flashcore_wmma_32_rows>(*args, blocks(32), kThreads, shared_bytes(WARPS * 32));
}
