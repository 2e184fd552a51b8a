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

#include "copy.cuh"
#include "flashcore.h"
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

// What a warp keeps of its rows. A lane holds rows g = lane / 4 and g + 8 of each block of 16, except in `out`.
struct Rows {
  uint32_t q[kRowBlocks][kDimBlocks][4];  // A fragments of Q
  Accumulator out[kRowBlocks][kDimBlocks];
  float maximum[kRowBlocks][2], sum[kRowBlocks][2];  // of raw scores; this lane's part of the sum of weights
};
using Scores = float[kRowBlocks][2 * kKeyBlocks][4];  // C fragments, 16 rows x 8 keys each

// Byte offset of a chunk of a row of V.
__device__ __forceinline__ uint32_t padded(int row, int chunk) { return row * kValuePitch * 2 + chunk * 16; }

// A fragments: 16 rows x 16 dims, two chunks of each row.
__device__ __forceinline__ void load_q(Rows &rows, uint32_t queries, int warp, int lane, uint32_t flip) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      ldmatrix_x4(rows.q[r][d], queries + swizzle(warp * kWarpRows + 16 * r + lane % 16, 2 * d + lane / 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.q[r][d][i] ^= flip;  // a negative scale, folded in
    }
  }
}

__device__ __forceinline__ void multiply_qk(Scores &s, const Rows &rows, uint32_t keys, int lane) {
#pragma unroll
  for (int n = 0; n < kKeyBlocks; ++n) {
#pragma unroll
    for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[r][2 * n][i] = s[r][2 * n + 1][i] = 0.f;
    }
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      uint32_t b[4];  // 16 keys x 16 dims: rows of K are columns of K^T, which is what B wants, without transposing
      ldmatrix_x4(b, keys + swizzle(16 * n + lane / 16 * 8 + lane % 8, 2 * d + lane / 8 % 2));
#pragma unroll
      for (int r = 0; r < kRowBlocks; ++r) {
        mma_16816(s[r][2 * n], rows.q[r][d], b[0], b[1]);
        mma_16816(s[r][2 * n + 1], rows.q[r][d], b[2], b[3]);
      }
    }
  }
}

// How many keys a row sees.
__device__ __forceinline__ int seen_by(const flashcore_args &a, int row) {
  return a.causal ? min(a.S_kv, row + 1) : a.S_kv;
}

// -inf for the keys that a row does not see; `row` is this lane's first of the warp.
__device__ __forceinline__ void mask(Scores &s, const flashcore_args &a, int first_key, int row, int lane) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
    const int end = seen_by(a, row + 16 * r), end_below = seen_by(a, row + 16 * r + 8);
#pragma unroll
    for (int n = 0; n < 2 * kKeyBlocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + 8 * n + lane % 4 * 2 + i % 2;
        if (key >= (i < 2 ? end : end_below)) s[r][n][i] = -INFINITY;
      }
    }
  }
}

// Online softmax: scores become weights relative to the new maximum and go to shared memory as halves, with what to
// multiply earlier sums by.
__device__ __forceinline__ void weigh(Scores &s, Rows &rows, __half *weights, float *corrections, float factor,
                                      int lane) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // row g, row g + 8
      float maximum = rows.maximum[r][half];
#pragma unroll
      for (int n = 0; n < 2 * kKeyBlocks; ++n) {
        maximum = fmaxf(maximum, fmaxf(s[r][n][2 * half], s[r][n][2 * half + 1]));
      }
      maximum = max_across<4>(maximum);
      const float correction = exp2_approx((rows.maximum[r][half] - maximum) * factor);  // 0 for the first tile
      const float offset = maximum * factor;
      const int row = 16 * r + lane / 4 + 8 * half;
      float sum = rows.sum[r][half] * correction;
#pragma unroll
      for (int n = 0; n < 2 * kKeyBlocks; ++n) {
        const float left = exp2_approx(fmaf(s[r][n][2 * half], factor, -offset));  // exactly 0 where masked
        const float right = exp2_approx(fmaf(s[r][n][2 * half + 1], factor, -offset));
        sum += left + right;
        uint32_t *to = reinterpret_cast<uint32_t *>(weights + row * kWeightPitch + 8 * n) + lane % 4;
        *to = pack_halves(left, right);  // the pitch puts a warp's 32 words into 32 banks
      }
      if (lane % 4 == 0) corrections[row] = correction;
      rows.maximum[r][half] = maximum, rows.sum[r][half] = sum;
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
__device__ __forceinline__ void store(Rows &rows, const flashcore_args &a, const Place &at, int first_row,
                                      float *staging, float *inverses, int lane) {
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_across<4>(rows.sum[r][half]);
      if (lane % 4 == 0) inverses[16 * r + lane / 4 + 8 * half] = 1.f / sum;
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

  const __half *q = head_of(a.q, a.q_stride, at);
  copy_rows<TILE_M, kThreads>(queries, q, a.q_stride.row, tile_row, a.S_q, threadIdx.x, swizzle);
  for (int tile = 0; tile < STAGES - 1; ++tile) copy(tile);  // Q is in the first of these groups

  cp_async_wait<STAGES - 2>();  // all groups but the newest STAGES - 2: the first has landed, for this thread,
  __syncthreads();              // and now for all
  Rows rows;
  load_q(rows, queries, warp, lane, scale.flip);
#pragma unroll
  for (int r = 0; r < kRowBlocks; ++r) {
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) wmma::fill_fragment(rows.out[r][d], 0.f);
    rows.maximum[r][0] = rows.maximum[r][1] = kLowest;
    rows.sum[r][0] = rows.sum[r][1] = 0.f;
  }

  for (int tile = 0; tile < tiles; ++tile) {
    cp_async_wait<STAGES - 2>();  // this tile has landed,
    __syncthreads();              // for all; and all are done with the last one, or with Q, where the weights will be
    copy(tile + STAGES - 1);      // into the slot of that last one
    const int slot = tile % STAGES;
    Scores s;
    multiply_qk(s, rows, keys + slot * kKeyBytes, lane);
    if ((tile + 1) * TILE_N > seen_by(a, warp_row)) mask(s, a, tile * TILE_N, warp_row + lane / 4, lane);
    weigh(s, rows, weights, corrections, scale.factor, lane);
    scale_rows(rows, corrections);
    multiply_pv(rows, weights, reinterpret_cast<const __half *>(memory + kValuesAt + slot * kValueBytes));
  }
  store(rows, a, at, warp_row, reinterpret_cast<float *>(weights), corrections, lane);
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t blocks = tiles_of(args->S_q, TILE_M) * args->B * args->H;
  return launch<flashcore_stage2>(*args, blocks, kThreads, kSharedBytes);
}
