// flagship: what the other variants taught, put together, and chosen by shape and device.
//
// A block has TILE_M query rows. Its WARPS_KV groups of warps each walk over their own tiles of keys and never wait for
// each other before the end: a group copies its own K and V into its own ring of STAGES tiles and meets at a barrier of
// its own; a group of one warp needs none. Then each warp adds up some columns of all groups' results and writes them.
//
// Further ideas, each of them a few lines, so that it can be taken out again and measured (docs/flagship-notes.md):
// - STAGES tiles of K and V are on their way before the first is looked at: a short sequence is one burst of copies.
// - STAGGERED: half of the groups begin to copy when the other half's copies are on their way, and each quarter of a
//   multiprocessor has a warp of either half: one computes while the other's keys arrive.
// - PIPELINED: tensor instructions of the next tile's Q K^T alternate with the exponentials of this one, so that both
//   units work at the same time within one warp.
// - TENSOR_SUMS: the sums of rows are one more column of P V, a column of ones.
// - SHARED_Q: queries are read from shared memory in each step, which makes room for 32 rows per warp at D = 128.
// - The way to the first copy is short: no division, a grid of three dimensions, keys before queries.
//
// FP16 and bfloat16, head dimensions 64 and 128, any strides, and fewer heads of K and V than of Q.

#include <algorithm>
#include <cmath>

#include "driver.cuh"
#include "flagship.cuh"

#ifndef TILE_M  // 0: choose by shape and device. Otherwise the library holds the one tiling that these describe
#define TILE_M 0
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef STAGES
#define STAGES 1
#endif
#ifndef WARPS_KV
#define WARPS_KV 1
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 16
#endif
#ifndef PIPELINED
#define PIPELINED 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0
#endif
#ifndef STAGGERED
#define STAGGERED 0
#endif
#ifndef TENSOR_SUMS
#define TENSOR_SUMS 0
#endif
#ifndef SHARED_Q
#define SHARED_Q 0
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif

namespace {

using namespace flashcore;

// What choices depend on, asked once per device.
struct Device {
  int processors, shared_bytes, minor;  // the last: of the compute capability
};

constexpr int kDevices = 64;

int ask_driver(int number, Device &device) {
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, number))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.minor, cudaDevAttrComputeCapabilityMinor, number))
    return error;
  return cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
}

int current_device(int &number, Device &device) {  // remembered
  static Device known[kDevices];
  static std::atomic<bool> ready[kDevices];
  if (const cudaError_t error = cudaGetDevice(&number)) return error;
  if (number >= kDevices) return cudaErrorInvalidValue;
  if (!ready[number].load(std::memory_order_acquire)) {  // two threads may both ask: they write the same
    if (const int error = ask_driver(number, known[number])) return error;
    ready[number].store(true, std::memory_order_release);
  }
  device = known[number];
  return cudaSuccess;
}

// What one device needs to know to run C: asked once.
template <typename C>
struct Prepared {
  std::atomic<int> resident;  // blocks that a multiprocessor holds at a time; 0: not asked yet
  Handle<Task> handle;
};

template <typename C>
Prepared<C> prepared[kDevices];

// Let C have the shared memory it needs, once per device, and ask how many of its blocks a multiprocessor holds.
template <typename C>
int prepare(int number, int &resident) {
  Prepared<C> &known = prepared<C>[number];
  resident = known.resident.load(std::memory_order_acquire);
  if (resident) return cudaSuccess;
  const auto kernel = flashcore_flagship<C>;
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  if (const cudaError_t error = cudaFuncSetAttribute(kernel, limit, static_cast<int>(C::kSharedBytes))) return error;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, C::kThreads, C::kSharedBytes))
    return error;
  if (const int error = known.handle.open(kernel)) return error;  // two threads may both ask: they write the same
  resident = std::max(resident, 1);
  known.resident.store(resident, std::memory_order_release);
  return cudaSuccess;
}

