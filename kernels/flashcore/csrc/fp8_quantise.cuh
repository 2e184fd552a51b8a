// The first two kernels of fp8.cu: sums and extremes of K and V over parts of the sequence, and the quantised tiles.
#ifndef FLASHCORE_FP8_QUANTISE_CUH
#define FLASHCORE_FP8_QUANTISE_CUH

#include "quantise.cuh"

#ifndef QK_INT8
#define QK_INT8 1
#endif

namespace flashcore {

constexpr int kKeys = 64;                                // of a tile and a step
constexpr uint32_t kHalfTile = kKeys * kHeadDim;         // bytes of a tile's keys, and of its values
constexpr uint32_t kRecord = 2 * kHalfTile + kKeys * 4;  // keys, values, scales of the keys
constexpr int kParts = 16;                               // of a sequence at most, summed up by a block each
constexpr int kStatisticsThreads = 256, kQuantiseThreads = 128;

// Four statistics of each channel of a part, in this order.
enum { kSumK, kSumV, kMinV, kMaxV, kStatistics };

// Where things are in the workspace.
struct Workspace {
  unsigned char *records;  // [batch, head, tile]
  float *values;           // [batch, head, 2, dim]: scale and mean of V's channels
  float *parts;            // [batch, head, part, statistic, dim]
};

struct Plan {
  flashcore_args args;
  int heads, tiles, parts, rows_of_part;  // of K and V
  Workspace place;
};

__host__ __device__ inline int64_t head_number(const Plan &plan, int batch, int head) {
  return static_cast<int64_t>(batch) * plan.heads + head;
}

// 64-byte rows: 16-byte chunks are exchanged so that the same chunk of eight rows in a row meets all banks.
__device__ __forceinline__ uint32_t chunk_place(uint32_t row, uint32_t chunk) {
  return row * kHeadDim + ((chunk ^ row / 2 % 4) << 4);
}

// Where key `key` of a tile lies in its transposed values: as the fragment of weights has it, whose columns 2t and 2t+1
// of two neighbouring tiles of scores become four neighbours in k.
__device__ __forceinline__ uint32_t value_place(uint32_t key) {
  return key / 16 * 16 + key % 8 / 2 * 4 + key / 8 % 2 * 2 + key % 2;
}

template <typename T>
__device__ __forceinline__ T merged(int statistic, T x, T y) {
  return statistic == kMinV ? fminf(x, y) : statistic == kMaxV ? fmaxf(x, y) : x + y;
}

// One block: the statistics of a part of one head's K and V. Eight threads share a row, 32 rows at a time.
__global__ void __launch_bounds__(kStatisticsThreads) flashcore_fp8_statistics(const Plan plan) {
  __shared__ float of_warp[kStatistics][kStatisticsThreads / 32][kHeadDim];
  const flashcore_args &args = plan.args;
  const int thread = threadIdx.x, lane = thread % 32, chunk = thread % kChunks;
  const Place at = {0, static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  const __half *k = head_of(args.k, args.k_stride, at) + chunk * 8, *v = head_of(args.v, args.v_stride, at) + chunk * 8;
  const int first = blockIdx.x * plan.rows_of_part, end = min(args.S_kv, first + plan.rows_of_part);
  float found[kStatistics][8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    found[kSumK][i] = found[kSumV][i] = 0.f, found[kMinV][i] = CUDART_INF_F, found[kMaxV][i] = -CUDART_INF_F;
  }
  for (int row = first + thread / kChunks; row < end; row += kStatisticsThreads / kChunks) {
    float x[8], y[8];
    widen(*reinterpret_cast<const uint4 *>(k + row * args.k_stride.row), x);
    widen(*reinterpret_cast<const uint4 *>(v + row * args.v_stride.row), y);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      found[kSumK][i] += x[i], found[kSumV][i] += y[i];
      found[kMinV][i] = fminf(found[kMinV][i], y[i]), found[kMaxV][i] = fmaxf(found[kMaxV][i], y[i]);
    }
  }
#pragma unroll
  for (int statistic = 0; statistic < kStatistics; ++statistic)
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float x = across_rows<kChunks>(found[statistic][i], [=](float x, float y) { return merged(statistic, x, y); });
      if (lane < kChunks) of_warp[statistic][thread / 32][chunk * 8 + i] = x;
    }
  __syncthreads();
  const int statistic = thread / kHeadDim, channel = thread % kHeadDim;
  float x = of_warp[statistic][0][channel];
#pragma unroll
  for (int warp = 1; warp < kStatisticsThreads / 32; ++warp) x = merged(statistic, x, of_warp[statistic][warp][channel]);
  const int64_t part = head_number(plan, at.batch, at.head) * plan.parts + blockIdx.x;
  plan.place.parts[(part * kStatistics + statistic) * kHeadDim + channel] = x;
}

