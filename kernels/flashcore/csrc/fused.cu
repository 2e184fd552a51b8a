// fused: attention in one pass, with everything between the two products in registers.
//
// The idea: a warp owns WARP_ROWS query rows. Its scores come out of mma.sync in the layout that the next mma.sync
// takes as its left operand, so probabilities are packed to halves where they are and never touch memory. Only K and V
// pass through shared memory, swizzled, copied by cp.async while the tensor cores work on what came before.
//
// WARPS_KV warps share the same rows: of each step's WARPS_KV * TILE_N keys each takes one tile, and they merge their
// partial results at the end. That is how few rows still make many warps: 512 queries of 8 heads are 64 tiles of 64
// rows, less than one per multiprocessor of most cards, and a multiprocessor with 4 warps hides no latency.
//
// STAGES 1: K and V have one buffer each; V is on its way during Q K^T, the next K during P V.
// STAGES 2: both have two; the next step's K and V are on their way during this whole step.

#include "mma_tiles.cuh"
#include "online_softmax.cuh"
#include "tiles.cuh"

#ifndef TILE_M  // query rows per block
#define TILE_M 32
#endif
#ifndef TILE_N  // keys per warp and step
#define TILE_N 32
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef WARPS_KV  // warps that share out the keys of the same rows
#define WARPS_KV 4
#endif
#ifndef WARP_ROWS  // query rows per warp
#define WARP_ROWS 16
#endif

namespace {

using namespace flashcore;

constexpr int kWarps = TILE_M / WARP_ROWS * WARPS_KV;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowTiles = WARP_ROWS / 16;  // mma tiles, of 16 rows
constexpr int kKeyTiles = TILE_N / 8;      // of 8 keys, as columns of S
constexpr int kOutTiles = kHeadDim / 8;    // of 8 columns of O
constexpr int kDepthTiles = kHeadDim / 16; // of 16 head dimensions, summed over in S
constexpr int kStep = TILE_N * WARPS_KV;   // keys per step of a block

constexpr uint32_t kQBytes = TILE_M * kRowBytes;
constexpr uint32_t kStageBytes = kStep * kRowBytes;  // of K or of V
constexpr uint32_t kLoadBytes = kQBytes + 2 * STAGES * kStageBytes;
// The merge reuses the buffers of K and V: per lane of each warp but the first of a row group, O, bases and sums.
constexpr int kPartial = kRowTiles * (4 * kOutTiles + 4);
constexpr uint32_t kMergeBytes = kQBytes + (WARPS_KV - 1) * (TILE_M / WARP_ROWS) * 32 * kPartial * 4;
constexpr uint32_t kSharedBytes = kLoadBytes > kMergeBytes ? kLoadBytes : kMergeBytes;

// Left alone (0) the compiler aims at several blocks per multiprocessor, even with a few spills. Where the shared memory
// of an L4, 100 KB, has room for one block only, it need not.
constexpr int kMinBlocks = kSharedBytes > 50 * 1024 ? 1 : 0;

static_assert(TILE_M % WARP_ROWS == 0 && WARP_ROWS % 16 == 0, "whole mma tiles");
static_assert(TILE_N % WARP_ROWS == 0, "a tile's first key is seen by all rows of a warp, or by none");
static_assert(STAGES == 1 || STAGES == 2, "K and V have one or two buffers");
static_assert(kThreads <= 1024 && kSharedBytes <= 99 * 1024, "fits an L4");

using Rows = Attended<kRowTiles, kOutTiles>;

// Add what the other warps of these rows found to the first one's. `box` is free memory; values of neighbouring lanes
// are neighbours in it, so that no bank is asked twice.
__device__ __forceinline__ void merge(Rows &rows, float *box, int group, int row_group, int lane) {
  constexpr int kGroups = TILE_M / WARP_ROWS;
  if (group > 0) {
    float *mine = box + ((group - 1) * kGroups + row_group) * 32 * kPartial + lane;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h, mine += 64) mine[0] = rows.base[i][h], mine[32] = rows.sum[i][h];
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e, mine += 32) *mine = rows.out[i][n][e];
    }
  }
  __syncthreads();
  if (group > 0) return;
#pragma unroll 1
  for (int other = 0; other < WARPS_KV - 1; ++other) {
    const float *theirs = box + (other * kGroups + row_group) * 32 * kPartial + lane;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      float keep[2], add[2];
#pragma unroll
      for (int h = 0; h < 2; ++h, theirs += 64) {
        const float base = fmaxf(rows.base[i][h], theirs[0]);
        keep[h] = exp2_approx(rows.base[i][h] - base);
        add[h] = exp2_approx(theirs[0] - base);
        rows.base[i][h] = base;
        rows.sum[i][h] = rows.sum[i][h] * keep[h] + theirs[32] * add[h];
      }
#pragma unroll
      for (int n = 0; n < kOutTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e, theirs += 32)
          rows.out[i][n][e] = rows.out[i][n][e] * keep[e / 2] + *theirs * add[e / 2];
    }
  }
}

}  // namespace

