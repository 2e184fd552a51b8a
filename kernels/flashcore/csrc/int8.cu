// int8: Q K^T on 8-bit tensor cores, P V in FP16, the quantisation included. The idea is SageAttention2's (arXiv
// 2411.10958).
//
// - K without a mean: that adds one constant to all scores of a query, which softmax does not see. Any vector near the
//   mean will do, so a sample of kSample keys is enough, and each block finds it by itself.
// - K is signed bytes, with a scale for 16 of 64 keys: those that one lane has in its fragments of scores, 8n + 2t and
//   8n + 2t + 1 for all n. Q has a scale for each row. So a lane's scores of a row in a step share one scale, which is
//   folded into the factor of exp2: no score is multiplied by it.
// - The integer sums start from kBias, so that their bits are floats: no score is converted either. The bias leaves in the
//   fused multiply-add before exp2.
// - A row's base rises only where a score is above it by more than kSlack: weights are at most 2^kSlack then, which FP16
//   has, and after a few steps no output needs to be rescaled, nor lanes to tell each other their maxima.
//
// Two kernels: the quantised tiles of K, and attention, which reads V as it is. A tile of K lies in memory as fragments
// want it: a lane's 16 bytes of a key are 16 neighbouring dimensions, for which Q's are permuted alike; so rows of 64 bytes
// need neither a swizzle nor ldmatrix. The place for them is the caller's workspace.
//
// A NaN or an infinity in K makes all outputs NaN that see its tile, or all of its head.

#include "flagship_tiling.cuh"
#include "online_softmax.cuh"
#include "quantise.cuh"

#ifndef TILE_M
#define TILE_M 128
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 32
#endif
#ifndef STAGES
#define STAGES 2
#endif
#ifndef TENSOR_SUMS
#define TENSOR_SUMS 1
#endif
#ifndef SLACK
#define SLACK 8
#endif

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

// ------------------------------------------------------------------------------------------------ attention
template <int D>
struct Layout {
  static constexpr int kKeys = keys_of(D), kWarpRows = WARP_ROWS;
  static constexpr int kTileM = TILE_M, kThreads = kTileM / kWarpRows * 32;
  static constexpr int kRowTiles = kWarpRows / 16, kKeyTiles = kKeys / 8, kOutTiles = D / 8, kDepthTiles = D / 32;
  static constexpr int kRow = D * 2, kRowChunks = kRow / 16;  // of V
  static constexpr bool kSharedQ = false;                     // as copy_rows_from() has it
  static constexpr bool kWide = D * kRowTiles > 128;  // outputs take half of the registers
  static constexpr bool kShortOfRegisters = kWide || !kFastTensor;
  static constexpr int kPlanesOfQ = kWide && !kFastTensor ? 0 : D / 64;  // of 64 dimensions, in registers
  static constexpr uint32_t kVBytes = kKeys * kRow, kRingBytes = STAGES * (kVBytes + kRecord);
  static constexpr uint32_t kKeptBytes = (kRowTiles + 2) * kThreads * 16, kQBytes = kWide * kTileM * D;
  static constexpr uint32_t kSharedBytes = kRingBytes + kKeptBytes + kQBytes;
  static constexpr bool kTensorSums = TENSOR_SUMS && (kFastTensor || kWide);
  static constexpr int kMinBlocks = kThreads > 128 ? 1 : 2;
};

// What a warp has of a step: scores as floats above kBias, the largest of this lane's, what they are multiplied by, and
// what is subtracted then: exponents of weights are score * factor - offset.
template <typename C>
struct Step {
  float s[C::kRowTiles][C::kKeyTiles][4], maxima[C::kRowTiles][2], factor[C::kRowTiles][2], offset[C::kRowTiles][2];
};

