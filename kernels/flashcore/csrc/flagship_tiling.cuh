// A tiling of flagship.cu, which blocks it makes, and how their tiles come to shared memory.
#ifndef FLASHCORE_FLAGSHIP_TILING_CUH
#define FLASHCORE_FLAGSHIP_TILING_CUH

#include "mma_tiles.cuh"

#ifndef SWIZZLE  // 0, to see what bank conflicts cost
#define SWIZZLE 1
#endif

namespace flashcore {

#if defined(TILE_M) && TILE_M
constexpr bool kOneTiling = true;  // whoever asks for one gets it wherever it can run
#else
constexpr bool kOneTiling = false;
#endif

// The most shared memory that a block of the architecture that is compiled for can have.
#if !defined(__CUDA_ARCH__)
constexpr uint32_t kMostShared = UINT32_MAX;
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr uint32_t kMostShared = 99 * 1024;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
constexpr uint32_t kMostShared = 163 * 1024;
#else
constexpr uint32_t kMostShared = 227 * 1024;
#endif

// What a launch needs to know, prepared on the host. Strides in elements of 2 bytes.
struct Task {
  const uint16_t *q, *k, *v;
  uint16_t *o;
  flashcore_strides q_stride, k_stride, v_stride, o_stride;
  float factor;   // from scores to powers of 2, positive
  uint32_t flip;  // xor onto two packed values of Q: the sign of the scale
  int S_q, S_kv, causal;
  // Query heads that share a head of K and V, to divide by: (head * multiplier) >> 32 is exact for heads below 2^16.
  uint32_t sharing;
  // Of a launch with two tilings: blocks of the first one, row tiles of a head, heads.
  uint32_t whole, tiles, heads;
  // Of a tiling that is Masked, and of no other: which keys are seen, or null; S_kv - S_q if the diagonal of a causal mask
  // ends in the lower right corner, else 0.
  const uint8_t *mask;
  flashcore_strides mask_stride;
  int shift;
};

#ifndef KERNEL_ALONE

// What all launches' tasks have of their arguments.
inline void take_args(Task &task, const flashcore_args &args) {
  take_tensors(task, args);
  task.S_q = args.S_q, task.S_kv = args.S_kv;
  const uint64_t sharing = args.H_kv ? args.H / args.H_kv : 1;
  task.sharing = sharing == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + sharing - 1) / sharing);
  task.mask = static_cast<const uint8_t *>(args.mask), task.mask_stride = args.mask_stride;
}

#endif

// Which row tile of which head. Without a mask consecutive blocks share a head, so that its K and V come from L2. With
// it the tiles of all heads of a batch that see the most keys start first, and the short ones fill the gaps.
struct Spot {
  unsigned tile, head, batch;
};

__device__ __forceinline__ Spot spot(const Task &task) {
  if (task.causal) return {gridDim.y - 1 - blockIdx.y, blockIdx.x, blockIdx.z};
  return {blockIdx.x, blockIdx.y, blockIdx.z};
}

template <typename T>
__device__ __forceinline__ T *head_at(T *base, const flashcore_strides &stride, unsigned batch, unsigned head) {
  return base + static_cast<uint64_t>(batch) * stride.batch + static_cast<uint64_t>(head) * stride.head;
}

// Shared memory of a block: queries, what groups tell each other of their rows (maximum and sum), rings of K and V.
constexpr uint32_t shared_bytes_of(int dim, int rows, int keys, int groups, int stages) {
  return rows * dim * 2 + (groups > 1 ? groups * rows * 8 : 0) + groups * 2 * stages * keys * dim * 2;
}

// Row sums by the tensor cores: where those have time to spare, in place of additions.
constexpr int kNever = 0, kAlways = 1, kWhereFast = 2;

template <Type TYPE, int DIM, int ROWS, int ROWS_OF_WARP, int KEYS, int GROUPS, int RING, bool OVERLAP, int BLOCKS = 0,
          bool LATE_HALF = false, int ONES = kNever, bool READ_Q = false>
