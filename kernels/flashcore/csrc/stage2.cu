// stage2: copies that run ahead, and both products on tensor cores, but the weights still go through shared memory.
//
// The idea: a block keeps TILE_M query rows and walks over the keys in tiles of TILE_N. Tile t + STAGES - 1 is copied
// by cp.async while tile t is worked on, so memory latency is paid once per block and not once per tile. Q K^T is done
// by mma.sync, whose layout is documented: a row's scores lie in the registers of 4 neighbouring lanes, and the online
// softmax needs two shuffles. P V is done by WMMA, whose layout is not: so the weights P go through shared memory to
// become a fragment, and V's rows are padded, since WMMA knows a row stride and nothing of a swizzle.
//
// A WMMA accumulator hides which row each element is of, and online softmax must scale rows. Two things that help are
// documented: elements of two fragments of one type correspond, and a fragment can be loaded. So each row's correction
// is loaded as a whole fragment, from a vector, with a column stride of 0, and multiplied in element by element.
//
// What it leaves on the table: P's way through shared memory (a write, a warp barrier and a read per tile), and the
// space it takes. `fused` keeps P in registers.

#include <mma.h>

#include <algorithm>

#include "mma_tiles.cuh"
#include "online_softmax.cuh"
#include "tiles.cuh"

#ifndef TILE_M  // query rows per block
#define TILE_M 64
#endif
#ifndef TILE_N  // keys per tile
#define TILE_N 64
#endif
#ifndef STAGES  // tiles of K and V in shared memory: one in use, the others on their way
#define STAGES 2
#endif
#ifndef WARPS
#define WARPS 4
#endif

using namespace flashcore;
namespace wmma = nvcuda::wmma;

namespace {

constexpr int kThreads = 32 * WARPS;
constexpr int kWarpRows = TILE_M / WARPS;
constexpr int kRowBlocks = kWarpRows / 16;  // of a warp: with 2, each fragment of K and V is read once and used twice
constexpr int kKeyBlocks = TILE_N / 16;
constexpr int kDimBlocks = kHeadDim / 16;
static_assert(TILE_M % (16 * WARPS) == 0 && TILE_N % 16 == 0, "warps and fragments share the tile out evenly");
static_assert(STAGES >= 2, "a slot is refilled while another is in use");

// Padding by 16 bytes moves each row by 4 banks: 8 rows' chunks, what one matrix load touches, then lie in all 32.
constexpr int kValuePitch = kHeadDim + 8;  // halves
constexpr int kWeightPitch = TILE_N + 8;   // halves
constexpr int kOutPitch = 16 + 4;          // floats

constexpr int kKeyBytes = TILE_N * kRowBytes;  // swizzled, for ldmatrix
constexpr int kValueBytes = TILE_N * kValuePitch * 2;
constexpr int kQueryBytes = TILE_M * kRowBytes;        // swizzled; read once, into registers,
constexpr int kWeightBytes = TILE_M * kWeightPitch * 2;  // and then the weights take its place
constexpr int kValuesAt = STAGES * kKeyBytes;
constexpr int kWeightsAt = kValuesAt + STAGES * kValueBytes;
constexpr int kCorrectionsAt = kWeightsAt + std::max(kQueryBytes, kWeightBytes);
constexpr int kSharedBytes = kCorrectionsAt + TILE_M * 4;
static_assert(kSharedBytes <= 99 * 1024, "the most an sm_89 block can have");
static_assert(16 * kOutPitch * 4 <= 16 * kWeightPitch * 2, "a block of the output fits where its weights were");

// Registers are dealt out by whole warps: 16 warps on an SM leave 128 a thread, 12 leave 168, 8 leave 255.
constexpr int kWarpsPerSm = kRowBlocks * TILE_N <= 32 ? 16 : TILE_N <= 64 && kRowBlocks == 1 ? 12 : 8;
constexpr int kBlocksPerSm = std::max(1, kWarpsPerSm / WARPS);

using Accumulator = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// What a warp keeps of its rows: online_softmax.cuh's, but for the output, whose layout is WMMA's.
struct Rows {
  Accumulator out[kRowBlocks][kDimBlocks];
  float base[kRowBlocks][2], sum[kRowBlocks][2];
};
using Scores = float[kRowBlocks][2 * kKeyBlocks][4];

// Byte offset of a chunk of a row of V.
__device__ __forceinline__ uint32_t padded(int row, int chunk) { return row * kValuePitch * 2 + chunk * 16; }

// Scores become weights in shared memory, with what to multiply earlier sums by.
__device__ __forceinline__ void exp_via_smem(const Scores &s, Rows &rows, __half *weights, float *corrections, float factor,
                                             int lane) {
  float maxima[kRowBlocks][2];
  max_of_tile(maxima, s);
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float keep = raise_base(rows.base[r][h], maxima[r][h], factor);
      rows.sum[r][h] *= keep;
      if (lane % 4 == 0) corrections[16 * r + lane / 4 + 8 * h] = keep;
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * kKeyBlocks; n += 2) {
    uint32_t p[kRowBlocks][4];
    exp_and_pack<Type::kHalf, true>(p, rows.sum, rows.base, s, n, factor);
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // the pitch puts a warp's 32 words into 32 banks
        const int row = 16 * r + lane / 4 + i % 2 * 8;
        reinterpret_cast<uint32_t *>(weights + row * kWeightPitch + 8 * (n + i / 2))[lane % 4] = p[r][i];
      }
    }
  }
  __syncwarp();  // these rows are this warp's alone: no other needs to wait
}