// What a warp carries from step to step. What is needed of rows once a step lies in shared memory meanwhile where registers
// are short.
template <typename C>
struct Rows : Attended<C::kRowTiles, C::kOutTiles> {
  float tensor_sum[C::kRowTiles][4];  // with C::kTensorSums: P times ones
  float unit[C::kRowTiles][2];        // of Q: what scores are multiplied by

  // Of this thread and row tile i: units and bases.
  static __device__ __forceinline__ float4 &stored(int i) {
    return reinterpret_cast<float4 *>(dynamic_shared() + C::kRingBytes)[i * C::kThreads + thread_again()];
  }

  __device__ __forceinline__ void store_rows() const {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
      if (C::kShortOfRegisters) stored(i) = make_float4(unit[i][0], unit[i][1], this->base[i][0], this->base[i][1]);
  }

  __device__ __forceinline__ void fetch_rows() {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
      if (C::kShortOfRegisters) {
        const float4 x = stored(i);
        unit[i][0] = x.x, unit[i][1] = x.y, this->base[i][0] = x.z, this->base[i][1] = x.w;
      }
  }

  __device__ __forceinline__ float last(int i, int h) const {
    return C::kTensorSums ? reciprocal(tensor_sum[i][2 * h]) : this->last_scale(i, h);
  }
};

// The largest of scores from key tile n on: above kBias floats and their bits have the same order, and so has minus infinity
// below. As integers three are compared at once (sm_90).
template <int COUNT, typename C>
__device__ __forceinline__ void row_max_of_bits(Step<C> &step, int n) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int m = n; m < n + COUNT; ++m)
        step.maxima[i][h] =
            __int_as_float(__vimax3_s32(__float_as_int(step.maxima[i][h]), __float_as_int(step.s[i][m][2 * h]),
                                        __float_as_int(step.s[i][m][2 * h + 1])));
}

// Where a thread reads next.
struct alignas(16) Cursor {
  const unsigned char *k;
  const uint16_t *v;
  const float *scale;
};

// The factors of a step, whose keys have this lane's scale `of_keys`; the base of rows, where it must rise.
template <typename C>
__device__ __forceinline__ void rescale(Rows<C> &rows, Step<C> &step, float of_keys) {
  const auto each_row = [](auto body) {
#pragma unroll
    for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) body(i, h);
  };
  const auto offset = [&](int i, int h) { step.offset[i][h] = kBias * step.factor[i][h] + rows.base[i][h]; };
  bool rises = false;
  each_row([&](int i, int h) {
    step.factor[i][h] = rows.unit[i][h] * of_keys;
    offset(i, h);
    rises |= step.maxima[i][h] * step.factor[i][h] - step.offset[i][h] > kSlack;
  });
  if (!__any_sync(kAllLanes, rises)) return;
  each_row([&](int i, int h) { step.maxima[i][h] = (step.maxima[i][h] - kBias) * step.factor[i][h]; });
  quad_max(step.maxima);
  each_row([&](int i, int h) {
    const float keep = raise_base(rows.base[i][h], step.maxima[i][h], 1.f);
    rows.sum[i][h] *= keep, rows.tensor_sum[i][2 * h] *= keep, rows.tensor_sum[i][2 * h + 1] *= keep;
    scale_row(rows.out[i], h, keep);
    offset(i, h);
  });
  rows.store_rows();
}

// The weights of the 16 keys from 8 * n on, and with them O += P V.
template <typename C>
__device__ __forceinline__ void weigh(uint32_t (&p)[C::kRowTiles][4], Rows<C> &rows, const Step<C> &step, int n) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int h = r % 2;
      const auto weight = [&](int e) {
        return exp2_approx(step.s[i][n + r / 2][2 * h + e] * step.factor[i][h] - step.offset[i][h]);
      };
      const float x = weight(0), y = weight(1);
      if (!C::kTensorSums) rows.sum[i][h] += x + y;
      p[i][r] = pack_halves(x, y);
    }
}