struct Tiling {
  static constexpr Type kType = TYPE;
  static constexpr int kDim = DIM, kTileM = ROWS, kWarpRows = ROWS_OF_WARP, kTileN = KEYS;
  static constexpr int kGroups = GROUPS, kStages = RING, kMinBlocks = BLOCKS;
  static constexpr bool kPipelined = OVERLAP, kStaggered = LATE_HALF, kSharedQ = READ_Q;
  static constexpr int kOnes = ONES;
  static constexpr bool kMasked = false, kPadded = false, kTwice = false;  // flagship_mask.cuh
  static constexpr bool kScored = false, kWindowed = false;                // flagship_score.cuh
  static constexpr bool kSpan = false;  // whether its rows may see other keys than those before their end: any of the above
  static constexpr bool kTensorSums = ONES == kAlways || (ONES == kWhereFast && kFastTensor);

  static constexpr int kRowGroups = kTileM / kWarpRows;  // warps of a group
  static constexpr int kGroupThreads = 32 * kRowGroups, kThreads = kGroupThreads * kGroups;
  static constexpr int kRowTiles = kWarpRows / 16, kKeyTiles = kTileN / 8;  // of mma
  static constexpr int kDepthTiles = kDim / 16, kOutTiles = kDim / 8;
  // Column tiles that a group of several keeps in registers to merge them for all, if an exclusive or can turn their numbers.
  // (Warps of 32 rows, and where queries are read again, are short of registers.)
  static constexpr bool kTurns = kGroups > 1 && kWarpRows == 16 && !kSharedQ && (kOutTiles & (kOutTiles - 1)) == 0;
  static constexpr int kOwn = kTurns ? kOutTiles / kGroups : 0;
  static constexpr int kRow = kDim * 2, kRowChunks = kRow / 16;  // bytes and 16-byte chunks of a row
  // As many of a row's chunks as are a power of two are copied side by side, then, at D = 80 and 96, the 2 or 4 behind.
  static constexpr int kLine = (kRowChunks & (kRowChunks - 1)) == 0 ? kRowChunks : 8;
  static constexpr int kBehind = kRowChunks - kLine, kLines = kBehind ? 2 : 1;

  static constexpr uint32_t kTileBytes = kTileN * kRow;
  static constexpr uint32_t kRingBytes = 2 * kStages * kTileBytes;  // K and V of one group
  static constexpr uint32_t kQBytes = kTileM * kRow;
  static constexpr uint32_t kRowStateBytes = kGroups > 1 ? kGroups * kTileM * 8 : 0;  // maximum and sum
  static constexpr uint32_t kSharedBytes = kQBytes + kRowStateBytes + kGroups * kRingBytes;
  // Whether its threads keep where they are in K and V from tile to tile. Groups of few threads have no registers for it.
  // (16 rows a warp and a last pass that is not full: 1.18 times as slow with it at D = 80 on an H200; 32 rows: 0.94.)
  static constexpr bool kFull = kLines == 1 || kTileN % (kGroupThreads / kBehind) == 0;
  static constexpr bool kWalks = kGroupThreads >= 128 && kTileN % (kGroupThreads / kLine) == 0 && (kFull || kWarpRows > 16);
  // Of a device that may choose it among others. Queries read in each step by warps of 32 rows keep fast tensor cores supplied
  // (an mma in 8 cycles or less: 8.0, 9.0); those of 8.6 and 8.9, whose blocks have 99 KB at most, take 16 and want for
  // nothing. (Warps of 16 rows have no registers for them at D = 256.)
  static constexpr bool kForFastTensor = kSharedQ && kWarpRows > 16;
  static constexpr uint32_t kLeastShared = kForFastTensor && kSharedBytes < 100 * 1024 ? 100 * 1024 : kSharedBytes;