// Multiply each row of the output by its entry of `factors`.
__device__ __forceinline__ void scale_rows(Rows &rows, const float *factors) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
    Accumulator column;  // element (i, j) is factors[i]: every column is the same 16 floats
    wmma::load_matrix_sync(column, factors + 16 * r, 0, wmma::mem_col_major);
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
#pragma unroll
      for (int i = 0; i < column.num_elements; ++i) rows.out[r][d].x[i] *= column.x[i];
    }
  }
}

__device__ __forceinline__ void multiply_pv(Rows &rows, const __half *weights, const __half *values) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> p[kRowBlocks];
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
      wmma::load_matrix_sync(p[r], weights + 16 * r * kWeightPitch + 16 * n, kWeightPitch);
    }
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> v;
      wmma::load_matrix_sync(v, values + 16 * n * kValuePitch + 16 * d, kValuePitch);
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) wmma::mma_sync(rows.out[r][d], p[r], v, rows.out[r][d]);
    }
  }
  __syncwarp();  // read by all lanes, before the next tile's weights or the output overwrite them
}

// Divide by the sums and write: 16 x 16 floats at a time through shared memory, so that a lane has 16 bytes of one row.
__device__ __forceinline__ void store_via_smem(Rows &rows, const flashcore_args &a, const Place &at, int first_row,
                                               float *staging, float *inverses, int lane) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = reduce_sum<4>(rows.sum[r][half]);
      if (lane % 4 == 0) inverses[16 * r + lane / 4 + 8 * half] = reciprocal(sum);
    }
  }
  __syncwarp();
  scale_rows(rows, inverses);
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
    const int row = first_row + 16 * r + lane / 2;
    __half *to = head_of(a.o, a.o_stride, at) + row * a.o_stride.row + lane % 2 * 8;
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      wmma::store_matrix_sync(staging, rows.out[r][d], kOutPitch, wmma::mem_row_major);
      __syncwarp();
      const float4 *from = reinterpret_cast<const float4 *>(staging + lane / 2 * kOutPitch + lane % 2 * 8);
      const float4 x = from[0], y = from[1];
      const uint4 packed = {pack_halves(x.x, x.y), pack_halves(x.z, x.w), pack_halves(y.x, y.y), pack_halves(y.z, y.w)};
      if (row < a.S_q) *reinterpret_cast<uint4 *>(to + 16 * d) = packed;
      __syncwarp();  // before the next block overwrites it
    }
  }
}

}  // namespace