template <typename C>
int start(const flashcore_args &args, int number) {
  const int kv_heads = args.H_kv ? args.H_kv : args.H;
  const auto tiles = static_cast<unsigned>(tiles_of(args.S_q, C::kTileM));
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  if (args.H > kLimit || args.B > kLimit || (args.causal && tiles > kLimit)) return cudaErrorInvalidValue;
  Task task;
  task.q = static_cast<const uint16_t *>(args.q);
  task.k = static_cast<const uint16_t *>(args.k);
  task.v = static_cast<const uint16_t *>(args.v);
  task.o = static_cast<uint16_t *>(args.o);
  task.q_stride = args.q_stride, task.k_stride = args.k_stride, task.v_stride = args.v_stride;
  task.o_stride = args.o_stride;
  task.factor = std::max(std::fabs(args.scale) * 1.4426950408889634f, 1e-30f);  // as fold() of tensor.cuh has it
  task.flip = args.scale < 0.f ? 0x80008000u : 0u;
  task.S_q = args.S_q, task.S_kv = args.S_kv, task.causal = args.causal;
  const uint64_t sharing = args.H / kv_heads;
  task.sharing = sharing == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + sharing - 1) / sharing);
  const dim3 blocks = args.causal ? dim3(args.H, tiles, args.B) : dim3(tiles, args.H, args.B);
  const Handle<Task> &handle = prepared<C>[number].handle;
  return handle.start(flashcore_flagship<C>, blocks, C::kThreads, C::kSharedBytes, args.stream, task);
}

// A tiling that may be chosen.
struct Candidate {
  int rows, warp_rows, keys, groups, warps, shared_bytes;
  int (*prepare)(int, int &);
  int (*start)(const flashcore_args &, int);
};

template <typename C>
constexpr Candidate candidate() {
  return {C::kTileM, C::kWarpRows, C::kTileN, C::kGroups, C::kThreads / 32, static_cast<int>(C::kSharedBytes),
          prepare<C>, start<C>};
}

// About how many cycles the busiest multiprocessor works. Its blocks come `resident` at a time. One step of a warp has
// work for the tensor cores and special function units of its quarter of the multiprocessor, and a latency that other
// warps can fill; a block has a beginning and an end. Under a causal mask a block has as many steps as its last row has
// keys: the mean counts where blocks follow each other, the longest where they do not.
//
// The constants are a fit to an H200's times of 21 tilings at 100 shapes: the choice costs 0.4 % of the fastest one's
// time in the mean (docs/flagship-notes.md). They are relative to each other. The tensor cores of 8.6 and 8.9 take 16
// cycles for what those of 8.0 and 9.0 do in 8 or less.
double cycles(const Candidate &c, const flashcore_args &args, const Device &device, int resident) {
  const double blocks = static_cast<double>(tiles_of(args.S_q, c.rows)) * args.B * args.H;
  const double each = std::ceil(blocks / device.processors), rounds = std::ceil(each / resident);
  const int tiles = static_cast<int>(tiles_of(args.S_kv, c.keys));
  const double longest = static_cast<double>(tiles_of(tiles, c.groups));
  double mean = longest;
  if (args.causal) {
    const double q = args.S_q, kv = args.S_kv, seen = kv >= q ? q / 2 : kv - kv * kv / (2 * q);
    mean = std::min(longest, (seen + c.rows / 2.0) / (c.keys * c.groups) + 0.5);
  }
  const double per_key = (c.warp_rows == 16 ? 13 : 25.4) + (device.minor == 0 ? 0 : 8 * c.warp_rows / 16);
  const double work = per_key * (c.keys <= 32 ? 1.5 : 1) * c.keys * args.D / 64, latency = 1153;
  const double ends = 112 + 60 * c.groups;
  const double busy = c.warps * std::min(1.0, static_cast<double>(tiles) / c.groups);  // warps with keys
  const double alone = rounds * ends + (rounds == 1 ? longest : mean * rounds) * (latency + work);
  const double here = args.causal ? std::max(1.0, blocks / device.processors) : each;
  const double shared = here * (busy * mean * work / 4 + 1.52 * ends);
  return std::max(alone, shared);
}

// The choice for a shape, remembered by each thread for as long as it calls with that shape.
struct Choice {
  int number = -1, B, H, S_q, S_kv, causal;
  const Candidate *best;

  bool fits(const flashcore_args &args, int device) const {
    return device == number && args.B == B && args.H == H && args.S_q == S_q && args.S_kv == S_kv &&
           args.causal == causal;
  }
};

