// baseline: the scalar kernel the others are measured against.
//
// The idea: one block of 64 threads owns one query row and walks over the keys in tiles, keeping only a running maximum,
// a running sum and one output column per thread (online softmax), so that S x S scores never exist anywhere.
// Every load is coalesced: a warp reads one key's row as 32 half2, and the block reads one value's row as 64 halves.
//
// What it leaves on the table, for the next kernels to take: no tensor cores, and no reuse: each query row reads all of
// K and V again (at S = 512, 512 times), so the caches' bandwidth bounds it long before arithmetic does.

#include "tiles.cuh"

#ifndef KEYS  // keys per tile: a multiple of the warp's 32
#define KEYS 64
#endif

namespace {

using namespace flashcore;

constexpr int kThreads = kHeadDim;  // one per output column
constexpr int kWarps = kThreads / 32;
constexpr int kKeysPerLane = KEYS / 32;
static_assert(KEYS % 32 == 0, "a tile is shared out evenly to the lanes of a warp");

}  // namespace

static __global__ void __launch_bounds__(kThreads) flashcore_baseline(const flashcore_args a) {
  __shared__ float q[kHeadDim];    // the query, times scale * log2(e): exp(x) is then one exp2
  __shared__ float score[KEYS];
  __shared__ float weight[KEYS];   // exp2(score - maximum)

  const int column = threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Place at = place(blockIdx.x, a.S_q, a.H);  // neighbouring blocks share a head: its K and V stay in cache
  const int row = at.tile;
  const __half *k = head_of(a.k, a.k_stride, at);
  const __half *v = head_of(a.v, a.v_stride, at) + column;
  const int keys = seen_by(a, row);

  const __half query = head_of(a.q, a.q_stride, at)[row * a.q_stride.row + column];
  q[column] = __half2float(query) * (a.scale * 1.4426950408889634f);
  __syncthreads();
  const float2 q_lane = make_float2(q[2 * lane], q[2 * lane + 1]);

  float maximum = kLowest, sum = 0.f, out = 0.f;
  for (int tile = 0; tile < keys; tile += KEYS) {
    // 1. Scores: each warp takes every second key; its lanes share out the head dimension.
#pragma unroll 4
    for (int j = warp; j < KEYS; j += kWarps) {
      float s = -CUDART_INF_F;
      if (tile + j < keys) {
        const __half2 *k_row = reinterpret_cast<const __half2 *>(k + (tile + j) * a.k_stride.row);
        const float2 k_lane = __half22float2(k_row[lane]);
        s = reduce_sum<32>(q_lane.x * k_lane.x + q_lane.y * k_lane.y);
      }
      if (lane == 0) score[j] = s;
    }
    __syncthreads();

    // 2. Online softmax: both warps compute the same maximum and sum, which saves an exchange; the first keeps the weights.
    float tile_maximum = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) tile_maximum = fmaxf(tile_maximum, score[32 * i + lane]);
    const float new_maximum = fmaxf(maximum, reduce_max<32>(tile_maximum));
    const float correction = exp2f(maximum - new_maximum);
    float tile_sum = 0.f;
#pragma unroll
    for (int i = 0; i < kKeysPerLane; ++i) {
      const float p = exp2f(score[32 * i + lane] - new_maximum);
      tile_sum += p;
      if (warp == 0) weight[32 * i + lane] = p;
    }
    sum = sum * correction + reduce_sum<32>(tile_sum);
    maximum = new_maximum;
    __syncthreads();

    // 3. Output: each thread adds the tile's values to its column.
    out *= correction;
    const int count = min(KEYS, keys - tile);
#pragma unroll 8
    for (int j = 0; j < count; ++j) out += weight[j] * __half2float(v[(tile + j) * a.v_stride.row]);
  }

  head_of(a.o, a.o_stride, at)[row * a.o_stride.row + column] = __float2half_rn(out / sum);
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t rows = static_cast<int64_t>(args->B) * args->H * args->S_q;
  return launch<flashcore_baseline>(*args, rows, kThreads, 0);
}
