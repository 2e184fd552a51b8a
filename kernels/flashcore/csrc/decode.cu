// decode: few queries over many keys, as when a model writes one token after the other.
//
// One query row of a head reads all of its keys once: the time is that of the memory, if enough blocks ask for enough of
// it at once. So
// - rows of 16, an mma's, are filled with all queries that read the same keys: every head of queries that shares a head
//   of keys, and as many queries of each as there are;
// - the keys of a row tile are divided between blocks (splits), until all multiprocessors are at work, and within a block
//   between its warps: each copies its own tiles into its own ring by cp.async and waits for nobody;
// - results of a block's warps become one in shared memory, those of the splits in the workspace. Which block does that
//   last step: whoever finds that all have arrived.
//
// Arrivals. A split that has written its results sets its flag to the launch's `token`, a number that no other launch has,
// and then reads the flags of all; between the two is a fence, so that the last one to pass it sees them all set. (Two may
// see that, and both write the same bits.) Whoever does clears the flags for the next replay of a CUDA graph, where the
// token is the same again. So the workspace may begin with anything, and belongs to one launch, as the output does.

#include "driver.cuh"
#include "flagship_tiling.cuh"
#include "online_softmax.cuh"

#ifndef WARPS  // of a block, which divide its keys
#define WARPS 4
#endif
#ifndef STAGES  // tiles of K, and of V, in flight or in use, per warp
#define STAGES 3
#endif
#ifndef TILE_BYTES  // of a tile of K or V
#define TILE_BYTES 4096
#endif

#include "decode_choice.cuh"

namespace flashcore {

constexpr int kThreads = 32 * WARPS;
constexpr uint32_t kRingBytes = 2 * STAGES * TILE_BYTES;  // K and V of one warp

struct Decode {
  const uint16_t *q, *k, *v;
  uint16_t *o;
  flashcore_strides q_stride, k_stride, v_stride, o_stride;
  float factor;      // from scores to powers of 2, positive
  uint32_t flip;     // xor onto two packed values of Q: the sign of the scale
  int rows;          // that read the same keys: row r is query r / sharing of the (r % sharing)th of the heads that share
  int sharing, S_kv, causal, splits;
  unsigned long long token;
  // Of each split of each row tile, one after the other; null if there is one split.
  unsigned long long *flags;
  float2 *states;  // [min(16, rows)] (maximum, sum)
  float *sums;     // [min(16, rows)][D], not divided by the sum
};

template <Type TYPE, int DIM>
struct Layout {
  static constexpr Type kType = TYPE;
  static constexpr int kDim = DIM, kRow = 2 * DIM, kRowChunks = kRow / 16;  // bytes and 16-byte chunks of a row
  static constexpr int kKeys = TILE_BYTES / kRow;                          // of a tile
  static constexpr int kKeyTiles = kKeys / 8, kDepthTiles = DIM / 16, kOutTiles = DIM / 8;  // of mma
  static constexpr int kPadded = DIM + 8;  // floats between rows of results: neighbours are in other banks
  static constexpr int kOfLane = DIM / 32;  // columns, where a warp reads a row

  static_assert(kKeys % 16 == 0, "whole mma tiles");
  static_assert(kRows * kPadded * 4 <= kRingBytes, "a warp's results fit where its keys were");
};

constexpr uint32_t kSharedBytes = WARPS * (kRingBytes + kRows * 8);
static_assert(kSharedBytes <= 99 * 1024, "fits an L4");

// A row's results, and what they are relative to.
template <int COLUMNS>
struct Partial {
  float base, sum, out[COLUMNS];

  __device__ __forceinline__ void clear() {
    base = kLowest, sum = 0.f;
#pragma unroll
    for (float &x : out) x = 0.f;
  }

  __device__ __forceinline__ void raise(float to) {
    const float keep = exp2_approx(base - to);
    base = to, sum *= keep;
#pragma unroll
    for (float &x : out) x *= keep;
  }

  // `base` is at least the other's.
  __device__ __forceinline__ void add(const Partial &other) {
    const float weight = exp2_approx(other.base - base);
    sum += other.sum * weight;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) out[i] += other.out[i] * weight;
  }
};