// One block: one tile of keys and values, quantised. Two threads share a key.
__global__ void __launch_bounds__(kQuantiseThreads) flashcore_fp8_quantise(const Plan plan) {
  __shared__ float mean_k[kHeadDim], mean_v[kHeadDim], unit_v[kHeadDim];
  __shared__ uint4 room[kHeadDim][kKeys / 16 + 1];  // one more than a row needs: rows do not share banks
  auto *turned = reinterpret_cast<unsigned char(*)[kKeys + 16]>(room);  // values, transposed
  const flashcore_args &args = plan.args;
  const int thread = threadIdx.x, channel = thread % kHeadDim;
  const Place at = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  const int64_t head = head_number(plan, at.batch, at.head);
  const float *parts = plan.place.parts + head * plan.parts * kStatistics * kHeadDim + channel;
  const auto total = [&](int statistic) {
    float x = parts[statistic * kHeadDim];
    for (int part = 1; part < plan.parts; ++part)
      x = merged(statistic, x, parts[(part * kStatistics + statistic) * kHeadDim]);
    return x;
  };
  if (thread < kHeadDim) {
    mean_k[channel] = total(kSumK) / args.S_kv;
  } else {
    const float mean = total(kSumV) / args.S_kv;
    const float reach = fmaxf(fmaxf(total(kMaxV) - mean, mean - total(kMinV)), kTiny);
    mean_v[channel] = mean, unit_v[channel] = kLargestE4M3 / reach;
    if (at.tile == 0) {
      float *values = plan.place.values + head * 2 * kHeadDim;
      values[channel] = reach / kLargestE4M3, values[kHeadDim + channel] = mean;
    }
  }
  __syncthreads();

  const int key = thread / 2, half = thread % 2, row = at.tile * kKeys + key;  // 32 dimensions each
  const bool present = row < args.S_kv;
  const __half *k = head_of(args.k, args.k_stride, at) + row * args.k_stride.row + half * 32;
  const __half *v = head_of(args.v, args.v_stride, at) + row * args.v_stride.row + half * 32;
  unsigned char *record = plan.place.records + (head * plan.tiles + at.tile) * kRecord;
  float x[4][8], most = 0.f, poison = 0.f;  // poison: NaN if anything is not finite, which fmaxf would not tell
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (present) widen(*reinterpret_cast<const uint4 *>(k + 8 * c), x[c]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[c][i] = present ? x[c][i] - mean_k[half * 32 + 8 * c + i] : 0.f;
      most = fmaxf(most, fabsf(x[c][i])), poison += x[c][i] * 0.f;
    }
  }
  most = reduce_max<2>(most) + reduce_sum<2>(poison);
  const float unit = kLargest<QK_INT8> / (most + kTiny);
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    uint32_t bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&y)[8] = x[c + i / 2];
      const int j = i % 2 * 4;
      bytes[i] = pack_four<QK_INT8>(y[j] * unit, y[j + 1] * unit, y[j + 2] * unit, y[j + 3] * unit);
    }
    *reinterpret_cast<uint4 *>(record + chunk_place(key, half * 2 + c / 2)) =
        make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
  }
  if (half == 0) reinterpret_cast<float *>(record + 2 * kHalfTile)[key] = most / kLargest<QK_INT8>;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    float y[8];
    if (present) widen(*reinterpret_cast<const uint4 *>(v + 8 * c), y);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int d = half * 32 + 8 * c + i;
      const uint32_t pair = present ? pack_e4m3_pair((y[i] - mean_v[d]) * unit_v[d],
                                                     (y[i + 1] - mean_v[d + 1]) * unit_v[d + 1])
                                    : 0u;
      turned[d][value_place(key)] = static_cast<unsigned char>(pair);
      turned[d + 1][value_place(key)] = static_cast<unsigned char>(pair >> 8);
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < 2; ++c)  // now two threads share a channel
    *reinterpret_cast<uint4 *>(record + kHalfTile + chunk_place(key, half * 2 + c)) =
        *reinterpret_cast<const uint4 *>(&turned[key][(half * 2 + c) * 16]);
}

// How the work is laid out, and how many bytes of workspace that needs; `args.workspace` may be null.
inline Plan plan_for(const flashcore_args &args, size_t &bytes) {
  Plan plan;
  plan.args = args;
  plan.heads = args.H_kv ? args.H_kv : args.H;
  plan.tiles = static_cast<int>(tiles_of(args.S_kv, kKeys));
  plan.rows_of_part = static_cast<int>(tiles_of(args.S_kv, kParts * kKeys)) * kKeys;
  plan.parts = static_cast<int>(tiles_of(args.S_kv, plan.rows_of_part));
  const size_t heads = static_cast<size_t>(args.B) * plan.heads;
  const size_t records = heads * plan.tiles * kRecord, values = heads * 2 * kHeadDim * sizeof(float);
  bytes = records + values + heads * plan.parts * kStatistics * kHeadDim * sizeof(float);
  auto *memory = static_cast<unsigned char *>(args.workspace);
  plan.place = {memory, reinterpret_cast<float *>(memory + records), reinterpret_cast<float *>(memory + records + values)};
  return plan;
}

}  // namespace flashcore

#endif
