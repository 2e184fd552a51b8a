// wmma: both products on the tensor cores, through CUDA's own C++ interface, nvcuda::wmma.
//
// The idea: a warp owns WARP_ROWS query rows and walks over the keys in tiles that the block shares. WMMA does not say
// which lane holds which element of a fragment, so whatever needs rows goes through shared memory: scores are stored,
// each lane takes a part of one row for the online softmax, and writes probabilities as halves over the same memory,
// to be loaded as the left operand of P V. Outputs stay in fragments all the way; to correct them by a factor per row,
// the factors are loaded as a fragment of their own, every column the same (a stride of zero), and multiplied in.
//
// What it leaves on the table: the trip of S and P through shared memory (the fused kernel knows the layout of its
// fragments and saves it), and copies that nothing hides (stage2).

#include <mma.h>

#include "tensor.cuh"

#ifndef TILE_N  // keys per tile
#define TILE_N 64
#endif
#ifndef WARPS  // per block; query rows are WARPS * WARP_ROWS
#define WARPS 4
#endif
#ifndef WARP_ROWS  // query rows per warp
#define WARP_ROWS 16
#endif

namespace {

using namespace flashcore;
using namespace nvcuda;

constexpr int kThreads = 32 * WARPS;
constexpr int kTileRows = WARPS * WARP_ROWS;
constexpr int kRowTiles = WARP_ROWS / 16;
constexpr int kKeyTiles = TILE_N / 16;
constexpr int kDepthTiles = kHeadDim / 16;
static_assert(WARP_ROWS % 16 == 0 && TILE_N % 32 == 0, "whole fragments, and whole 16-byte pieces for each lane");

// Rows are 16 bytes longer than their contents: eight rows then start in eight different groups of four banks. (WMMA
// takes a start and a stride, so the swizzle of tensor.cuh is not for it.)
constexpr int kRow = kHeadDim + 8;         // halves, of Q, K, V and O
constexpr int kScoreRow = TILE_N + 4;      // floats, of S
constexpr int kWeightRow = 2 * kScoreRow;  // halves, of P, which lies over S row by row

// Shared memory: K, V; then for each warp its rows of Q, of S (after the last tile: of O), and its factors. Q stays
// there: in fragments it would hold 32 registers of each lane for as long as the kernel runs.
constexpr uint32_t kTileBytes = TILE_N * kRow * 2;
constexpr uint32_t kQueryBytes = WARP_ROWS * kRow * 2;
constexpr uint32_t kScoreBytes = WARP_ROWS * 4 * (kScoreRow > kRow ? kScoreRow : kRow);
constexpr uint32_t kFactorBytes = WARP_ROWS * 4;
constexpr uint32_t kWarpBytes = kQueryBytes + kScoreBytes + kFactorBytes;
constexpr uint32_t kSharedBytes = 2 * kTileBytes + WARPS * kWarpBytes;
static_assert(kTileBytes % 32 == 0 && kQueryBytes % 32 == 0 && kScoreBytes % 32 == 0, "WMMA wants 32-byte alignment");
static_assert(kSharedBytes <= 64 * 1024, "the budget of this kernel");

// Left alone the compiler takes 128 registers, to fetch fragments a little earlier. With 16 rows a warp 120 do as well
// (more rows take what they need). A compiler older than CUDA 12.4 cannot be told.
#if defined(__maxnreg__) && WARP_ROWS == 16
#define REGISTERS __maxnreg__(120)
#else
#define REGISTERS __launch_bounds__(kThreads)
#endif

using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using Keys = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major>;    // K's rows are B's columns
using Values = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// Copy rows first .. first + ROWS - 1 into padded rows; from `end` on, zeros. All reads are under way before the first
// write waits for one.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_rows(__half *to, const __half *head, int64_t stride, int first, int end,
                                          int thread) {
  constexpr int kPass = THREADS / kChunks;
  static_assert(ROWS % kPass == 0, "whole passes");
  uint4 data[ROWS / kPass];
  const int row = thread / kChunks, chunk = thread % kChunks;
  const __half *from = head + (first + row) * stride + chunk * 8;
#pragma unroll
  for (int i = 0; i < ROWS / kPass; ++i, from += kPass * stride) {
    const bool present = first + row + i * kPass < end;
    data[i] = present ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < ROWS / kPass; ++i)
    *reinterpret_cast<uint4 *>(to + (row + i * kPass) * kRow + chunk * 8) = data[i];
}

