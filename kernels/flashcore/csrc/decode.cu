// decode: few queries over many keys, as when a model writes one token after the other.
//
// One query row of a head reads all of its keys once: the time is that of the memory, if enough of it is asked for at once.
// So
// - the rows of an mma are all queries that read the same keys: of every head that shares a head of keys, as many as there
//   are;
// - the keys of a row tile are divided between blocks (splits), until all multiprocessors are at work, and within a block
//   between its warps, which wait for nobody;
// - K and V come from memory to the registers where mma.sync wants them, 16 bytes at a time, without shared memory: no
//   barrier, and a warp has two tiles of keys on their way.
// - results of a block's warps become one in shared memory, those of the splits in the workspace. Which block does that
//   last step: whoever finds that all have arrived.
//
// Fragments, g = lane / 4 and t = lane % 4. S = Q K^T: rows are queries, g and g + 8. Which dimension is which of an mma's 16
// does not matter, if it is the same for Q and K: lane t has 8 neighbours of each 32 (one read), 4 for one mma and 4 for the
// next. (Up to 8 rows leave half of the mma's free: scores_of_lines() reads whole lines of memory for it.) O^T = V^T P^T: rows
// are dimensions, columns are queries, so that few queries make few products. S's elements [g][2t], [g][2t + 1], packed, are
// what P^T's operand is. Of V a lane reads 8 neighbours of each 64 dimensions from 8g on, of keys 2t, 2t + 1, 2t + 8, 2t + 9;
// pairs of keys are put together there. In O^T it has those dimensions, of queries 2t and 2t + 1.
//
// Arrivals. Splits of a row tile that have written their results are counted in a word of the workspace, which may hold
// anything at first: each split, when it begins, sees to it that the word's upper bits are the launch's `token`, a number that
// no other launch has, and its count 0. (Whoever changes it does so by compare-and-swap: if that fails another one did the
// same.) The last to arrive makes it 0, for the next replay of a CUDA graph, where the token is the same again. So the
// workspace belongs to one launch, as the output does, and nothing is kept between launches.

#include "driver.cuh"

#ifndef WARPS  // of a block, which divide its keys
#define WARPS 8
#endif
#ifndef BUFFERS  // tiles of keys in a warp's registers
#define BUFFERS 2
#endif
#ifndef PAGED  // 1: keys and values are in pages, of which a table says where they are, and lengths are on the device
#define PAGED 0
#endif

// This file can be two translation units (flagship.cu says why): 1, the functions of flashcore.h; 2, FP16; 4, bfloat16.
#ifndef PART
#define PART 7
#endif

#include "decode_rows.cuh"

namespace flashcore {

// Whether this is the last split of its row tile to arrive. All threads take part, after they have written what others are
// to read.
__device__ __forceinline__ bool arrived_last(const Decode &task, unsigned long long *word, unsigned thread) {
  __syncthreads();
  bool last = false;
  if (thread == 0) {
    last = count_arrival(word) == task.token + task.splits - 1;
    if (last) *word = 0;
  }
  return __syncthreads_or(last);
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
  // Divisions take long, and stand before the first copy: there are none in the usual case.
  const unsigned row_tile = task.row_tiles == 1 ? 0 : blockIdx.x / task.splits;
  const unsigned split = blockIdx.x - row_tile * task.splits;
  const int first_row = row_tile * C::kRows, rows = min(C::kRows, task.rows - first_row);
  if (kPaged) wait_for_previous();
  // Of pages, a warp's tiles are those of all warps of all splits in turn: where the first are is asked for before it is
  // known how many there are.
  const int step = kPaged ? task.splits * WARPS : WARPS;
  Table<C> table;
  if constexpr (kPaged) {
    table.pages = task.table + blockIdx.z * task.table_stride;
    table.shift = task.page_shift, table.step = step, table.lane = lane, table.last = task.S_kv - 1;
    table.now = table.find(split * WARPS + warp);
  }
  const int S_kv = kPaged ? min(task.lengths[blockIdx.z], task.S_kv) : task.S_kv;
  const int shift = kPaged ? S_kv - task.S_q : task.shift;
  const auto seen_by = [&](int row) {
    if (!task.causal) return S_kv;
    const int query = static_cast<int>(static_cast<unsigned>(first_row + row) / task.sharing);
    return max(0, min(S_kv, query + 1 + shift));
  };
  const auto row_of = [&](auto *base, const flashcore_strides &stride, int row) {
    const unsigned packed = first_row + row, query = task.sharing == 1 ? packed : packed / task.sharing;
    const unsigned head = blockIdx.y * task.sharing + packed - query * task.sharing;
    return head_at(base, stride, blockIdx.z, head) + static_cast<uint64_t>(query) * stride.row;
  };
  const int keys = seen_by(rows - 1), tiles = (keys + C::kKeys - 1) / C::kKeys;
  const int first = max(0, seen_by(0) - task.width) / C::kKeys;  // tile that a row sees
  const int share = kPaged ? tiles : task.causal ? (tiles - first + task.splits - 1) / task.splits : task.share;
  const int from = first + (kPaged ? split * WARPS : split * share);
  if constexpr (kPaged)
    if (first > 0) table.now = table.find(from + warp);
  const Boxes<C> boxes = {dynamic_shared()};
  const unsigned tile = (blockIdx.z * gridDim.y + blockIdx.y) * task.row_tiles + row_tile;
  unsigned long long *const word = task.arrivals + tile;

  Rows<C> state;
  int ends[C::kHalves];
  const auto begin = [&] {  // with the first keys on their way
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h) {
      const int row = lane / 4 + 8 * h;
      const uint16_t *q = row < rows ? row_of(task.q, task.q_stride, row) + lane % 4 * 8 : nullptr;
#pragma unroll
      for (int c = 0; c < C::kDim / 32; ++c) {
#pragma unroll
        for (uint32_t &pair : state.q[c][h]) pair = 0;
        if (q) load_16(state.q[c][h], q + 32 * c);
      }
    }
    if (task.splits > 1 && thread == 0) {
      const unsigned long long found = *static_cast<volatile unsigned long long *>(word);
      if (found >> 16 != task.token >> 16) atomicCAS(word, found, task.token);
    }
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h) {
      ends[h] = seen_by(lane / 4 + 8 * h);
      state.base[h] = kLowest, state.sum[h] = 0.f;
#pragma unroll
      for (int c = 0; c < C::kDim / 32; ++c)
#pragma unroll
        for (uint32_t &pair : state.q[c][h]) pair ^= task.flip;
#pragma unroll
      for (int w = 0; w < C::kDim / 64; ++w)
#pragma unroll
        for (int i = 0; i < 4; ++i) zero(state.out[w][i][h]);
    }
  };
  const unsigned batch = kPaged ? 0 : blockIdx.z;
  const Place k = {head_at(task.k, task.k_stride, batch, blockIdx.y), task.k_stride};
  const Place v = {head_at(task.v, task.v_stride, batch, blockIdx.y), task.v_stride};
  attend<C>(state, task, k, v, table, from + warp, step, kPaged ? tiles : min(tiles, from + share), keys, seen_by(0), ends,
            lane, begin);

  allow_next();
