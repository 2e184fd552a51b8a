// Products of tiles in shared memory by mma.sync, and results from fragments to memory: what kernels share. A kernel says
// where chunk c of row r of a tile lies, in bytes: `place(r, c)`; a chunk is 16 bytes. Indices are online_softmax.cuh's.
#ifndef FLASHCORE_MMA_TILES_CUH
#define FLASHCORE_MMA_TILES_CUH

#include "bfloat16.cuh"

namespace flashcore {

// 16 rows of Q from `row` on, dimensions 16 * k to 16 * k + 15, as an A fragment.
template <typename Offset>
__device__ __forceinline__ void load_q(uint32_t (&q)[4], uint32_t tile, int row, int k, uint32_t flip, int lane,
                                       Offset place) {
  ldmatrix_x4(q, tile + place(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
  for (uint32_t &pair : q) pair ^= flip;
}

// The same of a warp's 16 * R rows from `first` on, and of all dimensions.
template <int R, int K, typename Offset>
__device__ __forceinline__ void load_q(uint32_t (&q)[R][K][4], uint32_t tile, int first, uint32_t flip, int lane,
                                       Offset place) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int k = 0; k < K; ++k) load_q(q[i][k], tile, first + 16 * i, k, flip, lane, place);
}

// S = Q K^T for key tiles from .. from + COUNT - 1. Keys are rows in memory and columns of B, so that plain ldmatrix gives
// B. `fragment_of(i, k)` is the A fragment of Q: by reference, or read at that moment. The sum over the head dimension is
// the outer loop: no product waits for the one before.
template <Type T, int COUNT, int K, int R, int N, typename Fragment, typename Offset>
__device__ __forceinline__ void multiply_qk(float (&s)[R][N][4], Fragment fragment_of, uint32_t k_tile, int from, int lane,
                                            Offset place) {
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int n = from; n < from + COUNT; ++n) zero(s[i][n]);
#pragma unroll
  for (int k = 0; k < K; ++k) {
    uint32_t q[R][4];
#pragma unroll
    for (int i = 0; i < R; ++i) fragment_of(q[i], i, k);
#pragma unroll
    for (int n = from; n < from + COUNT; n += 2) {
      uint32_t b[4];  // keys 8n.. with dimensions 16k.., 16k+8..; keys 8n+8.. with the same
      ldmatrix_x4(b, k_tile + place(8 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < R; ++i) {
        mma<T>(s[i][n], q[i], b[0], b[1]);
        mma<T>(s[i][n + 1], q[i], b[2], b[3]);
      }
    }
  }
}

// The same of a whole tile, for FP16 and queries in registers.
template <int R, int N, int K, typename Offset>
__device__ __forceinline__ void multiply_qk(float (&s)[R][N][4], const uint32_t (&q)[R][K][4], uint32_t k_tile, int lane,
                                            Offset place) {
  const auto fragment_of = [&](uint32_t (&to)[4], int i, int k) {
#pragma unroll
    for (int r = 0; r < 4; ++r) to[r] = q[i][k][r];
  };
  multiply_qk<Type::kHalf, N, K>(s, fragment_of, k_tile, 0, lane, place);
}

// O += P V for the 16 keys from 8 * n on: V's rows are B's, hence the transposition.
template <Type T, int R, int O, typename Offset>
__device__ __forceinline__ void multiply_pv(float (&out)[R][O][4], const uint32_t (&p)[R][4], uint32_t v_tile, int n,
                                            int lane, Offset place) {
#pragma unroll
  for (int column = 0; column < O; column += 2) {
    uint32_t b[4];  // columns 8c.. with keys 8n.., 8n+8..; columns 8c+8.. with the same
    ldmatrix_x4_trans(b, v_tile + place(8 * n + lane % 16, column + lane / 16));
#pragma unroll
    for (int i = 0; i < R; ++i) {
      mma<T>(out[i][column], p[i], b[0], b[1]);
      mma<T>(out[i][column + 1], p[i], b[2], b[3]);
    }
  }
}

// The same of a whole tile, for FP16.
template <int P, int R, int O, typename Offset>
__device__ __forceinline__ void multiply_pv(float (&out)[R][O][4], const uint32_t (&p)[P][R][4], uint32_t v_tile, int lane,
                                            Offset place) {
#pragma unroll
  for (int n = 0; n < P; ++n) multiply_pv<Type::kHalf>(out, p[n], v_tile, 2 * n, lane, place);
}

// O columns of 16 rows from fragments to memory: two neighbours at a time, 16 bytes of a row by each quad. `row` is the
// lane's first; those from `end` on are not written.
template <Type T, int O, typename Element>
__device__ __forceinline__ void store(const float (&out)[O][4], const float (&scale)[2], Element *o, int64_t stride,
                                      int row, int end, int column, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h, row += 8) {
    if (row >= end) return;
    Element *to = o + static_cast<uint64_t>(static_cast<unsigned>(row)) * stride + column + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < O; ++n)
      *reinterpret_cast<uint32_t *>(to + 8 * n) = pack<T>(out[n][2 * h] * scale[h], out[n][2 * h + 1] * scale[h]);
  }
}

// A warp's rows from `first` on of a tile in shared memory to memory, 16 bytes by each lane: of a row the chunks from FIRST on,
// LINE side by side, then those behind. Of the tile, `count` rows exist.
template <int R, int O, int FIRST, int LINE, typename Element, typename Offset>
__device__ __forceinline__ void store_lines(const unsigned char *tile, int first, Element *o, int64_t stride, int count,
                                            int lane, Offset place) {
  constexpr int kPass = 32 / LINE;  // rows at a time: O column tiles are as many chunks
  static_assert(16 * R % kPass == 0 && LINE * kPass == 32, "every pass is full");
  const int chunk = FIRST + lane % LINE;
  int row = first + lane / LINE;
  Element *to = o + static_cast<uint64_t>(static_cast<unsigned>(row)) * stride + chunk * 8;
#pragma unroll
  for (int down = 0; down < 16 * R; down += kPass, row += kPass, to += kPass * stride)
    if (row < count) *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(tile + place(row, chunk));
  if constexpr (FIRST + LINE < O) store_lines<R, O, LINE, O - LINE>(tile, first, o, stride, count, lane, place);
}

// A warp's rows from `first` on to memory by way of a tile in shared memory whose rows nobody else reads. `scale_of(i, h)` is
// what a row is multiplied by. Of the tile, `count` rows exist.
template <Type T, int R, int O, typename Scale, typename Element, typename Offset>
__device__ __forceinline__ void store_via_smem(const float (&out)[R][O][4], Scale scale_of, unsigned char *tile, int first,
                                               Element *o, int64_t stride, int count, int lane, Offset place) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < R; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = scale_of(i, h);
      const int row = first + 16 * i + lane / 4 + 8 * h;
#pragma unroll
      for (int n = 0; n < O; ++n)
        *reinterpret_cast<uint32_t *>(tile + place(row, n) + lane % 4 * 4) =
            pack<T>(out[i][n][2 * h] * scale, out[i][n][2 * h + 1] * scale);
    }
  __syncwarp();
  store_lines<R, O, 0, (O & (O - 1)) == 0 ? O : 8>(tile, first, o, stride, count, lane, place);
}

}  // namespace flashcore

#endif
