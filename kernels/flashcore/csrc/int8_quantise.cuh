// The first kernel of int8.cu: K without a mean as signed bytes, in the tiles that the second one reads.
#ifndef FLASHCORE_INT8_QUANTISE_CUH
#define FLASHCORE_INT8_QUANTISE_CUH

#include "flagship_tiling.cuh"
#include "quantise.cuh"

namespace flashcore {

constexpr int kSample = 64;       // keys whose mean is taken out
constexpr int kGroupsOfKeys = 4;  // of a tile, with a scale each
constexpr int kKeysOfBlock = 64, kQuantiseThreads = 4 * kKeysOfBlock;  // that quantises: four lanes share a key
constexpr float kSlack = SLACK;

// Keys of a tile and a step, and bytes of a tile of K: 4096.
__host__ __device__ constexpr int keys_of(int dim) { return dim == 64 ? 64 : 32; }
constexpr uint32_t kRecord = 4096;

struct Plan {
  flashcore_args args;
  int heads, tiles;        // of K
  unsigned char *records;  // [batch, head, tile]: planes of 64 dimensions [key, 64]
  float *scales;           // [batch, head, tile, group]
};

__device__ __forceinline__ int64_t head_number(const Plan &plan, int batch, int head) {
  return static_cast<int64_t>(batch) * plan.heads + head;
}

// A key of the sample: spread evenly over the sequence, at no fixed distance, which the keys' own period might meet.
__device__ __forceinline__ int sampled(unsigned number, int keys) { return __umulhi(number * 2654435769u, keys); }

template <int D>
__global__ void __launch_bounds__(kQuantiseThreads) flashcore_int8_quantise(const Plan plan) {
  constexpr int kKeys = keys_of(D), kPlanes = D / 64, kWarps = 4 * kKeys / 32, kPairs = D / 2;
  constexpr int kGroups = kQuantiseThreads / kPairs;  // of threads, each of which adds up some keys of the sample
  __shared__ float2 sums[kGroups][kPairs];
  __shared__ float mean[D], largest[kQuantiseThreads / 32][kGroupsOfKeys];
  const flashcore_args &args = plan.args;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, key = thread / 4, chunk = thread % 4;
  const Place at = {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z)};
  const __half *k = head_of(args.k, args.k_stride, at);
  const int row = at.tile * kKeysOfBlock + key, tile = row / kKeys;
  const bool present = row < args.S_kv;
  uint4 raw[kPlanes][2];
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    const auto *from = reinterpret_cast<const uint4 *>(k + (present ? row : 0) * args.k_stride.row + p * 64 + chunk * 16);
    raw[p][0] = from[0], raw[p][1] = from[1];
  }
  float2 sum = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < kSample; n += kGroups) {
    const int of = sampled(n + thread / kPairs, args.S_kv);
    const auto *from = reinterpret_cast<const __half2 *>(k + of * args.k_stride.row) + thread % kPairs;
    const float2 pair = __half22float2(*from);
    sum.x += pair.x, sum.y += pair.y;
  }
  sums[thread / kPairs][thread % kPairs] = sum;
  __syncthreads();
  if (thread < D) {
    float all = 0.f;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) all += reinterpret_cast<const float *>(sums[g])[thread];
    mean[thread] = all / kSample;
  }
  __syncthreads();
  float x[kPlanes][16], most = 0.f, poison = 0.f;
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    widen(raw[p][0], *reinterpret_cast<float(*)[8]>(x[p])), widen(raw[p][1], *reinterpret_cast<float(*)[8]>(x[p] + 8));
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      x[p][i] = present ? x[p][i] - mean[p * 64 + chunk * 16 + i] : 0.f;
      most = fmaxf(most, fabsf(x[p][i])), poison += x[p][i] * 0.f;
    }
  }
  most = reduce_max<8>(most) + reduce_sum<8>(poison);  // of two keys: other warps have the group's others
  if (lane % 8 == 0) largest[warp][lane / 8] = most;
  __syncthreads();
  most = 0.f, poison = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    const float x = largest[warp / kWarps * kWarps + w][lane / 8];
    most = fmaxf(most, x), poison += x * 0.f;
  }
  most += poison;
  if (tile >= plan.tiles) return;
  const float unit = kLargest<true> / (most + kTiny);
  const int64_t number = head_number(plan, at.batch, at.head) * plan.tiles + tile;
  unsigned char *record = plan.records + number * kRecord;
#pragma unroll
  for (int p = 0; p < kPlanes; ++p) {
    uint32_t words[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float *y = x[p] + 4 * w;
      words[w] = pack_s8(y[0] * unit, y[1] * unit, y[2] * unit, y[3] * unit);
    }
    *reinterpret_cast<uint4 *>(record + p * kKeys * 64 + thread % (4 * kKeys) * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  const float scale = most / kLargest<true>;
  if (warp % kWarps == 0 && lane % 8 == 0)  // a factor is the product of two: never 0, and NaN stays NaN
    plan.scales[number * kGroupsOfKeys + lane / 8] = scale < 1e-12f ? 1e-12f : scale;
}

}  // namespace flashcore

#endif