#pragma unroll
  for (int h = 0; h < C::kHalves; ++h) {
    const float total = reduce_sum<4>(state.sum[h]);
    if (lane % 4 == 0 && lane / 4 + 8 * h < rows)
      boxes.state(warp, lane / 4 + 8 * h) = make_float2(state.base[h], total);
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = lane % 4 * 2 + e + 8 * h;
      if (row >= rows) continue;
#pragma unroll
      for (int w = 0; w < C::kDim / 64; ++w)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
          const float(&x)[4] = state.out[w][i][h], (&y)[4] = state.out[w][i + 1][h];
          *reinterpret_cast<float4 *>(boxes.out(warp, row) + 64 * w + lane / 4 * 8 + 2 * i) =
              make_float4(x[e], x[2 + e], y[e], y[2 + e]);
        }
    }
  }
  __syncthreads();

  const auto store = [&](int row, int column, const Partial<4> &x) {
    const float scale = (kPaged || shift < 0) && x.sum == 0.f ? 0.f : reciprocal(x.sum);  // a query that sees no key
    uint2 packed;
    packed.x = pack<C::kType>(x.out[0] * scale, x.out[1] * scale);
    packed.y = pack<C::kType>(x.out[2] * scale, x.out[3] * scale);
    *reinterpret_cast<uint2 *>(row_of(task.o, task.o_stride, row) + column) = packed;
  };
  if (task.splits == 1) return boxes.add_up(WARPS, rows, thread, store);

  const uint64_t place = static_cast<uint64_t>(tile) * task.splits;  // of the row tile's results
  const int each = min(C::kRows, task.rows);
  boxes.add_up(WARPS, rows, thread, [&](int row, int column, const Partial<4> &x) {
    const uint64_t at = (place + split) * each + row;
    *reinterpret_cast<float4 *>(task.sums + at * C::kDim + column) = make_float4(x.out[0], x.out[1], x.out[2], x.out[3]);
    if (column == 0) task.states[at] = make_float2(x.base, x.sum);
  });
  if (!arrived_last(task, word, thread)) return;

  // A warp takes a row, or a part of its splits where rows are few.
  const int parts = rows < WARPS ? WARPS / rows : 1;
#pragma unroll 1
  for (int item = warp; item < rows * parts; item += WARPS) {
    const int row = item / parts, part = item % parts;
    const Partial<C::kOfLane> whole = gather<C>(task, place, each, row, part, parts, lane);
    if (lane == 0) boxes.state(part, row) = make_float2(whole.base, whole.sum);
    float *to = boxes.out(part, row) + lane * C::kOfLane;
#pragma unroll
    for (int i = 0; i < C::kOfLane; ++i) to[i] = whole.out[i];
  }
  __syncthreads();
  boxes.add_up(parts, rows, thread, store);
}

struct Kernel {
  Handle<Decode>::Kernel function;
  uint32_t shared_bytes;
  Prepared<Decode> of_device[kDevices];
};

