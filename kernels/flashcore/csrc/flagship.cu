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
//   units work at the same time within one warp. With 32 rows a warp the next scores take the registers of this tile's,
//   16 keys at a time, and maxima are looked for among those that are there already.
// - Sums are rescaled without asking whether a maximum grew; threads that are many enough keep where they are in K and V;
//   a block without groups writes whole rows, by way of shared memory.
// - TENSOR_SUMS: the sums of rows are one more column of P V, a column of ones.
// - SHARED_Q: queries are read from shared memory in each step, which makes room for 32 rows per warp at D = 128.
// - The way to the first copy is short: no division, a grid of three dimensions, keys before queries.
//
// FP16 and bfloat16, head dimensions 64 and 128, any strides, and fewer heads of K and V than of Q.

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
#ifndef BFLOAT16
#define BFLOAT16 0
#endif
// A library of all tilings takes a compiler many seconds, so this file can also be compiled as several translation units
// at once: PART is the sum of what a unit has, 1 for the functions of flashcore.h and a power of two for each #if below
// with tilings. (registry.py has sums that take about as long as each other.) What the compiler makes of a kernel, the
// order of a few instructions before its loop, depends on whether another one of its unit has the same expressions for
// addresses in shared memory. So FP16 and bfloat16 of a tiling stay together, and tilings for FP16 alone share an #if with
// such another: each kernel comes out the same to the byte, whatever else is in its unit.
#ifndef PART
#define PART 2047
#endif

