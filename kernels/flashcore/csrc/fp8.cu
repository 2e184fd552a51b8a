// fp8: both products on 8-bit tensor cores, FP16 in and out, the quantisation included.
//
// What an 8-bit number cannot hold is taken out before, exactly, and put back after:
// - K: its mean over the sequence. That adds one constant to all scores of a query, which softmax does not see.
// - V: its mean over the sequence, added to the output at the end, since a row's weights sum up to 1.
// - Q and K are signed bytes with a scale per row (QK_INT8), so that one large entry costs only its own row precision;
//   QK_INT8=0 makes them E4M3, whose 3 bits of mantissa cost more.
// - V is E4M3 with a scale per channel; weights are E4M3, not normalised, with the largest of a row at 448: the smallest
//   weight that is not lost is then 2^-18 of the largest. The sum that normalises them is that of the rounded weights.
//
// Three kernels: sums and extremes of K and V over parts of the sequence; the quantised tiles, V transposed since 8-bit
// operands cannot be transposed on the way to a tensor core; attention. The tiles lie in memory as shared memory wants
// them, swizzled and 8448 bytes each, so that a tile is one straight copy. The place for them is the caller's workspace.
//
// One step is 64 keys. Its P V starts from zeros and is added to the output in FP32, which is also where the output is
// rescaled: tensor cores of sm_89 sum E4M3 products at less than FP32's precision, and a step is short enough for that.
//
// A NaN or an infinity in K or V makes all outputs of its head and channel, or all of its head, NaN.

#include "fp8.cuh"
#include "tiles.cuh"

#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef STAGES
#define STAGES 3
#endif
#ifndef QK_INT8
#define QK_INT8 1
#endif

namespace flashcore {

constexpr int kKeys = 64;                                // of a tile and a step
constexpr uint32_t kHalfTile = kKeys * kHeadDim;         // bytes of a tile's keys, and of its values
constexpr uint32_t kRecord = 2 * kHalfTile + kKeys * 4;  // keys, values, scales of the keys
constexpr int kParts = 16;                               // of a sequence at most, summed up by a block each
constexpr int kWarps = TILE_M / 16, kThreads = 32 * kWarps;
constexpr int kStatisticsThreads = 256, kQuantiseThreads = 128;
constexpr float kLargestByte = QK_INT8 ? 127.f : kLargestE4M3;
constexpr float kTiny = 1e-30f;

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

// 8 halves as floats.
__device__ __forceinline__ void widen(const uint4 &raw, float (&x)[8]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&words[i]));
    x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
  }
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
      float x = found[statistic][i];
#pragma unroll
      for (int step = kChunks; step < 32; step *= 2) x = merged(statistic, x, __shfl_xor_sync(kAllLanes, x, step));
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
  most = max_across<2>(most) + sum_across<2>(poison);
  const float unit = kLargestByte / (most + kTiny);
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    uint32_t bytes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&y)[8] = x[c + i / 2];
      const int j = i % 2 * 4;
      bytes[i] = QK_INT8 ? pack_s8(y[j] * unit, y[j + 1] * unit, y[j + 2] * unit, y[j + 3] * unit)
                         : pack_e4m3(y[j] * unit, y[j + 1] * unit, y[j + 2] * unit, y[j + 3] * unit);
    }
    *reinterpret_cast<uint4 *>(record + chunk_place(key, half * 2 + c / 2)) =
        make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
  }
  if (half == 0) reinterpret_cast<float *>(record + 2 * kHalfTile)[key] = most / kLargestByte;
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

#if QK_INT8
using Product = int;
__device__ __forceinline__ void multiply(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16832_s8(c, a, b0, b1);
}
#else
using Product = float;
__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16832_e4m3(c, a, b0, b1);
}
#endif

