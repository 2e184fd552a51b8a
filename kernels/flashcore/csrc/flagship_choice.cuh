// Which tiling of flagship.cu for a shape on a device, and its launch; a tiling from a file of device code, too.
#ifndef FLASHCORE_FLAGSHIP_CHOICE_CUH
#define FLASHCORE_FLAGSHIP_CHOICE_CUH

#include <cmath>

#if !TILE_M
#include <cstdio>
#endif

#include "flagship_candidates.cuh"
#include "flagship_cost.cuh"

#ifdef CODE_FROM_FILE  // the library's only tiling is another one each time, and not known before it is opened

namespace flashcore {

struct FromFile {
  Type type;
  int dim;
  Candidate tiling;
};

FromFile from_file;
Prepared<Task> from_file_prepared[kDevices];

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
               {{rows, warp_rows, keys, groups, stages, rows / warp_rows * groups, pipelined != 0, false, kNever, false, false},
                shared_bytes, shared_bytes, kernel, from_file_prepared}};
  return cudaSuccess;
}

#endif

namespace {

using namespace flashcore;

using Device = flashcore_device;  // asked once for each

// Make a kernel ready on a device, once, and ask how many of its blocks a multiprocessor holds.
int prepare(const Candidate &c, int number, int &resident) {
  return c.of_device[number].prepare(c.kernel, 32 * c.warps, c.shared_bytes, resident);
}

// `slots`: blocks that the device holds at a time.
int start(const Candidate &c, const flashcore_args &args, int number, int slots) {
  const auto tiles = static_cast<unsigned>(tiles_of(args.S_q, c.rows));
  constexpr int kLimit = 65535;  // of a grid's second and third dimension
  if (args.H > kLimit || args.B > kLimit || (args.causal && tiles > kLimit)) return cudaErrorInvalidValue;
  Task task;
  take_args(task, args);
  task.causal = args.causal, task.shift = args.causal == 2 ? args.S_kv - args.S_q : 0;
  dim3 blocks = args.causal ? dim3(args.H, tiles, args.B) : dim3(tiles, args.H, args.B);
  if (c.rest) {
    const uint64_t all = uint64_t{tiles} * args.H * args.B, whole = all / slots * slots;
    const uint64_t count = whole + (all - whole) * (c.rows / c.rest->rows);
    if (count > INT32_MAX) return cudaErrorInvalidValue;
    task.whole = static_cast<uint32_t>(whole), task.tiles = tiles, task.heads = args.H;
    blocks = dim3(static_cast<unsigned>(count));
  }
  return c.of_device[number].handle.start(c.kernel, blocks, 32 * c.warps, c.shared_bytes, args.stream, task);
}

// What only a tiling with masks will do for: kRows, a mask that differs from query to query; kMask, any other; 0: none.
constexpr int kMask = 1, kRows = 2;

int masked(const flashcore_args &args) {
  if (args.mask) return args.mask_stride.row ? kRows : kMask;
  return args.causal == 2 && args.S_q != args.S_kv ? kMask : 0;
}

double cycles(const Candidate &c, const flashcore_args &args, const Device &device, int resident) {
  const bool causal = args.causal == 1 || (args.causal && args.S_q == args.S_kv);  // else few keys are hidden, mostly
  const Load load = {double(args.B), double(args.H), double(args.S_q), double(args.S_kv), double(args.D), causal};
  const Chip chip = {device.processors, mma_clocks(device.major, device.minor)};
  const double time = c.rest ? clocks(c, *c.rest, load, chip, resident) : clocks(c, load, chip, resident);
  // A mask's bytes are waited for: by few warps longer, and a pipelined tiling leaves no tile out. (An H200, half of the
  // tiles hidden: 341 us with 32 rows a warp, 393 pipelined, 286 with neither; nothing hidden: 248, 291, 290.)
  return masked(args) == kRows && (c.pipelined || c.warp_rows > 16) ? 1.4 * time : time;
}

// The choice for a shape. Each thread remembers as many as there are places, one for each remainder.
struct Choice {
  int number = -1, B, H, S_q, S_kv, D, causal, tiling;
  int mask;
  const Candidate *best;
  int slots;