// S = Q K^T for this warp's rows, into `scores`. The sum over the head dimension is the outer loop: every product in
// the inner ones adds to another fragment, so that none waits for the one before.
__device__ __forceinline__ void multiply_qk(float *scores, const __half *queries, const __half *k_tile) {
  Sum s[kRowTiles][kKeyTiles];
#pragma unroll
  for (auto &row : s)
#pragma unroll
    for (Sum &tile : row) wmma::fill_fragment(tile, 0.f);
#pragma unroll
  for (int d = 0; d < kDepthTiles; ++d) {
    Left q[kRowTiles];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) wmma::load_matrix_sync(q[i], queries + 16 * i * kRow + 16 * d, kRow);
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Keys k;
      wmma::load_matrix_sync(k, k_tile + 16 * n * kRow + 16 * d, kRow);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) wmma::mma_sync(s[i][n], q[i], k, s[i][n]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
      wmma::store_matrix_sync(scores + 16 * i * kScoreRow + 16 * n, s[i][n], kScoreRow, wmma::mem_row_major);
}

// Two lanes, 16 apart, share a row: eight neighbouring lanes then read eight rows, which lie in different banks.
struct RowState {
  float maximum, sum;  // both lanes hold the row's maximum; each its own part of the sum
};

// One step of the online softmax on rows 16i .. 16i + 15: scores become halves in place. The factor that corrects what
// was summed before goes to `factors`; returns it.
__device__ __forceinline__ float softmax(float *scores, float *factors, RowState &state, float scale, int seen,
                                        int lane) {
  constexpr int kPieces = TILE_N / 16;  // of 8 keys, for each of the two lanes
  float *row = scores + lane % 16 * kScoreRow;
  const int side = lane / 16;
  float s[kPieces][8];
  float maximum = state.maximum;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int key = (2 * p + side) * 8;
    *reinterpret_cast<float4 *>(&s[p][0]) = *reinterpret_cast<const float4 *>(row + key);
    *reinterpret_cast<float4 *>(&s[p][4]) = *reinterpret_cast<const float4 *>(row + key + 4);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      s[p][e] = key + e < seen ? s[p][e] * scale : -CUDART_INF_F;
      maximum = fmaxf(maximum, s[p][e]);
    }
  }
  maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, 16));
  __syncwarp();  // both lanes of a row read its scores before either writes over them: a shuffle orders no memory
  // Every row sees key 0 in its first tile, so that from then on its maximum is finite.
  const float correction = exp2_approx(state.maximum - maximum);
  float sum = 0.f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sum += s[p][e] = exp2_approx(s[p][e] - maximum);
    *reinterpret_cast<uint4 *>(reinterpret_cast<__half *>(row) + (2 * p + side) * 8) =
        make_uint4(pack_halves(s[p][0], s[p][1]), pack_halves(s[p][2], s[p][3]), pack_halves(s[p][4], s[p][5]),
                   pack_halves(s[p][6], s[p][7]));
  }
  state = {maximum, state.sum * correction + sum};
  if (side == 0) factors[lane] = correction;
  return correction;
}

// Multiply each row of 16 rows of O by its factor.
__device__ __forceinline__ void scale_rows(Sum (&out)[kDepthTiles], const float *factors) {
  Sum by;  // element (row, column) lies at factors[row + 0 * column]
  wmma::load_matrix_sync(by, factors, 0, wmma::mem_col_major);
#pragma unroll
  for (Sum &tile : out)
#pragma unroll
    for (int e = 0; e < tile.num_elements; ++e) tile.x[e] *= by.x[e];  // same type, same layout, whatever it is
}

}  // namespace