template <typename C>
__device__ __forceinline__ void add_up(Rows<C> &rows, const uint32_t (&p)[C::kRowTiles][4], uint32_t v_tile, int n) {
  constexpr uint32_t kOnes = 0x3c003c00u;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
    if (C::kTensorSums) mma_16816(rows.tensor_sum[i], p[i], kOnes, kOnes);
  // `v_tile` is the lane's own place in the first 16 rows: the lane is in it, so multiply_pv() is told of none.
  const auto place = [=](uint32_t row, uint32_t chunk) {
    return (v_tile ^ chunk % 8 << 4) + chunk / 8 * 128 + row * C::kRow;
  };
  multiply_pv<Type::kHalf>(rows.out, p, 0, n, 0, place);
}

template <int D>
__global__ void __launch_bounds__(Layout<D>::kThreads, Layout<D>::kMinBlocks) flashcore_int8(const Plan plan) {
  using C = Layout<D>;
  constexpr int R = C::kRowTiles, N = C::kKeyTiles, kKeys = C::kKeys;
  const flashcore_args &args = plan.args;
  const unsigned thread = threadIdx.x;
  const int lane = thread % 32, t = lane % 4;
  // Under a causal mask the tiles that see the most keys start first.
  const int tile = args.causal ? gridDim.y - 1 - blockIdx.y : blockIdx.x;
  const int head = args.causal ? blockIdx.x : blockIdx.y, batch = blockIdx.z;
  const int kv_head = head / (args.H / plan.heads);
  const int tile_row = tile * C::kTileM, first_row = tile_row + static_cast<int>(thread / 32 * C::kWarpRows);
  const int keys = args.causal ? min(args.S_kv, tile_row + C::kTileM) : args.S_kv;
  const int steps = static_cast<unsigned>(keys + kKeys - 1) / kKeys;
  const int unmasked = (args.causal ? min(keys, tile_row + 1) : keys) / kKeys;  // steps whose keys all rows see

  unsigned char *const k_ring = dynamic_shared() + STAGES * C::kVBytes;
  const uint32_t v_ring = shared_address(dynamic_shared());
  const auto k_slot = [](unsigned step) { return step % STAGES * kRecord; };
  const auto v_slot = [](unsigned step) { return step % STAGES * C::kVBytes; };
  const int64_t first_tile = head_number(plan, batch, kv_head) * plan.tiles;
  Cursor here;
  auto *const cursors = reinterpret_cast<Cursor *>(dynamic_shared() + C::kRingBytes + C::kRowTiles * C::kThreads * 16);
  Cursor &cursor = C::kShortOfRegisters ? cursors[thread] : here;
  cursor = {plan.records + first_tile * kRecord + thread * 16,
            static_cast<const uint16_t *>(args.v) + batch * args.v_stride.batch + kv_head * args.v_stride.head +
                thread / C::kRowChunks * args.v_stride.row + thread % C::kRowChunks * 8,
            plan.scales + first_tile * kGroupsOfKeys + t};
  const auto load_k = [&](Cursor &from, int step) {  // of step 0, 1, 2 .. in turn; behind the last there is room to read
#pragma unroll
    for (uint32_t at = 0; at < kRecord; at += C::kThreads * 16)
      if (kRecord % (C::kThreads * 16) == 0 || at + thread * 16 < kRecord)
        cp_async_16(shared_address(k_ring) + k_slot(step) + at + thread * 16, from.k + at, true);
    from.k += kRecord;
  };
  const auto load_pair = [&](int step, bool whole) {  // values, maybe fewer, and the keys that are needed with them
    Cursor from = cursor;
    if (whole || step < steps)
      copy_rows_from<C, kKeys, C::kThreads>(v_ring + v_slot(step), from.v, args.v_stride.row,
                                            whole ? kKeys : args.S_kv - step * kKeys, thread);
    from.v += kKeys * args.v_stride.row;
    load_k(from, step + 1);
    cursor = from;
    cp_async_commit();
  };
  {
    Cursor from = cursor;
    load_k(from, 0);
    cursor = from;
  }
  cp_async_commit();
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) load_pair(step, false);

  Rows<C> rows;
  uint32_t q[R][C::kDepthTiles][4];
  const auto q_place = [&](int i, int k) {  // of a fragment that is not kept in registers
    const uint32_t number = (thread / 32 * R + i) * (C::kDepthTiles - 2 * C::kPlanesOfQ) + k - 2 * C::kPlanesOfQ;
    return v_ring + C::kRingBytes + C::kKeptBytes + number * 512;
  };
  const __half *q_head = head_of(args.q, args.q_stride, {0, head, batch});
  const float flip = args.scale < 0.f ? -1.f : 1.f, scale = fabsf(args.scale) * 1.4426950408889634f;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = first_row + 16 * i + lane / 4 + 8 * h;
      uint32_t words[D / 16];
      rows.unit[i][h] = quantise_row<true>(q_head + row * args.q_stride.row, row < args.S_q, flip, scale, words,
                                           [=](int w) { return w / 4 * 64 + t * 16 + w % 4 * 4; });