// A block's boxes in shared memory, one for each warp: [16][kPadded] results, and [16] maxima and sums.
template <typename C>
struct Boxes {
  unsigned char *memory;

  __device__ __forceinline__ float *out(int box, int row) const {
    return reinterpret_cast<float *>(memory + box * kRingBytes) + row * C::kPadded;
  }
  __device__ __forceinline__ float2 &state(int box, int row) const {
    return reinterpret_cast<float2 *>(memory + WARPS * kRingBytes)[box * kRows + row];
  }

  // Add up the first `count` boxes: four columns a thread, given to leave(row, column, partial).
  template <typename Leave>
  __device__ __forceinline__ void add_up(int count, int rows, int thread, Leave leave) const {
    constexpr int kPieces = C::kDim / 4;  // of a row
#pragma unroll 1
    for (int piece = thread; piece < rows * kPieces; piece += kThreads) {
      const int row = piece / kPieces, column = piece % kPieces * 4;
      Partial<4> whole;
      whole.clear();
      for (int box = 0; box < count; ++box) whole.base = fmaxf(whole.base, state(box, row).x);
      for (int box = 0; box < count; ++box) {
        const float2 known = state(box, row);
        const float4 x = *reinterpret_cast<const float4 *>(out(box, row) + column);
        whole.add({known.x, known.y, {x.x, x.y, x.z, x.w}});
      }
      leave(row, column, whole);
    }
  }
};

// One warp's tiles of keys, `from`, from + WARPS .. below `to`. All rows see the first `open` keys, the lane's two rows as
// many as `ends` says, none more than `keys`.
template <typename C>
__device__ __forceinline__ void attend(float (&out)[1][C::kOutTiles][4], float (&base)[1][2], float (&sum)[1][2],
                                       const Decode &task, const uint16_t *k, const uint16_t *v,
                                       const uint16_t *const (&q_rows)[2], int from, int to, int keys, int open,
                                       const int (&ends)[2], uint32_t ring, int lane) {
  const int steps = from < to ? (to - from + WARPS - 1) / WARPS : 0;
  const auto key_of = [&](int step) { return (from + step * WARPS) * C::kKeys; };
  const auto load = [&](uint32_t tiles, const uint16_t *head, int64_t stride, int step) {
    if (step < steps)
      copy_rows_of<C, C::kKeys, 32>(tiles + step % STAGES * TILE_BYTES, head, stride, key_of(step), keys, lane);
    cp_async_commit();  // also when empty: the waits below count groups
  };
  const uint32_t k_ring = ring, v_ring = ring + STAGES * TILE_BYTES;
  const auto load_k = [&](int step) { load(k_ring, k, task.k_stride.row, step); };
  const auto load_v = [&](int step) { load(v_ring, v, task.v_stride.row, step); };
#pragma unroll
  for (int step = 0; step < STAGES; ++step) load_k(step), load_v(step);

  uint32_t q[C::kDepthTiles][4];  // from memory, where they are few, as an A fragment
#pragma unroll
  for (int i = 0; i < C::kDepthTiles; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const uint16_t *row = q_rows[r % 2];
      const int column = 16 * i + 8 * (r / 2) + lane % 4 * 2;
      q[i][r] = row ? *reinterpret_cast<const uint32_t *>(row + column) ^ task.flip : 0;
    }
  const auto fragment_of = [&](uint32_t (&to)[4], int, int i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) to[r] = q[i][r];
  };

  // Copies in flight, oldest first: K(n) V(n) K(n + 1) ..: 2 * STAGES of them; a place is filled again once it is read.
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const uint32_t slot = step % STAGES * TILE_BYTES;
    float s[1][C::kKeyTiles][4], maxima[1][2];
    cp_async_wait<2 * STAGES - 1>();
    __syncwarp();
    multiply_qk<C::kType, C::kKeyTiles, C::kDepthTiles>(s, fragment_of, k_ring + slot, 0, lane, place_of<C>);
    __syncwarp();
    load_k(step + STAGES);
    const int left = key_of(step) + lane % 4 * 2;
    if (key_of(step) + C::kKeys > open) {
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (left + 8 * n + e % 2 >= ends[e / 2]) s[0][n][e] = -CUDART_INF_F;
    }
    max_of_tile(maxima, s);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float keep = raise_base(base[0][h], maxima[0][h], task.factor);
      sum[0][h] *= keep;
      scale_row(out[0], h, keep);
    }
    cp_async_wait<2 * STAGES - 1>();
    __syncwarp();