// A row of Q in fragments; returns from products with it to powers of 2. `flip` is -1 for a negative scale.
__device__ __forceinline__ float quantise_row(const __half *q, bool present, int t, float flip, float scale,
                                              uint32_t (&pairs)[2][2]) {
  float x[2][2][4], most = 0.f, poison = 0.f;
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint2 raw = make_uint2(0, 0);
      if (present) raw = *reinterpret_cast<const uint2 *>(q + 32 * k + 16 * h + 4 * t);
      const float2 low = __half22float2(*reinterpret_cast<const __half2 *>(&raw.x));
      const float2 high = __half22float2(*reinterpret_cast<const __half2 *>(&raw.y));
      const float values[4] = {low.x, low.y, high.x, high.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[k][h][i] = values[i] * flip;
        most = fmaxf(most, fabsf(values[i])), poison += values[i] * 0.f;
      }
    }
  most = max_across<4>(most) + sum_across<4>(poison);
  const float unit = kLargestByte / (most + kTiny);
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float(&y)[4] = x[k][h];
      pairs[k][h] = QK_INT8 ? pack_s8(y[0] * unit, y[1] * unit, y[2] * unit, y[3] * unit)
                            : pack_e4m3(y[0] * unit, y[1] * unit, y[2] * unit, y[3] * unit);
    }
  const float factor = most / kLargestByte * scale;
  return factor < kTiny ? kTiny : factor;  // as fold() of tensor.cuh has it, but NaN stays NaN
}

// (Without the second number ptxas aims at 128 registers on sm_89, and spills.)
__global__ void __launch_bounds__(kThreads, kThreads > 128 ? 1 : 3) flashcore_fp8(const Plan plan) {
  const flashcore_args &args = plan.args;
  const int thread = threadIdx.x, lane = thread % 32, t = lane % 4;
  // Under a causal mask the tiles that see the most keys start first.
  const int tile = args.causal ? gridDim.y - 1 - blockIdx.y : blockIdx.x;
  const int head = args.causal ? blockIdx.x : blockIdx.y, batch = blockIdx.z;
  const int64_t kv_head = head_number(plan, batch, head / (args.H / plan.heads));
  const int tile_row = tile * TILE_M, first_row = tile_row + thread / 32 * 16, row = first_row + lane / 4;
  const int keys = args.causal ? min(args.S_kv, tile_row + TILE_M) : args.S_kv;
  const int steps = (keys + kKeys - 1) / kKeys;

  const uint32_t ring = shared_address(dynamic_shared());
  const unsigned char *records = plan.place.records + kv_head * plan.tiles * kRecord;
  const auto load = [&](int step) {
    if (step < steps)
      for (uint32_t at = thread * 16; at < kRecord; at += kThreads * 16)
        cp_async_16(ring + step % STAGES * kRecord + at, records + static_cast<uint64_t>(step) * kRecord + at, true);
    cp_async_commit();
  };
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) load(step);

  const Place at = {tile, head, batch};
  const __half *q_head = head_of(args.q, args.q_stride, at);
  const float flip = args.scale < 0.f ? -1.f : 1.f, scale = fabsf(args.scale) * 1.4426950408889634f;
  uint32_t q[2][4];  // [32 dimensions]
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = row + 8 * h;
    uint32_t pairs[2][2];
    factor[h] = quantise_row(q_head + r * args.q_stride.row, r < args.S_q, t, flip, scale, pairs);