#pragma unroll
      for (int k = 0; k < C::kDepthTiles; ++k) q[i][k][h] = words[2 * k], q[i][k][2 + h] = words[2 * k + 1];
    }
#pragma unroll
    for (int k = 2 * C::kPlanesOfQ; k < C::kDepthTiles; ++k)
#pragma unroll
      for (int m = 0; m < 4; ++m)
        reinterpret_cast<uint32_t *>(dynamic_shared() + q_place(i, k) - v_ring)[32 * m + lane] = q[i][k][m];
  }

  const uint32_t v_tile = v_ring + place_of<C>(lane % 16, lane / 16);
  Step<C> now;
  rows.clear();
#pragma unroll
  for (int i = 0; i < R; ++i) zero(rows.tensor_sum[i]);
  rows.store_rows();
  float bias[4] = {kBias, kBias, kBias, kBias};
  const auto score = [&](int step, int from, int count) {  // key tiles from .. from + count - 1
    const unsigned char *k_tile = k_ring + k_slot(step) + lane * 16;
#pragma unroll
    for (int plane = 0; plane < D / 64; ++plane) {
      if (plane >= C::kPlanesOfQ)
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
          for (int k = 2 * plane; k < 2 * plane + 2; ++k) ldmatrix_x4(q[i][k], q_place(i, k) + lane * 16);
#pragma unroll
      for (int n = from; n < from + count; ++n) {
        const uint4 b = *reinterpret_cast<const uint4 *>(k_tile + plane * kKeys * 64 + n * 512);
#pragma unroll
        for (int i = 0; i < R; ++i) {
          float(&sum)[4] = now.s[i][n];
          mma_16832_s8(sum, q[i][2 * plane], b.x, b.y, plane == 0 ? bias : sum);
          mma_16832_s8(sum, q[i][2 * plane + 1], b.z, b.w, sum);
        }
      }
    }
  };
  const auto mask_now = [&](int step) {  // and the maxima
    const unsigned again = thread_again();
    const int row = tile_row + static_cast<int>(again / 32 * C::kWarpRows);
    mask(now.s, step * kKeys, row, args.S_kv, args.causal, again % 32);
    reset_max(now.maxima);
    row_max_of_bits<N>(now, 0);
  };

  cp_async_wait<STAGES - 1>();
  __syncthreads();
  score(0, 0, N);
  mask_now(0);
  float of_keys;
  if (!C::kShortOfRegisters) of_keys = *cursor.scale;
  const auto advance = [&](int step, auto masked) {  // the next tile's scores take the registers of this one's
    if (C::kShortOfRegisters) of_keys = *cursor.scale, cursor.scale += kGroupsOfKeys;
    cp_async_wait<STAGES - 2>();
    __syncthreads();
    load_pair(step + STAGES - 1, STAGES == 2 && !decltype(masked)::value);
    rows.fetch_rows();
    rescale(rows, now, of_keys);
    if (!C::kShortOfRegisters) of_keys = *(cursor.scale += kGroupsOfKeys);
    reset_max(now.maxima);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      uint32_t p[R][4];
      weigh(p, rows, now, n);
      score(step + 1, n, 2);
      if (n > 0) row_max_of_bits<2>(now, n - 2);
      add_up(rows, p, v_tile + v_slot(step), n);
    }
    row_max_of_bits<2>(now, N - 2);
    if (decltype(masked)::value) mask_now(step + 1);
  };
  int step = 0;