  static_assert(kSharedBytes == shared_bytes_of(kDim, kTileM, kTileN, kGroups, kStages), "as the host reckons it");
  static_assert(kTileM % kWarpRows == 0 && kWarpRows % 16 == 0 && kTileN % 16 == 0, "whole mma tiles");
  static_assert(kThreads <= 1024 && kOutTiles % kGroups == 0 && kGroups < 16, "columns and barriers to share out");
  static_assert(!kPipelined || kStages >= 2, "the next K is needed during this step");
  static_assert(!kStaggered || (kGroups % 2 == 0 && kGroups <= 8), "two halves, barrier 15 unused");
  // Where its keys and values were, if it does not fit where its keys were.
  static constexpr bool kFitsKeys = kTileM * kDim * 4 <= kStages * kTileBytes;
  // Whether a warp may be done, and leave its output there, while another one of its group still reads: values, or keys.
  // (A plain step of several stages has one barrier, before its scores; a causal mask lets some warps skip the last.)
  static constexpr bool kReadToTheEnd = !kFitsKeys || (!kPipelined && kStages > 1);
  static_assert(kGroups == 1 || kTileM * kDim * 4 <= kRingBytes, "a group's output fits where its tiles were");
};

// Two tilings of one launch: of what is left of a full device, a tile of the first is divided into kParts of the second.
template <typename C, typename Rest>
struct Together {
  static_assert(C::kThreads == Rest::kThreads && C::kTileM % Rest::kTileM == 0, "parts of a tile, by as many threads");
  static constexpr unsigned kParts = C::kTileM / Rest::kTileM;
  static constexpr bool kMore = Rest::kSharedBytes > C::kSharedBytes;
  static constexpr uint32_t kSharedBytes = kMore ? Rest::kSharedBytes : C::kSharedBytes;
  // Where a multiprocessor has 100 KB, more for the rest would leave room for fewer blocks of the first.
  static constexpr uint32_t kLeastShared = kMore && kSharedBytes < 100 * 1024 ? 100 * 1024 : kSharedBytes;
};

// A number as an argument whose value the compiler knows.
template <int VALUE>
struct Number {
  static constexpr int value = VALUE;
};

// Byte offset of a chunk in a tile. The same chunk of 8 rows, which ldmatrix reads at once, touches each bank once: rows that
// begin in the same bank have it at another place. Rows of 128, 256 and 512 bytes all begin in bank 0, and 3 bits of the
// chunk's number change; of 192 bytes each second row does (2 bits), of 160 bytes each fourth (1 bit).
template <typename C>
__device__ __forceinline__ uint32_t place_of(uint32_t row, uint32_t chunk) {
  constexpr uint32_t kEven = C::kRowChunks & -C::kRowChunks;  // the largest power of two that divides it
  constexpr uint32_t kPlaces = kEven < 8 ? kEven : 8, kEach = 8 / kPlaces;
  return row * C::kRow + ((SWIZZLE ? chunk ^ row / kEach % kPlaces : chunk) << 4);
}

// Where `thread` of THREADS begins to read a head's rows from `first` on.
template <typename C, int THREADS, int FIRST = 0, int LINE = C::kLine>
__device__ __forceinline__ const uint16_t *begin_of(const uint16_t *head, int64_t stride, unsigned first, unsigned thread) {
  return head + static_cast<uint64_t>(first + thread / LINE) * stride + (FIRST + thread % LINE) * 8;
}

// Begin to copy rows first .. first + ROWS - 1 of a head, the first of them `from` on for this thread; those from `end` on become
// zeros and are not read. (The chunks from FIRST on, LINE side by side.)
template <typename C, int ROWS, int THREADS, int FIRST = 0, int LINE = C::kLine>
__device__ __forceinline__ void copy_lines(uint32_t tile, const uint16_t *from, int64_t stride, unsigned first, unsigned end,
                                           unsigned thread) {
  constexpr unsigned kPass = THREADS / LINE;  // rows at a time
  const unsigned row = thread / LINE, chunk = FIRST + thread % LINE;
#pragma unroll
  for (unsigned down = 0; down < ROWS; down += kPass, from += kPass * stride) {
    if (ROWS % kPass == 0 || row + down < ROWS)
      cp_async_16(tile + place_of<C>(row + down, chunk), from, first + row + down < end);
  }
}