namespace flashcore {

constexpr int kDevices = 64;

// What one device needs to know to run a kernel: asked once.
struct Prepared {
  Published<int> resident;  // blocks that a multiprocessor holds at a time; 0: not asked yet
  Handle<Task> handle;
};

template <typename C>
inline Prepared prepared[kDevices];

// A tiling that may be chosen. (One description for all, and functions that are no templates over the tiling: those
// would be compiled for each.)
struct Candidate {
  int rows, warp_rows, keys, groups, warps, shared_bytes, least_shared;  // the last: of a device that may choose it
  bool pipelined;
  Handle<Task>::Kernel kernel;
  Prepared *of_device;
};

struct Candidates {
  const Candidate *first;
  size_t count;
};

template <typename C>
constexpr Candidate candidate() {
  return {C::kTileM, C::kWarpRows, C::kTileN, C::kGroups, C::kThreads / 32, static_cast<int>(C::kSharedBytes),
          static_cast<int>(kOneTiling ? C::kSharedBytes : C::kLeastShared), C::kPipelined, flashcore_flagship<C>,
          prepared<C>};
}

template <typename... C>
Candidates candidates() {
  static constexpr Candidate all[] = {candidate<C>()...};
  return {all, sizeof...(C)};
}

// A tiling for either type.
template <auto... HOW>
struct OfType {
  template <Type TYPE>
  using Of = Tiling<TYPE, HOW...>;
};

template <typename... T>
Candidates both(Type type) {
  return type == Type::kHalf ? candidates<typename T::template Of<Type::kHalf>...>()
                             : candidates<typename T::template Of<Type::kBfloat16>...>();
}

// What there is for a type, in the order in which it is looked at. Each tiling is the fastest, or nearly, for some shapes
// (docs/flagship-notes.md); bfloat16 has fewer, for the sake of the build's time.
// Tiling<.., rows, rows per warp, keys, groups, stages, pipelined, least blocks, staggered, tensor sums, shared queries>
Candidates tilings_of_16_rows(Type type);
Candidates tilings_of_32_rows_staggered(Type type);
Candidates tilings_of_32_rows_pipelined(Type type);
Candidates tilings_of_64_rows(Type type);
Candidates tilings_of_64_rows_in_groups(Type type);
Candidates tilings_of_64_rows_by_32(Type type);
Candidates tilings_of_128_rows(Type type);
Candidates tilings_for_128_of_32_rows(Type type);  // here and below: D = 128
Candidates tilings_for_128_of_64_rows_staggered(Type type);
Candidates tilings_for_128_of_64_rows_pipelined(Type type);
Candidates tilings_for_128_of_128_rows(Type type);
Candidates the_only_tiling(Type type, int dim);  // of a library of one

#if TILE_M

#if PART & 2
Candidates the_only_tiling(Type type, int dim) {
  constexpr Type kOnly = BFLOAT16 ? Type::kBfloat16 : Type::kHalf;
  using Only = Tiling<kOnly, HEAD_DIM, TILE_M, WARP_ROWS, TILE_N, WARPS_KV, STAGES, PIPELINED, MIN_BLOCKS, STAGGERED,
                      TENSOR_SUMS, SHARED_Q>;
  return type == kOnly && dim == HEAD_DIM ? candidates<Only>() : Candidates{};
}
#endif

#else

#if PART & 2
Candidates tilings_of_16_rows(Type type) {
  return type == Type::kHalf ? candidates<Tiling<Type::kHalf, 64, 16, 16, 16, 4, 2, true, 1, false, true>,
                                          Tiling<Type::kHalf, 64, 16, 16, 32, 4, 2, true, 1, false, true>,
                                          Tiling<Type::kHalf, 64, 16, 16, 64, 4, 2, true, 1, false, true>>()
                             : candidates<Tiling<Type::kBfloat16, 64, 16, 16, 32, 4, 2, true, 1, false, true>>();
}
#endif

#if PART & 4
Candidates tilings_of_32_rows_staggered(Type type) {
  return both<OfType<64, 32, 16, 128, 4, 1, false, 1, true>, OfType<64, 32, 16, 128, 2, 1, false, 1, true>>(type);
}
#endif

#if PART & 8
Candidates tilings_of_32_rows_pipelined(Type type) {
  return both<OfType<64, 32, 16, 64, 2, 2, true, 0, false, true>>(type);
}
#endif

#if PART & 16
Candidates tilings_of_64_rows(Type type) {
  if (type != Type::kHalf) return {};
  return candidates<Tiling<Type::kHalf, 64, 64, 16, 64, 1, 2, true, 0, false, true>>();
}

Candidates tilings_of_64_rows_by_32(Type type) {
  if (type != Type::kHalf) return {};
  return candidates<Tiling<Type::kHalf, 64, 64, 32, 64, 1, 2, true, 0, false, true>>();
}
#endif

#if PART & 32
Candidates tilings_of_64_rows_in_groups(Type type) {
  return both<OfType<64, 64, 32, 64, 2, 2, true, 2, false, true>>(type);
}
#endif

#if PART & 64
Candidates tilings_of_128_rows(Type type) { return both<OfType<64, 128, 32, 64, 1, 2, true, 0, false, true>>(type); }
#endif

#if PART & 128
Candidates tilings_for_128_of_32_rows(Type type) { return both<OfType<128, 32, 16, 64, 4, 1, false, 1, true>>(type); }
#endif

#if PART & 256
Candidates tilings_for_128_of_64_rows_staggered(Type type) {
  return both<OfType<128, 64, 16, 64, 2, 1, false, 1, true>>(type);
}
#endif

#if PART & 512
Candidates tilings_for_128_of_64_rows_pipelined(Type type) {
  return both<OfType<128, 64, 16, 64, 1, 2, true, 0, false, true>>(type);
}
#endif

#if PART & 1024
Candidates tilings_for_128_of_128_rows(Type type) {
  return both<OfType<128, 128, 32, 64, 1, 2, false, 0, false, true, true>>(type);
}
#endif

#endif  // TILE_M

}  // namespace flashcore

#if PART & 1

#ifdef CODE_FROM_FILE  // the library's only tiling is another one each time, and not known before it is opened

namespace flashcore {

struct FromFile {
  Type type;
  int dim;
  Candidate tiling;
};

FromFile from_file;
Prepared from_file_prepared[kDevices];

Candidates the_only_tiling(Type type, int dim) {
  return type == from_file.type && dim == from_file.dim ? Candidates{&from_file.tiling, 1} : Candidates{};
}

}  // namespace flashcore

