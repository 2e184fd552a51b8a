// flagship: what the other variants taught, put together, and chosen by shape and device.
//
// A block has TILE_M query rows. Its WARPS_KV groups of warps each walk over their own tiles of keys and never wait for
// each other before the end: a group copies its own K and V into its own ring of STAGES tiles and meets at a barrier of
// its own; a group of one warp needs none. Then each warp adds up some columns of all groups' results and writes them.
//
// Further ideas, each of them a few lines, so that it can be taken out again and measured (docs/flagship-notes.md):
// - STAGES tiles of K and V are on their way before the first is looked at: a short sequence is one burst of copies.
// - The output is rescaled only when a row's maximum grew by more than 2^8 (kSlack). FP16 weights have the room, and
//   after a few tiles it hardly ever happens. The result is the same up to rounding.
// - PIPELINED: tensor instructions of the next tile's Q K^T alternate with the exponentials of this one, so that both
//   units work at the same time within one warp.
// - The way to the first copy is short: no division, a grid of three dimensions, keys before queries.
//
// FP16 and bfloat16, head dimensions 64 and 128, any strides, and fewer heads of K and V than of Q.

#include <algorithm>
#include <cmath>

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

namespace {

using namespace flashcore;

// What choices depend on, asked once per device.
struct Device {
  int processors = 0, shared_bytes = 0;
};

constexpr int kDevices = 64;

cudaError_t current_device(int &number, Device &device) {
  static Device known[kDevices];
  static std::atomic<bool> ready[kDevices];
  if (const cudaError_t error = cudaGetDevice(&number)) return error;
  if (number >= kDevices) return cudaErrorInvalidValue;
  if (!ready[number].load(std::memory_order_acquire)) {  // two threads may both ask: they write the same
    Device found;
    if (const cudaError_t error = cudaDeviceGetAttribute(&found.processors, cudaDevAttrMultiProcessorCount, number))
      return error;
    const auto shared = cudaDevAttrMaxSharedMemoryPerBlockOptin;
    if (const cudaError_t error = cudaDeviceGetAttribute(&found.shared_bytes, shared, number)) return error;
    known[number] = found;
    ready[number].store(true, std::memory_order_release);
  }
  device = known[number];
  return cudaSuccess;
}

template <typename C>
int start(const flashcore_args &args) {
  int number = 0;
  Device device;
  if (const cudaError_t error = current_device(number, device)) return error;
  if (C::kSharedBytes > 48 * 1024) {  // beyond what every kernel may use, each device wants to be asked once
    static std::atomic<uint64_t> asked{0};
    const uint64_t bit = uint64_t{1} << number;
    if (!(asked.load(std::memory_order_relaxed) & bit)) {
      const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
      const cudaError_t error = cudaFuncSetAttribute(flashcore_flagship<C>, limit, static_cast<int>(C::kSharedBytes));
      if (error) return error;
      asked.fetch_or(bit);
    }
  }
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
  const auto kernel = flashcore_flagship<C>;
  const dim3 blocks = args.causal ? dim3(args.H, tiles, args.B) : dim3(tiles, args.H, args.B);
  kernel<<<blocks, C::kThreads, C::kSharedBytes, static_cast<cudaStream_t>(args.stream)>>>(task);
  return cudaGetLastError();
}

#if TILE_M

template <Type T, int D>
int choose(const flashcore_args &args) {
  return start<Tiling<T, D, TILE_M, WARP_ROWS, TILE_N, WARPS_KV, STAGES, PIPELINED, MIN_BLOCKS, STAGGERED, TENSOR_SUMS>>(args);
}

#else

// rows, rows per warp, keys, groups, stages, pipelined
template <Type T, int D>
int choose(const flashcore_args &args) {
  return start<Tiling<T, D, 64, 16, 64, 1, 2, true>>(args);
}

#endif

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const bool positive = args->B > 0 && args->H > 0 && args->S_q > 0 && args->S_kv > 0 && args->H_kv >= 0;
  if (!positive || (args->H_kv && args->H % args->H_kv)) return cudaErrorInvalidValue;
#if defined(ONLY_HALF_64)
  if (args->dtype == 0 && args->D == 64) return choose<Type::kHalf, 64>(*args);
#elif defined(ONLY_HALF_128)
  if (args->dtype == 0 && args->D == 128) return choose<Type::kHalf, 128>(*args);
#else
  if (args->dtype == 0 && args->D == 64) return choose<Type::kHalf, 64>(*args);
  if (args->dtype == 0 && args->D == 128) return choose<Type::kHalf, 128>(*args);
  if (args->dtype == 1 && args->D == 64) return choose<Type::kBfloat16, 64>(*args);
  if (args->dtype == 1 && args->D == 128) return choose<Type::kBfloat16, 128>(*args);
#endif
  return cudaErrorInvalidValue;
}