#pragma unroll
    for (int n = 0; n < C::kKeyTiles; n += 2) {
      uint32_t p[1][4];
      exp_and_pack<C::kType, true>(p, sum, base, s, n, task.factor);
      multiply_pv<C::kType>(out, p, v_ring + slot, n, lane, place_of<C>);
    }
    __syncwarp();
    load_v(step + STAGES);
  }
  cp_async_wait<0>();
}

// Whether all splits of this row tile have arrived, as the last of them to ask is told. All threads take part, after they
// have written what others are to read.
__device__ __forceinline__ bool all_arrived(const Decode &task, unsigned tile, unsigned split, unsigned thread) {
  volatile unsigned long long *flags = task.flags + static_cast<uint64_t>(tile) * task.splits;
  __syncthreads();
  if (thread == 0) {
    __threadfence();
    flags[split] = task.token;
    __threadfence();
  }
  __syncthreads();
  bool missing = false;
  for (unsigned i = thread; i < static_cast<unsigned>(task.splits); i += kThreads) missing |= flags[i] != task.token;
  __threadfence();
  if (__syncthreads_or(missing)) return false;
  for (unsigned i = thread; i < static_cast<unsigned>(task.splits); i += kThreads) flags[i] = 0;
  return true;
}

// What the splits left for `row`, of every `parts`th split from `from` on, several reads at a time: some columns a lane.
template <typename C>
__device__ __forceinline__ Partial<C::kOfLane> gather(const Decode &task, uint64_t first, int each, int row, int from,
                                                      int parts, int lane) {
  constexpr int kAtOnce = 8;
  Partial<C::kOfLane> whole;
  whole.clear();
#pragma unroll 1
  for (int split = from; split < task.splits; split += kAtOnce * parts) {
    Partial<C::kOfLane> one[kAtOnce];
    float most = whole.base;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      one[i].clear();
      if (split + i * parts < task.splits) {
        const uint64_t at = (first + split + i * parts) * each + row;
        const float2 state = __ldcg(task.states + at);
        const float *sums = task.sums + at * C::kDim + lane * C::kOfLane;
        one[i].base = state.x, one[i].sum = state.y;
        if constexpr (C::kOfLane == 4) {
          const float4 x = __ldcg(reinterpret_cast<const float4 *>(sums));
          one[i].out[0] = x.x, one[i].out[1] = x.y, one[i].out[2] = x.z, one[i].out[3] = x.w;
        } else {
          const float2 x = __ldcg(reinterpret_cast<const float2 *>(sums));
          one[i].out[0] = x.x, one[i].out[1] = x.y;
        }
      }
      most = fmaxf(most, one[i].base);
    }
    whole.raise(most);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) whole.add(one[i]);
  }
  return whole;
}