static __global__ void __launch_bounds__(kThreads, kBlocksPerSm) flashcore_stage2(const flashcore_args a) {
  unsigned char *memory = dynamic_shared();
  const uint32_t keys = shared_address(memory), values = keys + kValuesAt, queries = keys + kWeightsAt;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __half *weights = reinterpret_cast<__half *>(memory + kWeightsAt) + warp * kWarpRows * kWeightPitch;
  float *corrections = reinterpret_cast<float *>(memory + kCorrectionsAt) + warp * kWarpRows;

  const int row_tiles = (a.S_q + TILE_M - 1) / TILE_M;
  Place at = place(blockIdx.x, row_tiles, a.H);
  if (a.causal) at.tile = row_tiles - 1 - at.tile;  // a head's longest row tiles start first
  const int tile_row = at.tile * TILE_M, warp_row = tile_row + warp * kWarpRows;
  const int tiles = (seen_by(a, tile_row + TILE_M - 1) + TILE_N - 1) / TILE_N;  // beyond, no row of the block sees any
  const __half *k = head_of(a.k, a.k_stride, at), *v = head_of(a.v, a.v_stride, at);
  const FoldedScale scale = fold(a.scale);

  // Begin to copy a tile; the group is committed even if there is none, so that waiting can count groups.
  const auto copy = [&](int tile) {
    const int slot = tile % STAGES, first = tile * TILE_N, thread = threadIdx.x;
    if (tile < tiles) {
      copy_rows<TILE_N, kThreads>(keys + slot * kKeyBytes, k, a.k_stride.row, first, a.S_kv, thread, swizzle);
      copy_rows<TILE_N, kThreads>(values + slot * kValueBytes, v, a.v_stride.row, first, a.S_kv, thread, padded);
    }
    cp_async_commit();
  };

  copy_rows<TILE_M, kThreads>(queries, head_of(a.q, a.q_stride, at), a.q_stride.row, tile_row, a.S_q, threadIdx.x,
                              swizzle);
  for (int tile = 0; tile < STAGES - 1; ++tile) copy(tile);  // Q is in the first of these groups

  cp_async_wait<STAGES - 2>();  // all groups but the newest STAGES - 2: the first has landed, for this thread,
  __syncthreads();              // and now for all
  uint32_t q[kRowBlocks][kDimBlocks][4];
  load_q(q, queries, warp * kWarpRows, scale.flip, lane, swizzle);
  Rows rows;
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) wmma::fill_fragment(rows.out[r][d], 0.f);
    rows.base[r][0] = rows.base[r][1] = kLowest;
    rows.sum[r][0] = rows.sum[r][1] = 0.f;
  }

  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<STAGES - 2>();  // this tile has landed,
    __syncthreads();              // for all; and all are done with the last one, or with Q, where the weights will be
    copy(tile + STAGES - 1);      // into the slot of that last one
    const int slot = tile % STAGES;
    Scores s;
    multiply_qk(s, q, keys + slot * kKeyBytes, lane, swizzle);
    if ((tile + 1) * TILE_N > seen_by(a, warp_row)) mask(s, tile * TILE_N, warp_row, a.S_kv, a.causal, lane);
    exp_via_smem(s, rows, weights, corrections, scale.factor, lane);
    scale_rows(rows, corrections);
    multiply_pv(rows, weights, reinterpret_cast<const __half *>(memory + kValuesAt + slot * kValueBytes));
  }
  store_via_smem(rows, a, at, warp_row, reinterpret_cast<float *>(weights), corrections, lane);
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t blocks = tiles_of(args->S_q, TILE_M) * args->B * args->H;
  return launch<flashcore_stage2>(*args, blocks, kThreads, kSharedBytes);
}