#pragma unroll
    for (int k = 0; k < 2; ++k) q[k][h] = pairs[k][0], q[k][2 + h] = pairs[k][1];
  }

  float out[kHeadDim / 8][4], sum[4] = {0.f, 0.f, 0.f, 0.f}, maximum[2] = {-CUDART_INF_F, -CUDART_INF_F};
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0.f;

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load(step + STAGES - 1);
    const int key = step * kKeys;
    if (args.causal && key > first_row + 15) continue;
    const uint32_t k_tile = ring + step % STAGES * kRecord, v_tile = k_tile + kHalfTile;
    const auto *scales = reinterpret_cast<const float *>(dynamic_shared() + step % STAGES * kRecord + 2 * kHalfTile);

    float s[kKeys / 8][4];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, k_tile + chunk_place(8 * n + lane % 8, lane / 8));
      Product c[4] = {0, 0, 0, 0};
      multiply(c, q[0], b[0], b[1]);
      multiply(c, q[1], b[2], b[3]);
      const float2 of_keys = *reinterpret_cast<const float2 *>(scales + 8 * n + 2 * t);
      s[n][0] = c[0] * of_keys.x, s[n][1] = c[1] * of_keys.y;
      s[n][2] = c[2] * of_keys.x, s[n][3] = c[3] * of_keys.y;
    }
    if (key + kKeys > args.S_kv || (args.causal && key + kKeys - 1 > first_row)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int end = args.causal ? min(args.S_kv, row + 8 * h + 1) : args.S_kv;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (key + 8 * n + 2 * t + e >= end) s[n][2 * h + e] = -CUDART_INF_F;
      }
    }

    float keep[2], shift[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = maximum[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      most = max_across<4>(most);  // finite, unless something is NaN: every row sees key 0
      const float base = most == -CUDART_INF_F ? 0.f : most * factor[h];
      keep[h] = exp2_approx(maximum[h] * factor[h] - base);
      shift[h] = base - 8.80735492f;  // log2(448)
      maximum[h] = most;
    }
    uint32_t p[kKeys / 32][4];
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int h = r % 2, n = 4 * k + r / 2 * 2;
        const auto weight = [&](float x) { return exp2_approx(x * factor[h] - shift[h]); };
        p[k][r] = pack_e4m3(weight(s[n][2 * h]), weight(s[n][2 * h + 1]), weight(s[n + 1][2 * h]),
                            weight(s[n + 1][2 * h + 1]));
      }
    const auto add = [&](float(&to)[4], const float(&fresh)[4]) {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[e] = to[e] * keep[e / 2] + fresh[e];
    };
    constexpr uint32_t kOnes = 0x38383838u;
    float weights[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k) mma_16832_e4m3(weights, p[k], kOnes, kOnes);
    add(sum, weights);
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      uint32_t b[4];
      ldmatrix_x4(b, v_tile + chunk_place(8 * n + lane % 8, lane / 8));
      float fresh[4] = {0.f, 0.f, 0.f, 0.f};
      mma_16832_e4m3(fresh, p[0], b[0], b[1]);
      mma_16832_e4m3(fresh, p[1], b[2], b[3]);
      add(out[n], fresh);
    }
  }

  const float *values = plan.place.values + kv_head * 2 * kHeadDim;
  __half *o = head_of(args.o, args.o_stride, at);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (row + 8 * h >= args.S_q) continue;
    const float total = reciprocal(sum[2 * h]);
    __half *to = o + (row + 8 * h) * args.o_stride.row;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const int d = 8 * n + 2 * t;
      const float2 unit = *reinterpret_cast<const float2 *>(values + d);
      const float2 mean = *reinterpret_cast<const float2 *>(values + kHeadDim + d);
      *reinterpret_cast<uint32_t *>(to + d) =
          pack_halves(out[n][2 * h] * total * unit.x + mean.x, out[n][2 * h + 1] * total * unit.y + mean.y);
    }
  }
}

namespace {

// How the work is laid out, and how many bytes of workspace that needs; `args.workspace` may be null.
Plan plan_for(const flashcore_args &args, size_t &bytes) {
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

bool taken(const flashcore_args &args) {
  const int limit = 65535;  // of a grid's second and third dimension
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0 && args.H_kv >= 0;
  const bool fits = args.B <= limit && args.H <= limit && (!args.causal || tiles_of(args.S_q, TILE_M) <= limit);
  return positive && fits && args.D == kHeadDim && args.dtype == 0 && !(args.H_kv && args.H % args.H_kv);
}

}  // namespace

}  // namespace flashcore

FLASHCORE_API size_t flashcore_workspace_bytes(const flashcore_args *args) {
  size_t bytes = 0;
  if (flashcore::taken(*args)) flashcore::plan_for(*args, bytes);
  return bytes;
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  using namespace flashcore;
  if (!taken(*args) || !args->workspace) return cudaErrorInvalidValue;
  size_t bytes = 0;
  const Plan plan = plan_for(*args, bytes);
  const auto stream = static_cast<cudaStream_t>(args->stream);
  const dim3 parts(plan.parts, plan.heads, args->B), tiles(plan.tiles, plan.heads, args->B);
  flashcore_fp8_statistics<<<parts, kStatisticsThreads, 0, stream>>>(plan);
  flashcore_fp8_quantise<<<tiles, kQuantiseThreads, 0, stream>>>(plan);
  const auto rows = static_cast<unsigned>(tiles_of(args->S_q, TILE_M));
  const dim3 blocks = args->causal ? dim3(args->H, rows, args->B) : dim3(rows, args->H, args->B);
  flashcore_fp8<<<blocks, kThreads, STAGES * kRecord, stream>>>(plan);
  return cudaGetLastError();
}