// The same by a thread that does not know where it begins, and the chunks behind.
template <typename C, int ROWS, int THREADS, int FIRST = 0, int LINE = C::kLine>
__device__ __forceinline__ void copy_rows_of(uint32_t tile, const uint16_t *head, int64_t stride, unsigned first,
                                             unsigned end, unsigned thread) {
  const uint16_t *from = begin_of<C, THREADS, FIRST, LINE>(head, stride, first, thread);
  copy_lines<C, ROWS, THREADS, FIRST, LINE>(tile, from, stride, first, end, thread);
  if constexpr (FIRST + LINE < C::kRowChunks)
    copy_rows_of<C, ROWS, THREADS, C::kLine, C::kBehind>(tile, head, stride, first, end, thread);
}

// The chunks from FIRST on, LINE side by side, by a thread that knows where its first one is. Of the tile, `left` rows exist:
// nearly always all, and then no row is looked at; the last tile goes row by row, in a loop kept small. (Not at the limit of
// registers: a branch costs some.)
template <typename C, int ROWS, int THREADS, int FIRST = 0, int LINE = C::kRowChunks>
__device__ __forceinline__ void copy_rows_from(uint32_t tile, const uint16_t *from, int64_t stride, int left,
                                               unsigned thread) {
  constexpr unsigned kPass = THREADS / LINE;
  const unsigned row = thread / LINE, chunk = FIRST + thread % LINE;
  const auto mine = [&](unsigned down) { return ROWS % kPass == 0 || row + down < ROWS; };
  if (C::kSharedQ) {
#pragma unroll
    for (unsigned down = 0; down < ROWS; down += kPass, from += kPass * stride)
      if (mine(down)) cp_async_16(tile + place_of<C>(row + down, chunk), from, static_cast<int>(row + down) < left);
  } else if (left >= ROWS) {
#pragma unroll
    for (unsigned down = 0; down < ROWS; down += kPass, from += kPass * stride)
      if (mine(down)) cp_async_16(tile + place_of<C>(row + down, chunk), from, true);
  } else {
#pragma unroll 1
    for (unsigned down = 0; down < ROWS; down += kPass, from += kPass * stride)
      if (mine(down)) cp_async_16(tile + place_of<C>(row + down, chunk), from, static_cast<int>(row + down) < left);
  }
}

// A warp's queries: rows `first` on of a tile in shared memory; `flip` is the sign of the scale.
struct Queries {
  uint32_t tile;
  int first;
  uint32_t flip;
};

template <typename C>
__device__ __forceinline__ void read_q(uint32_t (&q)[4], const Queries &queries, int i, int k, int lane) {
  const uint32_t flip = C::kSharedQ ? 0 : queries.flip;  // else flipped where they lie
  load_q(q, queries.tile, queries.first + 16 * i, k, flip, lane, place_of<C>);
}

// Give a tile of queries that is read in each step the sign of the scale, once, by all threads; it is here, for all.
template <typename C>
__device__ __forceinline__ void flip_tile(unsigned char *tile, uint32_t flip, unsigned thread) {
  if (flip == 0) return;
  for (unsigned at = thread * 16; at < C::kQBytes; at += C::kThreads * 16) {
    auto *chunk = reinterpret_cast<uint4 *>(tile + at);
    const uint4 x = *chunk;
    *chunk = make_uint4(x.x ^ flip, x.y ^ flip, x.z ^ flip, x.w ^ flip);
  }
  __syncthreads();
}

}  // namespace flashcore

#endif