FLASHCORE_API int flashcore_open(const char *file, const char *name, const int32_t *settings) {
  using namespace flashcore;
  if (from_file.tiling.kernel) return cudaSuccess;
  const int32_t bfloat16 = settings[0], dim = settings[1], rows = settings[2], warp_rows = settings[3];
  const int32_t keys = settings[4], groups = settings[5], stages = settings[6], pipelined = settings[7];
  const int shared_bytes = static_cast<int>(shared_bytes_of(dim, rows, keys, groups, stages));
  CodeKernel kernel = nullptr;
  if (const int error = load_kernel(file, name, kernel)) return error;
  from_file = {bfloat16 ? Type::kBfloat16 : Type::kHalf, dim,
               {rows, warp_rows, keys, groups, rows / warp_rows * groups, shared_bytes, shared_bytes, pipelined != 0,
                kernel, from_file_prepared}};
  return cudaSuccess;
}

#endif

namespace {

using namespace flashcore;

// What choices depend on, asked once per device.
struct Device {
  int processors, shared_bytes, minor;  // the last: of the compute capability
};

int ask_driver(int number, Device &device) {
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, number))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.minor, cudaDevAttrComputeCapabilityMinor, number))
    return error;
  return cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
}

int current_device(int &number, Device &device) {  // remembered
  static Device known[kDevices];
  static Published<bool> ready[kDevices];
  if (const cudaError_t error = cudaGetDevice(&number)) return error;
  if (number >= kDevices) return cudaErrorInvalidValue;
  if (!ready[number].load()) {  // two threads may both ask: they write the same
    if (const int error = ask_driver(number, known[number])) return error;
    ready[number].store(true);
  }
  device = known[number];
  return cudaSuccess;
}

// Make a kernel ready on a device, once, and ask how many of its blocks a multiprocessor holds.
int prepare(const Candidate &c, int number, int &resident) {
  Prepared &known = c.of_device[number];
  resident = known.resident.load();
  if (resident) return cudaSuccess;
  if (const int error = known.handle.open(c.kernel)) return error;  // two threads may both ask: they write the same
  if (const int error = known.handle.allow(32 * c.warps, c.shared_bytes, resident)) return error;
  resident = resident > 1 ? resident : 1;
  known.resident.store(resident);
  return cudaSuccess;
}

int start(const Candidate &c, const flashcore_args &args, int number) {
  const int kv_heads = args.H_kv ? args.H_kv : args.H;
  const auto tiles = static_cast<unsigned>(tiles_of(args.S_q, c.rows));
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  if (args.H > kLimit || args.B > kLimit || (args.causal && tiles > kLimit)) return cudaErrorInvalidValue;
  Task task;
  task.q = static_cast<const uint16_t *>(args.q);
  task.k = static_cast<const uint16_t *>(args.k);
  task.v = static_cast<const uint16_t *>(args.v);
  task.o = static_cast<uint16_t *>(args.o);
  task.q_stride = args.q_stride, task.k_stride = args.k_stride, task.v_stride = args.v_stride;
  task.o_stride = args.o_stride;
  task.factor = std::fmax(std::fabs(args.scale) * 1.4426950408889634f, 1e-30f);  // as fold() of tensor.cuh has it
  task.flip = args.scale < 0.f ? 0x80008000u : 0u;
  task.S_q = args.S_q, task.S_kv = args.S_kv, task.causal = args.causal;
  const uint64_t sharing = args.H / kv_heads;
  task.sharing = sharing == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + sharing - 1) / sharing);
  const dim3 blocks = args.causal ? dim3(args.H, tiles, args.B) : dim3(tiles, args.H, args.B);
  return c.of_device[number].handle.start(c.kernel, blocks, 32 * c.warps, c.shared_bytes, args.stream, task);
}

