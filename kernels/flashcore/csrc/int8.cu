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

#include "int8_rows.cuh"

namespace flashcore {

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
      exp_and_pack(p, rows, now, n);
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
    exp_and_pack(p, rows, now, n);
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