template <size_t COUNT>
int start_best(const flashcore_args &args, const Candidate (&candidates)[COUNT], Choice &last) {
  int number = 0;
  Device device;
  if (const int error = current_device(number, device)) return error;
  if (last.fits(args, number)) return last.best->start(args, number);
  const Candidate *best = nullptr;
  double least = INFINITY;
  for (const Candidate &c : candidates) {
    int resident = 0;
    if (c.shared_bytes > device.shared_bytes) continue;
    if (const int error = c.prepare(number, resident)) return error;
    const double time = cycles(c, args, device, resident);
    if (time < least) least = time, best = &c;
  }
  if (!best) return cudaErrorInvalidValue;
  last = {number, args.B, args.H, args.S_q, args.S_kv, args.causal, best};
  return best->start(args, number);
}

#if TILE_M

template <Type T, int D>
int choose(const flashcore_args &args) {
  static thread_local Choice last;
  using C = Tiling<T, D, TILE_M, WARP_ROWS, TILE_N, WARPS_KV, STAGES, PIPELINED, MIN_BLOCKS, STAGGERED, TENSOR_SUMS,
                   SHARED_Q>;
  static constexpr Candidate candidates[] = {candidate<C>()};
  return start_best(args, candidates, last);
}

#else

// Each of these is the fastest somewhere (docs/flagship-notes.md).
// Tiling<.., rows, rows per warp, keys, groups, stages, pipelined, least blocks, staggered, tensor sums>
template <Type T, int D>
int choose(const flashcore_args &args) {
  static thread_local Choice last;
  if constexpr (D == 128) {
    static constexpr Candidate candidates[] = {
        candidate<Tiling<T, D, 32, 16, 64, 4, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 64, 16, 64, 2, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 64, 16, 64, 1, 2, true>>(),
    };
    return start_best(args, candidates, last);
  } else if constexpr (T == Type::kBfloat16) {  // fewer, for the sake of the build's time
    static constexpr Candidate candidates[] = {
        candidate<Tiling<T, D, 16, 16, 32, 4, 2, true, 1, false, true>>(),
        candidate<Tiling<T, D, 32, 16, 128, 4, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 32, 16, 128, 2, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 32, 16, 64, 2, 2, true, 0, false, true>>(),
        candidate<Tiling<T, D, 64, 32, 64, 2, 2, true, 2, false, true>>(),
        candidate<Tiling<T, D, 128, 32, 64, 1, 2, true, 0, false, true>>(),
    };
    return start_best(args, candidates, last);
  } else {
    static constexpr Candidate candidates[] = {
        candidate<Tiling<T, D, 16, 16, 16, 4, 2, true, 1, false, true>>(),
        candidate<Tiling<T, D, 16, 16, 32, 4, 2, true, 1, false, true>>(),
        candidate<Tiling<T, D, 16, 16, 64, 4, 2, true, 1, false, true>>(),
        candidate<Tiling<T, D, 16, 16, 128, 4, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 32, 16, 128, 4, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 32, 16, 128, 2, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 32, 16, 64, 2, 2, true, 0, false, true>>(),
        candidate<Tiling<T, D, 64, 16, 128, 2, 1, false, 1, true>>(),
        candidate<Tiling<T, D, 64, 16, 64, 1, 2, true, 0, false, true>>(),
        candidate<Tiling<T, D, 64, 32, 64, 2, 2, true, 2, false, true>>(),
        candidate<Tiling<T, D, 128, 32, 64, 1, 2, true, 0, false, true>>(),
    };
    return start_best(args, candidates, last);
  }
}

#endif

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const bool positive = args->B > 0 && args->H > 0 && args->S_q > 0 && args->S_kv > 0 && args->H_kv >= 0;
  if (!positive || (args->H_kv && args->H % args->H_kv) || args->dtype < 0 || args->dtype > 1) return cudaErrorInvalidValue;
  switch (args->D) {
#if !TILE_M || HEAD_DIM == 64
    case 64: return args->dtype ? choose<Type::kBfloat16, 64>(*args) : choose<Type::kHalf, 64>(*args);
#endif
#if !TILE_M || HEAD_DIM == 128
    case 128: return args->dtype ? choose<Type::kBfloat16, 128>(*args) : choose<Type::kHalf, 128>(*args);
#endif
  }
  return cudaErrorInvalidValue;
}