// How long the busiest multiprocessor works, in units of their own. Three things take their time beside each other: a
// block's steps one after the other, as many blocks at a time as are resident (alone); what all its blocks have for the
// tensor cores and special function units of a quarter of the multiprocessor (shared); and their copies. Under a causal
// mask a block has as many steps as its last row has keys, and long blocks come first: the mean counts where blocks follow
// each other, the longest where they do not.
//
// The constants are a fit to an H200's times of 14 tilings at 220 shapes: the choice costs 0.8 % of the fastest one's
// time in the mean (docs/flagship-notes.md). The tensor cores of 8.6 and 8.9 take 16 cycles for what those of 8.0 and 9.0
// do in 8 or less; what a key costs is then 1.6 times as much.
double cycles(const Candidate &c, const flashcore_args &args, const Device &device, int resident) {
  const bool one_tile = c.warp_rows == 16;  // of mma, for a warp
  const double latency = one_tile ? (c.pipelined ? 94 : 116) : 234, ends = c.groups == 1 ? 65 : 540;
  const double blocks = static_cast<double>(tiles_of(args.S_q, c.rows)) * args.B * args.H;
  const double share = blocks / device.processors, each = std::ceil(share);
  const int tiles = static_cast<int>(tiles_of(args.S_kv, c.keys));
  const double longest = static_cast<double>(tiles_of(tiles, c.groups));
  const bool many_small = c.keys == 16 && longest > 2;  // steps, each with its barrier
  const double per_key = (one_tile ? (c.pipelined ? 6.31 : 7.86) : (c.pipelined ? 9.71 : 11.25)) *
                         (many_small ? 1.25 : 1) * (device.minor == 0 ? 1 : 1.6);
  double mean = longest, rounds = std::ceil(each / resident), here = each;
  if (args.causal) {
    const double q = args.S_q, kv = args.S_kv, seen = kv >= q ? q / 2 : kv - kv * kv / (2 * q);
    mean = std::fmin(longest, (seen + c.rows / 2.0) / (c.keys * c.groups) + 0.5);
    rounds = std::fmax(1, share / resident), here = std::fmax(1, share);
  }
  const double work = per_key * c.keys * args.D / 64;
  const double busy = c.warps * std::fmin(1.0, static_cast<double>(tiles) / c.groups);  // warps with keys
  const double alone = rounds * ends + std::fmax(longest, mean * rounds) * (latency + work);
  const double shared = here * (busy * mean * work / 4 + 0.126 * ends);
  const double copied = here * (c.rows + 2 * mean * c.groups * c.keys) * args.D * 2 / 135.5;
  constexpr double kBeside = 1.514;  // 1: one after the other; infinite: wholly at the same time
  return std::pow(alone, kBeside) + std::pow(shared, kBeside) + std::pow(copied, kBeside);
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

// What there is for a type and head dimension.
struct Lists {
  Candidates list[7];
  int count;
};

Lists lists(Type type, int dim) {
#if TILE_M
  return {{the_only_tiling(type, dim)}, 1};
#else
  if (dim == 128)
    return {{tilings_for_128_of_32_rows(type), tilings_for_128_of_64_rows_staggered(type),
             tilings_for_128_of_64_rows_pipelined(type), tilings_for_128_of_128_rows(type)},
            4};
  return {{tilings_of_16_rows(type), tilings_of_32_rows_staggered(type), tilings_of_32_rows_pipelined(type),
           tilings_of_64_rows(type), tilings_of_64_rows_in_groups(type), tilings_of_64_rows_by_32(type),
           tilings_of_128_rows(type)},
          7};
#endif
}

int choose(const flashcore_args &args, Choice &last) {
  int number = 0;
  Device device;
  if (const int error = current_device(number, device)) return error;
  if (last.fits(args, number)) return start(*last.best, args, number);
  const Candidate *best = nullptr;
  double least = INFINITY;
  const Lists there = lists(static_cast<Type>(args.dtype), args.D);
  for (int i = 0; i < there.count; ++i) {
    const Candidates &list = there.list[i];
    for (const Candidate *c = list.first; c != list.first + list.count; ++c) {
      int resident = 0;
      if (c->least_shared > device.shared_bytes) continue;
      if (const int error = prepare(*c, number, resident)) return error;
      const double time = cycles(*c, args, device, resident);
      if (time < least) least = time, best = c;
    }
  }
  if (!best) return cudaErrorInvalidValue;
  last = {number, args.B, args.H, args.S_q, args.S_kv, args.causal, best};
  return start(*best, args, number);
}

}  // namespace

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  static thread_local Choice last[2][2];
  const bool positive = args->B > 0 && args->H > 0 && args->S_q > 0 && args->S_kv > 0 && args->H_kv >= 0;
  const bool known = (args->D == 64 || args->D == 128) && (args->dtype == 0 || args->dtype == 1);
  if (!positive || !known || (args->H_kv && args->H % args->H_kv)) return cudaErrorInvalidValue;
  return choose(*args, last[args->dtype][args->D / 128]);
}

#endif