template <typename C>
__global__ void __launch_bounds__(kThreads) flashcore_decode(const Decode task) {
  const unsigned thread = threadIdx.x;
  const int lane = thread % 32, warp = thread / 32;
  const unsigned split = blockIdx.x % task.splits, row_tile = blockIdx.x / task.splits;
  const int first_row = row_tile * kRows, rows = min(kRows, task.rows - first_row);
  const auto seen_by = [&](int row) {
    return task.causal ? min(task.S_kv, static_cast<int>(static_cast<unsigned>(first_row + row) / task.sharing) + 1)
                       : task.S_kv;
  };
  const auto row_of = [&](auto *base, const flashcore_strides &stride, int row) {
    const unsigned packed = first_row + row, query = packed / task.sharing;
    const unsigned head = blockIdx.y * task.sharing + packed % task.sharing;
    return head_at(base, stride, blockIdx.z, head) + static_cast<uint64_t>(query) * stride.row;
  };
  const int keys = seen_by(rows - 1), tiles = (keys + C::kKeys - 1) / C::kKeys;
  const int share = (tiles + task.splits - 1) / task.splits, from = split * share;
  const Boxes<C> boxes = {dynamic_shared()};

  float out[1][C::kOutTiles][4], base[1][2] = {{kLowest, kLowest}}, sum[1][2] = {{0.f, 0.f}};
#pragma unroll
  for (int n = 0; n < C::kOutTiles; ++n) zero(out[0][n]);
  const int low = lane / 4, high = low + 8;
  const uint16_t *const q_rows[2] = {low < rows ? row_of(task.q, task.q_stride, low) : nullptr,
                                     high < rows ? row_of(task.q, task.q_stride, high) : nullptr};
  attend<C>(out, base, sum, task, head_at(task.k, task.k_stride, blockIdx.z, blockIdx.y),
            head_at(task.v, task.v_stride, blockIdx.z, blockIdx.y), q_rows, from + warp, min(tiles, from + share), keys,
            seen_by(0), {seen_by(low), seen_by(high)}, shared_address(boxes.memory) + warp * kRingBytes, lane);

  __syncwarp();  // all lanes have read the keys and values that results replace
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = reduce_sum<4>(sum[0][h]);
    const int row = low + 8 * h;
    if (row >= rows) continue;
    if (lane % 4 == 0) boxes.state(warp, row) = make_float2(base[0][h], total);
    float *to = boxes.out(warp, row) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < C::kOutTiles; ++n)
      *reinterpret_cast<float2 *>(to + 8 * n) = make_float2(out[0][n][2 * h], out[0][n][2 * h + 1]);
  }
  __syncthreads();

  const auto store = [&](int row, int column, const Partial<4> &x) {
    const float scale = reciprocal(x.sum);
    uint2 packed;
    packed.x = pack<C::kType>(x.out[0] * scale, x.out[1] * scale);
    packed.y = pack<C::kType>(x.out[2] * scale, x.out[3] * scale);
    *reinterpret_cast<uint2 *>(row_of(task.o, task.o_stride, row) + column) = packed;
  };
  if (task.splits == 1) return boxes.add_up(WARPS, rows, thread, store);

  const unsigned tile = (blockIdx.z * gridDim.y + blockIdx.y) * (gridDim.x / task.splits) + row_tile;
  const uint64_t first = static_cast<uint64_t>(tile) * task.splits;
  const int each = min(kRows, task.rows);
  boxes.add_up(WARPS, rows, thread, [&](int row, int column, const Partial<4> &x) {
    const uint64_t at = (first + split) * each + row;
    *reinterpret_cast<float4 *>(task.sums + at * C::kDim + column) = make_float4(x.out[0], x.out[1], x.out[2], x.out[3]);
    if (column == 0) task.states[at] = make_float2(x.base, x.sum);
  });
  if (!all_arrived(task, tile, split, thread)) return;

  // A warp takes a row, or a part of its splits where rows are few.
  const int parts = rows < WARPS ? WARPS / rows : 1;
#pragma unroll 1
  for (int item = warp; item < rows * parts; item += WARPS) {
    const int row = item / parts, part = item % parts;
    const Partial<C::kOfLane> whole = gather<C>(task, first, each, row, part, parts, lane);
    if (lane == 0) boxes.state(part, row) = make_float2(whole.base, whole.sum);
    float *to = boxes.out(part, row) + lane * C::kOfLane;
#pragma unroll
    for (int i = 0; i < C::kOfLane; ++i) to[i] = whole.out[i];
  }
  __syncthreads();
  boxes.add_up(parts, rows, thread, store);
}