template <Type TYPE, int DIM, int HALVES>
Kernel kernel = {flashcore_decode<Layout<TYPE, DIM, HALVES>>, Layout<TYPE, DIM, HALVES>::kSharedBytes, {}};

Kernel &half_kernel_for(const Work &work);
Kernel &bfloat16_kernel_for(const Work &work);

template <Type TYPE>
Kernel &kernel_for(const Work &work) {
  if (work.dim == 64) return work.height == 8 ? kernel<TYPE, 64, 1> : kernel<TYPE, 64, 2>;
  return work.height == 8 ? kernel<TYPE, 128, 1> : kernel<TYPE, 128, 2>;
}

#if PART & 2
Kernel &half_kernel_for(const Work &work) { return kernel_for<Type::kHalf>(work); }
#endif
#if PART & 4
Kernel &bfloat16_kernel_for(const Work &work) { return kernel_for<Type::kBfloat16>(work); }
#endif

}  // namespace flashcore

#if PART & 1

namespace flashcore {

namespace {

bool taken(const flashcore_args &args) {
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0 && args.H_kv >= 0;
  const bool known = (args.D == 64 || args.D == 128) && (args.dtype == 0 || args.dtype == 1);
  if (!positive || !known || (args.H_kv && args.H % args.H_kv) || args.tiling < 0 || args.tiling > kMostSplits) return false;
  const bool paged = args.page_keys >= 16 && !(args.page_keys & (args.page_keys - 1));
  if (PAGED ? !paged || args.causal == 1 : args.page_keys != 0) return false;
  // A window that ends at a query's own place in the lower right corner, and nothing else that changes scores.
  const bool ends = args.causal == 2 || (!args.causal && args.window_right == 1);
  if (args.softcap != 0.f || args.slopes || ((args.window_left || args.window_right) && !ends)) return false;
  return args.B <= kLimit && args.H <= kLimit && Work(args).rows <= INT32_MAX / kMostSplits;
}

// What a launch of these arguments is, on the current device.
struct Plan {
  Kernel *kernel;
  int device, splits;
};

int plan_of(const flashcore_args &args, Plan &plan) {
  if (!taken(args)) return cudaErrorInvalidValue;
  const Work work(args);
  plan.kernel = &(args.dtype ? bfloat16_kernel_for(work) : half_kernel_for(work));
  flashcore_device device;
  int resident = 0;
  if (const int error = current_device(plan.device, device)) return error;
  Kernel &kernel = *plan.kernel;
  auto &prepared = kernel.of_device[plan.device];
  if (const int error = prepared.prepare(kernel.function, kThreads, static_cast<int>(kernel.shared_bytes), resident))
    return error;
  plan.splits = args.tiling ? args.tiling : splits_for(work, device.processors, resident);
  return cudaSuccess;
}

// A number of 48 bits, times 2^16: not 0, another one each time in this process, and not likely what memory holds by chance.
unsigned long long fresh_token() {
  static unsigned long long count;
  const unsigned long long library = reinterpret_cast<uintptr_t>(&count) >> 4;  // other libraries begin elsewhere
  return (library + __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED)) * 0x9e3779b97f4a7c15ull << 16;  // odd: one to one
}

}  // namespace

}  // namespace flashcore

// Of each row tile how many splits have arrived; of each split maxima, sums and results. Nothing where there is one split.
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
  if ((places.bytes && !args->workspace) || (PAGED && !(args->table && args->lengths))) return cudaErrorInvalidValue;
  Decode task;
  take_tensors(task, *args);
  task.rows = static_cast<int>(work.rows), task.sharing = work.sharing;
  task.row_tiles = static_cast<int>(work.tiles), task.share = static_cast<int>(share_of(work, plan.splits));
  task.S_kv = args->S_kv, task.splits = plan.splits;
  task.causal = work.causal, task.shift = work.causal == 2 ? args->S_kv - args->S_q : 0, task.width = work.width;
  task.table = args->table, task.table_stride = args->table_stride, task.lengths = args->lengths, task.S_q = args->S_q;
  task.page_shift = __builtin_ctz(args->page_keys | 1 << 30);
  task.token = fresh_token();
  auto *memory = static_cast<unsigned char *>(args->workspace);
  task.arrivals = reinterpret_cast<unsigned long long *>(memory);
  task.states = reinterpret_cast<float2 *>(memory + places.states);
  task.sums = reinterpret_cast<float *>(memory + places.sums);
  const dim3 blocks(static_cast<unsigned>(work.tiles * plan.splits), args->H / work.sharing, args->B);
  const auto &handle = plan.kernel->of_device[plan.device].handle;
  return handle.start(plan.kernel->function, blocks, kThreads, plan.kernel->shared_bytes, args->stream, task);
}

// The number of splits that would be chosen, with `resident`[0] blocks on a multiprocessor at a time.
FLASHCORE_API int flashcore_choice(const flashcore_args *args, const flashcore_device *device, const int32_t *resident) {
  return flashcore::taken(*args) ? flashcore::splits_for(flashcore::Work(*args), device->processors, resident[0]) : 0;
}

#endif  // PART & 1
