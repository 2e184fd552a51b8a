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

#include "fp8_quantise.cuh"
#include "online_softmax.cuh"

#ifndef TILE_M
#define TILE_M 64
#endif
#ifndef STAGES
#define STAGES 3
#endif

namespace flashcore {

constexpr int kWarps = TILE_M / 16, kThreads = 32 * kWarps;

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
    uint32_t words[4];
    factor[h] = quantise_row<QK_INT8>(q_head + r * args.q_stride.row, r < args.S_q, flip, scale, words,
                                      [=](int w) { return 16 * w + 4 * t; });
#pragma unroll
    for (int k = 0; k < 2; ++k) q[k][h] = words[2 * k], q[k][2 + h] = words[2 * k + 1];
  }

  float out[kHeadDim / 8][4], sum[4] = {0.f, 0.f, 0.f, 0.f}, maximum[2] = {kLowest, kLowest};
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) zero(out[n]);

#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load(step + STAGES - 1);
    const int key = step * kKeys;
    if (args.causal && key > first_row + 15) continue;
    const uint32_t k_tile = ring + step % STAGES * kRecord, v_tile = k_tile + kHalfTile;
    const auto *scales = reinterpret_cast<const float *>(dynamic_shared() + step % STAGES * kRecord + 2 * kHalfTile);

    float scores[1][kKeys / 8][4];
    float(&s)[kKeys / 8][4] = scores[0];
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
    if (key + kKeys > args.S_kv || (args.causal && key + kKeys - 1 > first_row))
      mask(scores, key, first_row, args.S_kv, args.causal, lane);

    float maxima[1][2], keep[2], shift[2];
    max_of_tile(maxima, scores);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float most = fmaxf(maximum[h], maxima[0][h]), base = most * factor[h];
      keep[h] = exp2_approx(maximum[h] * factor[h] - base);
      shift[h] = base - 8.80735492f;  // log2(448)
      maximum[h] = most;              // without the factor: with it, sm_90 is short of a register
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