namespace {

// A kernel, and what each device knows of it, asked once.
struct Kernel {
  Handle<Decode>::Kernel function;
  struct {
    Published<int> resident;  // blocks that a multiprocessor holds at a time; 0: not asked yet
    Handle<Decode> handle;
  } of_device[kDevices];
};

Kernel kernels[2][2] = {{{flashcore_decode<Layout<Type::kHalf, 64>>, {}}, {flashcore_decode<Layout<Type::kHalf, 128>>, {}}},
                        {{flashcore_decode<Layout<Type::kBfloat16, 64>>, {}},
                         {flashcore_decode<Layout<Type::kBfloat16, 128>>, {}}}};

int prepare(Kernel &kernel, int number, int &resident) {
  auto &known = kernel.of_device[number];
  resident = known.resident.load();
  if (resident) return cudaSuccess;
  if (const int error = known.handle.open(kernel.function)) return error;  // two threads may both ask: they write the same
  if (const int error = known.handle.allow(kThreads, kSharedBytes, resident)) return error;
  resident = resident > 1 ? resident : 1;
  known.resident.store(resident);
  return cudaSuccess;
}

bool taken(const flashcore_args &args) {
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0 && args.H_kv >= 0;
  const bool known = (args.D == 64 || args.D == 128) && (args.dtype == 0 || args.dtype == 1);
  if (!positive || !known || (args.H_kv && args.H % args.H_kv) || args.tiling < 0 || args.tiling > kMostSplits) return false;
  return args.B <= kLimit && args.H <= kLimit && Work(args).rows <= INT32_MAX / kMostSplits;
}

// What a launch of these arguments is, on the current device.
struct Plan {
  Kernel *kernel;
  int device, splits;
};

int plan_of(const flashcore_args &args, Plan &plan) {
  if (!taken(args)) return cudaErrorInvalidValue;
  plan.kernel = &kernels[args.dtype][args.D / 128];
  flashcore_device device;
  int resident = 0;
  if (const int error = current_device(plan.device, device)) return error;
  if (const int error = prepare(*plan.kernel, plan.device, resident)) return error;
  plan.splits = args.tiling ? args.tiling : splits_for(Work(args), device.processors, resident);
  return cudaSuccess;
}

// Numbers of which no two are equal in this process, nor likely in what memory holds by chance.
unsigned long long fresh_token() {
  static unsigned long long count;
  const unsigned long long library = reinterpret_cast<uintptr_t>(&count);
  unsigned long long x = ((library << 20) + __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED)) * 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;  // splitmix64: one to one, 0 for 0 only
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

}  // namespace

}  // namespace flashcore

// Of that many tiles of rows: a flag, maxima and sums, and results of each split; nothing where there is one.
FLASHCORE_API size_t flashcore_workspace_bytes(const flashcore_args *args) {
  flashcore::Plan plan;
  if (flashcore::plan_of(*args, plan)) return 0;
  return flashcore::Places(flashcore::Work(*args), plan.splits).bytes;
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  using namespace flashcore;
  Plan plan;
  if (const int error = plan_of(*args, plan)) return error;
  const Work work(*args);
  const Places places(work, plan.splits);
  if (places.bytes && !args->workspace) return cudaErrorInvalidValue;
  Decode task;
  task.q = static_cast<const uint16_t *>(args->q), task.k = static_cast<const uint16_t *>(args->k);
  task.v = static_cast<const uint16_t *>(args->v), task.o = static_cast<uint16_t *>(args->o);
  task.q_stride = args->q_stride, task.k_stride = args->k_stride, task.v_stride = args->v_stride;
  task.o_stride = args->o_stride;
  task.factor = std::fmax(std::fabs(args->scale) * 1.4426950408889634f, 1e-30f);  // as fold() of tensor.cuh has it
  task.flip = args->scale < 0.f ? 0x80008000u : 0u;
  task.rows = static_cast<int>(work.rows), task.sharing = work.sharing;
  task.S_kv = args->S_kv, task.causal = args->causal, task.splits = plan.splits;
  task.token = fresh_token();
  auto *memory = static_cast<unsigned char *>(args->workspace);
  task.flags = reinterpret_cast<unsigned long long *>(memory);
  task.states = reinterpret_cast<float2 *>(memory + places.states);
  task.sums = reinterpret_cast<float *>(memory + places.sums);
  const dim3 blocks(static_cast<unsigned>(work.tiles * plan.splits), args->H / work.sharing, args->B);
  const auto &handle = plan.kernel->of_device[plan.device].handle;
  return handle.start(plan.kernel->function, blocks, kThreads, kSharedBytes, args->stream, task);
}

// The number of splits that would be chosen, with `resident`[0] blocks on a multiprocessor at a time.
FLASHCORE_API int flashcore_choice(const flashcore_args *args, const flashcore_device *device, const int32_t *resident) {
  return flashcore::taken(*args) ? flashcore::splits_for(flashcore::Work(*args), device->processors, resident[0]) : 0;
}
