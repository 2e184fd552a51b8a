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
  Prepared &known = c.of_device[number];
  resident = known.resident.load();
  if (resident) return cudaSuccess;
  if (const int error = known.handle.open(c.kernel)) return error;  // two threads may both ask: they write the same
  if (const int error = known.handle.allow(32 * c.warps, c.shared_bytes, resident)) return error;
  resident = resident > 1 ? resident : 1;
  known.resident.store(resident);
  return cudaSuccess;
}

// `slots`: blocks that the device holds at a time.
int start(const Candidate &c, const flashcore_args &args, int number, int slots) {
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
  task.mask = static_cast<const uint8_t *>(args.mask), task.mask_stride = args.mask_stride;
  task.shift = args.causal == 2 ? args.S_kv - args.S_q : 0;
  const uint64_t sharing = args.H / kv_heads;
  task.sharing = sharing == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + sharing - 1) / sharing);
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

// The choice for a shape, remembered by each thread for as long as it calls with that shape.
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

// What there is for a type and head dimension.
struct Lists {
  Candidates list[9];
  int count;
};

Lists lists(Type type, int dim) {
#if TILE_M
  return {{the_only_tiling(type, dim)}, 1};
#else
  if (dim == 80) return {{tilings_for_80(type)}, 1};
  if (dim == 96) return {{tilings_for_96(type)}, 1};
  if (dim == 256) return {{tilings_for_256(type)}, 1};
  if (dim == 128)
    return {{tilings_for_128_of_32_rows(type), tilings_for_128_of_64_rows_staggered(type),
             tilings_for_128_of_64_rows_pipelined(type), tilings_for_128_of_128_rows(type),
             tilings_for_128_with_masks(type)},
            5};
  if (dim != 64) return {{}, 0};
  return {{tilings_of_16_rows(type), tilings_of_32_rows_staggered(type), tilings_of_32_rows_pipelined(type),
           tilings_of_64_rows(type), tilings_of_64_rows_in_groups(type), tilings_of_128_rows(type),
           tilings_of_80_rows(type), tilings_of_128_rows_and_fewer(type), tilings_with_masks(type)},
          9};
#endif
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
  int each = 0;
  const Lists there = lists(static_cast<Type>(args.dtype), args.D);
  for (int i = 0; i < there.count; ++i) {
    const Candidates &list = there.list[i];
    for (const Candidate *c = list.first; c != list.first + list.count; ++c) {
      ++each;
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

FLASHCORE_API const char *flashcore_tiling(int32_t dtype, int32_t D, int32_t number) {
  static thread_local char name[64];
  const Lists there = lists(static_cast<Type>(dtype), D);
  int left = number - 1;
  for (int i = 0; i < there.count && left >= 0; left -= static_cast<int>(there.list[i++].count)) {
    if (left >= static_cast<int>(there.list[i].count)) continue;
    const Candidate &c = there.list[i].first[left];
    int length = 0;
    for (const Sizes *each : {static_cast<const Sizes *>(&c), c.rest}) {
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