static __global__ void REGISTERS flashcore_wmma(const flashcore_args a) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int tiles = static_cast<int>(tiles_of(a.S_q, kTileRows));
  Place at = place(blockIdx.x, tiles, a.H);
  if (a.causal) at.tile = tiles - 1 - at.tile;  // the longest first: the short ones fill the gaps at the end
  const int block_row = at.tile * kTileRows, first = block_row + warp * WARP_ROWS;
  const int keys = a.causal ? min(a.S_kv, block_row + kTileRows) : a.S_kv;  // that any row of this block sees
  const __half *k_head = head_of(a.k, a.k_stride, at), *v_head = head_of(a.v, a.v_stride, at);
  const float scale = a.scale * 1.4426950408889634f;  // exp(x) is then one exp2

  unsigned char *memory = dynamic_shared();
  __half *k_tile = reinterpret_cast<__half *>(memory), *v_tile = reinterpret_cast<__half *>(memory + kTileBytes);
  unsigned char *own = memory + 2 * kTileBytes + warp * kWarpBytes;  // nobody else touches it: __syncwarp is enough
  __half *queries = reinterpret_cast<__half *>(own);
  float *scores = reinterpret_cast<float *>(own + kQueryBytes);
  const __half *weights = reinterpret_cast<const __half *>(scores);
  float *factors = reinterpret_cast<float *>(own + kQueryBytes + kScoreBytes);

  load_rows<WARP_ROWS, 32>(queries, head_of(a.q, a.q_stride, at), a.q_stride.row, first, a.S_q, lane);
  __syncwarp();
  Sum out[kRowTiles][kDepthTiles];
  RowState state[kRowTiles];
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    state[i] = {-CUDART_INF_F, 0.f};
#pragma unroll
    for (int d = 0; d < kDepthTiles; ++d) wmma::fill_fragment(out[i][d], 0.f);
  }

#pragma unroll 1
  for (int key = 0; key < keys; key += TILE_N) {
    __syncthreads();  // all have left the last tile
    load_rows<TILE_N, kThreads>(k_tile, k_head, a.k_stride.row, key, keys, threadIdx.x);
    load_rows<TILE_N, kThreads>(v_tile, v_head, a.v_stride.row, key, keys, threadIdx.x);
    __syncthreads();
    if (a.causal && key >= first + WARP_ROWS) continue;  // nothing here that any row of this warp sees

    multiply_qk(scores, queries, k_tile);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const int row = first + 16 * i + lane % 16;
      const int seen = (a.causal ? min(keys, row + 1) : keys) - key;
      const float correction = softmax(scores + 16 * i * kScoreRow, factors + 16 * i, state[i], scale, seen, lane);
      __syncwarp();
      if (__any_sync(kAllLanes, correction != 1.f)) scale_rows(out[i], factors + 16 * i);
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      Left p[kRowTiles];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        wmma::load_matrix_sync(p[i], weights + 16 * i * kWeightRow + 16 * n, kWeightRow);
#pragma unroll
      for (int d = 0; d < kDepthTiles; ++d) {
        Values v;
        wmma::load_matrix_sync(v, v_tile + 16 * n * kRow + 16 * d, kRow);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) wmma::mma_sync(out[i][d], p[i], v, out[i][d]);
      }
    }
    __syncwarp();  // a fence to the compiler only: reads moved up across the end of the loop cost it two registers more
  }

  // Divide by the sums and write rows, through this warp's memory once more.
  float *rows = scores;
  constexpr int kOutRow = kHeadDim + 8;  // floats; a multiple of 4, and the same banks as rows of halves twice over
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const float total = state[i].sum + __shfl_xor_sync(kAllLanes, state[i].sum, 16);
    if (lane < 16) factors[16 * i + lane] = 1.f / total;
    __syncwarp();
    scale_rows(out[i], factors + 16 * i);
#pragma unroll
    for (int d = 0; d < kDepthTiles; ++d)
      wmma::store_matrix_sync(rows + 16 * i * kOutRow + 16 * d, out[i][d], kOutRow, wmma::mem_row_major);
  }
  __syncwarp();
  __half *o = head_of(a.o, a.o_stride, at);
#pragma unroll
  for (int i = 0; i < WARP_ROWS / 4; ++i) {
    const int row = 4 * i + lane / kChunks, chunk = lane % kChunks;
    const float *from = rows + row * kOutRow + chunk * 8;
    const float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
    const uint4 data = make_uint4(pack_halves(low.x, low.y), pack_halves(low.z, low.w), pack_halves(high.x, high.y),
                                  pack_halves(high.z, high.w));
    if (first + row < a.S_q) *reinterpret_cast<uint4 *>(o + (first + row) * a.o_stride.row + chunk * 8) = data;
  }
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t blocks = tiles_of(args->S_q, kTileRows) * args->B * args->H;
  return launch<flashcore_wmma>(*args, blocks, kThreads, kSharedBytes);
}