static __global__ void __launch_bounds__(kThreads, kMinBlocks) flashcore_fused(const flashcore_args a) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int group = warp % WARPS_KV, row_group = warp / WARPS_KV;
  const int tiles = static_cast<int>(tiles_of(a.S_q, TILE_M));
  Place at = place(blockIdx.x, tiles, a.H);
  if (a.causal) at.tile = tiles - 1 - at.tile;  // the longest first: the short ones fill the gaps at the end
  const int tile_row = at.tile * TILE_M, warp_row = tile_row + row_group * WARP_ROWS;
  const int keys = a.causal ? min(a.S_kv, tile_row + TILE_M) : a.S_kv;  // that any row of this block sees
  const int steps = (keys + kStep - 1) / kStep;
  const __half *k = head_of(a.k, a.k_stride, at), *v = head_of(a.v, a.v_stride, at);
  const FoldedScale scale = fold(a.scale);

  const uint32_t q_tile = shared_address(dynamic_shared()), k_tiles = q_tile + kQBytes;
  const uint32_t v_tiles = k_tiles + STAGES * kStageBytes, mine = group * TILE_N * kRowBytes;
  const auto load = [&](uint32_t to, const __half *from, int64_t stride, int step) {
    to += step % STAGES * kStageBytes;
    if (step < steps) copy_rows_predicated<kStep, kThreads>(to, from, stride, step * kStep, keys, threadIdx.x, swizzle);
    cp_async_commit();  // also when empty: the waits below count groups
  };
  const auto load_k = [&](int step) { load(k_tiles, k, a.k_stride.row, step); };
  const auto load_v = [&](int step) { load(v_tiles, v, a.v_stride.row, step); };

  copy_rows_predicated<TILE_M, kThreads>(q_tile, head_of(a.q, a.q_stride, at), a.q_stride.row, tile_row, a.S_q,
                                         threadIdx.x, swizzle);
  load_k(0);
  if (STAGES == 2) load_v(0);

  uint32_t q[kRowTiles][kDepthTiles][4];
  Rows rows;
  rows.clear();

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const int key = step * kStep + group * TILE_N;  // the first of this warp's tile
    const uint32_t stage = step % STAGES * kStageBytes + mine;
    const bool needed = key < keys && !(a.causal && key > warp_row + WARP_ROWS - 1);

    cp_async_wait<STAGES - 1>();  // this step's K (and, the first time, Q) is here
    __syncthreads();              // for all; and all have left the buffers that are filled next
    if (STAGES == 1) {
      load_v(step);
    } else {
      load_k(step + 1);
      load_v(step + 1);
    }
    if (step == 0) load_q(q, q_tile, row_group * WARP_ROWS, scale.flip, lane, swizzle);

    uint32_t p[kKeyTiles / 2][kRowTiles][4];
    if (needed) {
      float s[kRowTiles][kKeyTiles][4];
      multiply_qk(s, q, k_tiles + stage, lane, swizzle);
      const bool whole = key + TILE_N <= keys && !(a.causal && key + TILE_N - 1 > warp_row);
      if (!whole) mask(s, key, warp_row, keys, a.causal, lane);
      rows.softmax(p, s, scale.factor);
    }

    cp_async_wait<2 * (STAGES - 1)>();  // V
    __syncthreads();
    if (STAGES == 1) load_k(step + 1);
    if (needed) multiply_pv(rows.out, p, v_tiles + stage, lane, swizzle);
  }

  if (WARPS_KV > 1) {
    cp_async_wait<0>();
    __syncthreads();  // all have left K and V
    merge(rows, reinterpret_cast<float *>(dynamic_shared() + kQBytes), group, row_group, lane);
    if (group > 0) return;
  }
  __half *o = head_of(a.o, a.o_stride, at) + tile_row * a.o_stride.row;
  store_via_smem<Type::kHalf>(rows.out, [&](int i, int h) { return rows.last_scale(i, h); }, dynamic_shared(),
                              row_group * WARP_ROWS, o, a.o_stride.row, a.S_q - tile_row, lane, swizzle);
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t blocks = tiles_of(args->S_q, TILE_M) * args->B * args->H;
  return launch<flashcore_fused>(*args, blocks, kThreads, kSharedBytes);
}