#pragma unroll 1
  for (; step < unmasked - 1; ++step) advance(step, Number<0>{});
#pragma unroll 1
  for (; step < steps - 1; ++step) advance(step, Number<1>{});
  cp_async_wait<0>();
  __syncthreads();
  if (C::kShortOfRegisters) of_keys = *cursor.scale;
  rows.fetch_rows();
  rescale(rows, now, of_keys);
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    uint32_t p[R][4];
    weigh(p, rows, now, n);
    add_up(rows, p, v_tile + v_slot(step), n);
  }

  __half *o = head_of(args.o, args.o_stride, {0, head, batch});
  const unsigned again = thread_again();
  const int row = tile_row + static_cast<int>(again / 32 * C::kWarpRows + again % 32 / 4);
#pragma unroll
  for (int i = 0; i < R; ++i) {
    const float last[2] = {rows.last(i, 0), rows.last(i, 1)};
    store<Type::kHalf>(rows.out[i], last, o, args.o_stride.row, row + 16 * i, args.S_q, 0, again % 32);
  }
}

namespace {

bool taken(const flashcore_args &args) {
  const int limit = 65535;  // of a grid's second and third dimension
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0 && args.H_kv >= 0;
  const bool fits = args.B <= limit && args.H <= limit && (!args.causal || tiles_of(args.S_q, TILE_M) <= limit);
  return positive && fits && (args.D == 64 || args.D == 128) && args.dtype == 0 && !(args.H_kv && args.H % args.H_kv);
}

template <int D>
int forward(const Plan &plan) {
  const flashcore_args &args = plan.args;
  const auto stream = static_cast<cudaStream_t>(args.stream);
  constexpr auto quantise = flashcore_int8_quantise<D>, attend = flashcore_int8<D>;
  const dim3 parts(static_cast<unsigned>(tiles_of(args.S_kv, kKeysOfBlock)), plan.heads, args.B);
  quantise<<<parts, kQuantiseThreads, 0, stream>>>(plan);
  const auto rows = static_cast<unsigned>(tiles_of(args.S_q, TILE_M));
  const dim3 blocks = args.causal ? dim3(args.H, rows, args.B) : dim3(rows, args.H, args.B);
  if (const int error = allow_shared<attend>(Layout<D>::kSharedBytes)) return error;
  attend<<<blocks, Layout<D>::kThreads, Layout<D>::kSharedBytes, stream>>>(plan);
  return cudaGetLastError();
}

Plan plan_for(const flashcore_args &args, size_t &bytes) {
  Plan plan;
  plan.args = args;
  plan.heads = args.H_kv ? args.H_kv : args.H;
  plan.tiles = static_cast<int>(tiles_of(args.S_kv, keys_of(args.D)));
  const size_t tiles = static_cast<size_t>(args.B) * plan.heads * plan.tiles;
  const size_t records = (tiles + STAGES) * kRecord;  // attention copies some more
  bytes = records + tiles * kGroupsOfKeys * sizeof(float);
  plan.records = static_cast<unsigned char *>(args.workspace);
  plan.scales = reinterpret_cast<float *>(plan.records + records);
  return plan;
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
  return args->D == 64 ? forward<64>(plan) : forward<128>(plan);
}
