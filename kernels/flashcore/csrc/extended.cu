// extended: the flagship's loop for scores that are capped, biased by distance or seen through a window, and for sequences of
// different lengths, one behind the other in memory. A kernel that is Scored does all of it, also boolean masks: what a launch
// does not ask for is a branch that all threads take alike. One that is Windowed is for windows and packed sequences alone.
//
// Of packed sequences each block reads where its own begins and ends. Lengths are never read on the host, so that a launch
// waits for nothing and each replay of a CUDA graph reads them anew; blocks behind a short sequence's end return.

#include "driver.cuh"
#include "flagship.cuh"

// This file can be two translation units (flagship.cu says why): 1, the functions of flashcore.h; 2, FP16; 4, bfloat16.
#ifndef PART
#define PART 7
#endif

namespace flashcore {

struct Extended : ScoredTask {
  const int *starts_q, *starts_k;  // of packed sequences, [B + 1], or null
};

// Whether it takes packed sequences. (At D = 128 what is a block's own costs a window's tiles the registers that they need.)
template <typename C>
constexpr bool kPacks = !C::kWindowed || C::kPipelined;

// Blocks of a multiprocessor that there are to be registers for: of the small tiling at D = 64 four, which sm_89 has by itself.
template <typename C>
constexpr int kBlocks = kFastTensor && C::kDim == 64 && C::kTileM == 64 ? 4 : C::kMinBlocks;

template <typename C>
__global__ void __launch_bounds__(C::kThreads, kBlocks<C>) flashcore_extended(const Extended task) {
  if constexpr (C::kLeastShared > kMostShared) {  // never chosen there, as in flashcore_flagship
    __trap();
  } else {
    wait_for_previous();
    const Spot at = spot(task);
    if constexpr (!kPacks<C>) return attend<C>(task, at);
    Extended own = task;
    if (task.starts_q) {
      const int q = task.starts_q[at.batch], k = task.starts_k[at.batch];
      own.S_q = task.starts_q[at.batch + 1] - q, own.S_kv = task.starts_k[at.batch + 1] - k;
      if (static_cast<int>(at.tile) * C::kTileM >= own.S_q) return;
      own.q += q * task.q_stride.row, own.o += q * task.o_stride.row;
      own.k += k * task.k_stride.row, own.v += k * task.v_stride.row;
      own.align = own.S_kv - own.S_q, own.shift = own.align + task.right;
    }
    attend<C>(own, at);
  }
}

struct Kernel {
  Handle<Extended>::Kernel function;
  int rows, threads, shared_bytes, least_shared;  // the last: of a device that may choose it
  bool packs;
  Prepared<Extended> of_device[kDevices];
};

template <typename C>
Kernel kernel = {flashcore_extended<C>, C::kTileM, C::kThreads, static_cast<int>(C::kSharedBytes),
                 static_cast<int>(C::kLeastShared), kPacks<C>, {}};

template <Type TYPE, int DIM>
using Small = Scored<Tiling<TYPE, DIM, 64, 16, 64, 1, 2, false, 0, false, kWhereFast>>;
template <Type TYPE, int DIM>
using Large = Scored<Tiling<TYPE, DIM, 128, 32, 64, 1, 2, false, 0, false, kAlways, DIM == 128>>;

template <Type TYPE, int DIM>
using LargeWindowed = Windowed<Tiling<TYPE, DIM, 128, 32, 64, 1, 2, DIM == 64, 0, false, kAlways, DIM == 128>>;

// The tilings of a type and head dimension: for all calls, the smaller one first, and for calls without masks, caps and slopes.
struct Kernels {
  Kernel *small, *large, *windowed;
};

Kernels kernels_of_half(int dim);
Kernels kernels_of_bfloat16(int dim);

template <Type TYPE>
Kernels kernels_of(int dim) {
  if (dim == 128) return {&kernel<Small<TYPE, 128>>, &kernel<Large<TYPE, 128>>, &kernel<LargeWindowed<TYPE, 128>>};
  return {&kernel<Small<TYPE, 64>>, &kernel<Large<TYPE, 64>>, &kernel<LargeWindowed<TYPE, 64>>};
}

#if PART & 2
Kernels kernels_of_half(int dim) { return kernels_of<Type::kHalf>(dim); }
#endif
#if PART & 4
Kernels kernels_of_bfloat16(int dim) { return kernels_of<Type::kBfloat16>(dim); }
#endif

}  // namespace flashcore