  bool fits(const flashcore_args &args, int device) const {
    return device == number && args.B == B && args.H == H && args.S_q == S_q && args.S_kv == S_kv &&
           args.D == D && args.causal == causal && args.tiling == tiling && masked(args) == mask;
  }
};

Choice &remembered(const flashcore_args &args) {
  constexpr unsigned kPlaces = 61;
  static thread_local Choice known[2][kPlaces];
  return known[args.dtype][(args.B * 7u + args.H * 5u + args.S_q * 3u + args.S_kv + args.causal) % kPlaces];
}

// What there is for a type and head dimension.
struct Lists {
  Candidates list[9];
  int count;
};

// Of several libraries, that which has the tilings for a call (registry.py has the same): by head dimension, for 64 and 128
// also by masks.
constexpr int kLibraries = 7;
// Tilings that take masks are counted by themselves, from 101 on, so that either library knows its numbers.
constexpr int kMaskedFrom = 101;

int library_of(const flashcore_args &args) {
  if (args.D == 80) return 4;
  if (args.D == 96) return 5;
  if (args.D == 256) return 6;
  const bool with_masks = args.tiling ? args.tiling >= kMaskedFrom : masked(args) != 0;
  return 2 * with_masks + (args.D == 128);
}

#define HAS(number) (LIBRARY < 0 || LIBRARY == number)

Lists lists(Type type, int dim) {
  Lists found = {{}, 0};
  const auto add = [&](Candidates list) { found.list[found.count++] = list; };
#if TILE_M
  add(the_only_tiling(type, dim));
#else
#if HAS(0)
  if (dim == 64) {
    add(tilings_of_16_rows(type)), add(tilings_of_32_rows_staggered(type)), add(tilings_of_32_rows_pipelined(type));
    add(tilings_of_64_rows(type)), add(tilings_of_64_rows_in_groups(type)), add(tilings_of_128_rows(type));
    add(tilings_of_80_rows(type)), add(tilings_of_128_rows_and_fewer(type));
  }
#endif
#if HAS(1)
  if (dim == 128) {
    add(tilings_for_128_of_32_rows(type)), add(tilings_for_128_of_64_rows_staggered(type));
    add(tilings_for_128_of_64_rows_pipelined(type)), add(tilings_for_128_of_128_rows(type));
  }
#endif
#if HAS(2)
  if (dim == 64) add(tilings_with_masks(type));
#endif
#if HAS(3)
  if (dim == 128) add(tilings_for_128_with_masks(type));
#endif
#if HAS(4)
  if (dim == 80) add(small_tilings_for_80(type)), add(large_tilings_for_80(type));
#endif
#if HAS(5)
  if (dim == 96) add(small_tilings_for_96(type)), add(large_tilings_for_96(type));
#endif
#if HAS(6)
  if (dim == 256) add(small_tilings_for_256(type)), add(large_tilings_for_256(type));
#endif
#endif
  return found;
}

// Of the tilings that a device may choose, or of the only one that is asked for, the one that is taken to be the fastest,
// its number, and the blocks of it that the device holds; none: null. `resident(candidate, number, blocks)` says how many
// a multiprocessor holds.
struct Fastest {
  const Candidate *tiling = nullptr;
  int number = 0, slots = 0;
};

template <typename Resident>
int fastest(const flashcore_args &args, const Device &device, Resident resident, Fastest &found) {
  double least = INFINITY;
  int plain = 0, with_masks = 0;
  const Lists there = lists(static_cast<Type>(args.dtype), args.D);
  for (int i = 0; i < there.count; ++i) {
    const Candidates &list = there.list[i];
    for (const Candidate *c = list.first; c != list.first + list.count; ++c) {
      const int each = c->masked ? kMaskedFrom + with_masks++ : ++plain;
      if (c->least_shared > device.shared_bytes || (args.tiling && args.tiling != each)) continue;
      if (c->masked != (masked(args) != 0) && !(c->masked && (args.tiling || kOneTiling))) continue;
      int blocks = 0;
      if (const int error = resident(*c, each, blocks)) return error;
      const double time = cycles(*c, args, device, blocks);
      if (time < least || args.tiling) least = time, found = {c, each, blocks * device.processors};
    }
  }
  return cudaSuccess;
}

int choose(const flashcore_args &args, Choice &last) {
  int number = 0;
  Device device;
  if (const int error = current_device(number, device)) return error;
  if (last.fits(args, number)) return start(*last.best, args, number, last.slots);
  Fastest best;
  const auto resident = [number](const Candidate &c, int, int &blocks) { return prepare(c, number, blocks); };
  if (const int error = fastest(args, device, resident, best)) return error;
  if (!best.tiling) return cudaErrorInvalidValue;
  last = {number, args.B, args.H, args.S_q, args.S_kv, args.D, args.causal, args.tiling, masked(args), best.tiling, best.slots};
  return start(*best.tiling, args, number, best.slots);
}

}  // namespace

#if !TILE_M

#if LIBRARY >= 0

#include <dlfcn.h>

namespace {

char folder[4096];

// A function of another library in the folder; null: it is not built yet. Asked again until it is.
template <typename Function>
Function *function_of(int library, Published<Function *> (&known)[kLibraries], const char *name) {
  Function *found = known[library].load();
  if (found) return found;
  char path[sizeof folder + 32];
  std::snprintf(path, sizeof path, "%s/kernel-%d.so", folder, library);
  void *const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!opened) return nullptr;
  found = reinterpret_cast<Function *>(dlsym(opened, name));
  known[library].store(found);
  return found;
}

Published<decltype(flashcore_forward) *> forwards[kLibraries];
Published<decltype(flashcore_tiling) *> names[kLibraries];
Published<decltype(flashcore_choice) *> choices[kLibraries];

}  // namespace

FLASHCORE_API void flashcore_folder(const char *path) { std::snprintf(folder, sizeof folder, "%s", path); }

#endif

FLASHCORE_API const char *flashcore_tiling(int32_t dtype, int32_t D, int32_t number) {
#if LIBRARY >= 0
  flashcore_args asked = {};
  asked.D = D, asked.tiling = number;
  if (const int library = library_of(asked); library != LIBRARY) {
    const auto tiling = function_of(library, names, "flashcore_tiling");
    return tiling ? tiling(dtype, D, number) : nullptr;
  }
#endif
  static thread_local char name[64];
  const Lists there = lists(static_cast<Type>(dtype), D);
  int plain = 0, with_masks = 0;
  for (int i = 0; i < there.count; ++i)
    for (const Candidate *c = there.list[i].first; c != there.list[i].first + there.list[i].count; ++c) {
      if (number != (c->masked ? kMaskedFrom + with_masks++ : ++plain)) continue;
      int length = 0;
      for (const Sizes *each : {static_cast<const Sizes *>(c), c->rest}) {
        if (!each) continue;
        length += std::snprintf(name + length, sizeof name - length, "%s%dx%dx%d,%d,%d%s%s%s%s%s", length ? "+" : "",
                                each->rows, each->warp_rows, each->keys, each->groups, each->stages,
                                each->pipelined ? "p" : "", each->staggered ? "s" : "", each->tensor_sums ? "t" : "",
                                each->shared_q ? "q" : "", each->masked ? "m" : "");
      }
      return name;
    }
  return nullptr;
}

FLASHCORE_API int flashcore_choice(const flashcore_args *args, const flashcore_device *device, const int32_t *resident) {
#if LIBRARY >= 0
  if (const int library = library_of(*args); library != LIBRARY) {
    const auto choice = function_of(library, choices, "flashcore_choice");
    return choice ? choice(args, device, resident) : 0;
  }
#endif
  Fastest best;
  const auto known = [resident](const Candidate &, int each, int &blocks) {
    blocks = resident[each - 1];
    return cudaSuccess;
  };
  fastest(*args, *device, known, best);
  return best.number;
}

#endif

#endif