#if PART & 1

namespace flashcore {

namespace {

// Wide tiles where there are enough of them for a whole device, and no narrow window: it would be a small part of what they
// read. (An H200, us of 64 and 128 rows: 60.6, 63.9 with 384 keys at 2,16,4096; 146.4, 146.9 with 512 at 2,16,8192. D = 128:
// 89.1, 83.4 with 256 keys at 4,16,2048; 65.3, 70.9 with 128 by tiles that had masks.)
Kernel *chosen(const flashcore_args &args, const flashcore_device &device) {
  const Kernels there = args.dtype ? kernels_of_bfloat16(args.D) : kernels_of_half(args.D);
  const bool kept = !args.mask && !args.slopes && args.softcap == 0.f;  // scores as they are
  const bool plain = kept && (there.windowed->packs || !args.starts_q);
  if (args.tiling > 3 || (args.tiling == 3 && !plain)) return nullptr;
  if (args.tiling) return args.tiling == 1 ? there.small : args.tiling == 2 ? there.large : there.windowed;
  Kernel *const large = plain ? there.windowed : there.large;
  const int right = args.causal ? 1 : args.window_right;
  const bool narrow = args.window_left && right && int64_t{args.window_left} + right <= (args.D == 128 ? 192 : 448);
  const bool enough = tiles_of(args.S_q, large->rows) * args.H * args.B >= 2 * device.processors;
  const bool fits = large->least_shared <= device.shared_bytes;
  return enough && fits && !narrow ? large : there.small;
}

bool taken(const flashcore_args &args) {
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0 && args.H_kv >= 0;
  const bool known = (args.D == 64 || args.D == 128) && (args.dtype == 0 || args.dtype == 1) && args.tiling >= 0;
  const bool whole = !args.H_kv || args.H % args.H_kv == 0, short_enough = args.S_q < kUnbounded && args.S_kv < kUnbounded;
  const bool pair = !args.starts_q == !args.starts_k && !(args.starts_q && (args.mask || args.causal == 1));
  return positive && known && whole && short_enough && pair && args.softcap >= 0.f && args.H <= kLimit && args.B <= kLimit;
}

int bound(int given) { return given && given <= kUnbounded ? given - 1 : kUnbounded; }

}  // namespace

}  // namespace flashcore

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  using namespace flashcore;
  if (!taken(*args)) return cudaErrorInvalidValue;
  int number = 0;
  flashcore_device device;
  if (const int error = current_device(number, device)) return error;
  Kernel *const kernel = chosen(*args, device);
  if (!kernel || kernel->least_shared > device.shared_bytes) return cudaErrorInvalidValue;
  auto &prepared = kernel->of_device[number];
  int resident = 0;
  if (const int error = prepared.prepare(kernel->function, kernel->threads, kernel->shared_bytes, resident)) return error;
  const auto tiles = static_cast<unsigned>(tiles_of(args->S_q, kernel->rows));
  Extended task;
  take_args(task, *args);
  task.cap = args->softcap > 0.f ? 2.f * task.factor / args->softcap : 0.f;
  if (args->softcap > 0.f) task.factor = args->softcap * 1.4426950408889634f;
  task.slopes = args->slopes, task.slope_batch = args->slope_batch, task.slope_factor = 1.4426950408889634f / task.factor;
  const int right = args->causal ? 0 : bound(args->window_right);
  task.causal = right < kUnbounded, task.right = task.causal ? right : 0;
  task.left = bound(args->window_left), task.width = task.left + task.right;
  task.align = args->causal == 1 ? 0 : args->S_kv - args->S_q, task.shift = task.align + task.right;
  task.starts_q = args->starts_q, task.starts_k = args->starts_k;
  if (task.starts_q)
    task.q_stride.batch = task.k_stride.batch = task.v_stride.batch = task.o_stride.batch = 0;
  const dim3 blocks = task.causal ? dim3(args->H, tiles, args->B) : dim3(tiles, args->H, args->B);
  if (blocks.y > 65535) return cudaErrorInvalidValue;
  return prepared.handle.start(kernel->function, blocks, kernel->threads, kernel->shared_bytes, args->stream, task);
}

#endif  // PART & 1
