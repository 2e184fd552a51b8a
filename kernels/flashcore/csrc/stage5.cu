// stage5: warps with different jobs. Producer warps only copy, consumer warps only compute, and the blocks stay.
//
// The idea: in a kernel whose every warp loads, waits and computes, each tile starts with all warps at one barrier.
// Here one or two producer warps run ahead and fill a ring of STAGES slots for K and one for V with cp.async; the
// consumer warps, 16 query rows each, copy nothing and never meet each other: each goes its own pace as slots fill, so
// one warp's softmax overlaps another's mma. Blocks are persistent: as many as fit the GPU at once, each walking over
// its share of the row tiles, and the producers fetch the next row tile's keys while the consumers finish the last.
//
// Who waits for whom. Two rings (0: K, 1: V), each with STAGES slots, each slot with two barriers:
//
//   full[ring][slot]   an mbarrier, 32 arrivals a phase: the lanes of the one producer warp that feeds the ring, each
//                      arriving by hardware when its own copies have landed. Consumers wait for it before they read.
//   empty[ring][slot]  a hardware barrier, where each consumer warp arrives after its last read of the slot and goes on
//                      (bar.arrive). The producer meets them there (bar.sync) before it overwrites the slot.
//
// Tiles are numbered on and on over all row tiles of a block; tile n uses slot n % STAGES in round r = n / STAGES. Full
// goes through one phase per round, empty through one more, since the consumers say at the start that all are empty:
//
//   producer, tile n:  meet at empty (phase r); copy; arrive on full
//   consumer, tile n:  wait full (round r over: parity r & 1); read; arrive at empty (phase r + 1)
//
// - Nobody is lapped: full's round r + 1 needs the producer, who needs all consumers' arrivals of round r, each of
//   which comes after that consumer saw full's round r over. So a waiter is never more than one phase behind, one bit
//   of parity is enough, and no warp arrives at empty twice in a phase.
// - Nobody waits forever: both roles take row tiles and tile counts, 0 and 1 included, from one function
//   (for_each_item), so every slot filled is read and every slot waited for gets filled. A producer at tile n waits
//   only for reads of tile n - STAGES, whose K and V were filled before: one producer for both rings makes no cycle.
// - Nothing is left over at the end: the producers meet the consumers' last arrivals at every slot. Then all that was
//   copied has landed and been read, and all barriers are at rest, when shared memory goes to the next block.
//
// Why empty is no mbarrier. An mbarrier counts threads. One lane could arrive for its warp, after __syncwarp(): right
// by PTX's rules, where a release covers what the warp's barrier ordered before it, but racecheck follows each thread's
// own arrivals and reports the reads of the other 31. All 32 could arrive, one by one at the same word, and before
// Hopper behind a fence. bar.arrive is one instruction for the whole warp, without a fence, and a producer that waits
// in bar.sync sleeps instead of asking. A block has 16 of these, enough for the rings; full must stay an mbarrier, for
// it is copies that arrive there, not threads.
//
// NUM_PRODUCER_WARPS = 1: one warp feeds both rings; 2: one each. What this design cannot have before Hopper, and may
// not pay without: one thread that starts a whole tile's copy (TMA), and registers that producers give up to consumers
// (setmaxnreg): here a producer warp holds as many registers as a consumer and uses a few.

#include <algorithm>

#include "mbarrier.cuh"
#include "mma_tiles.cuh"
#include "online_softmax.cuh"
#include "tiles.cuh"

#ifndef TILE_M  // query rows per block, 16 per consumer warp
#define TILE_M 64
#endif
#ifndef TILE_N  // keys per tile
#define TILE_N 64
#endif
#ifndef STAGES  // slots per ring: tiles of K, and of V, in flight or in use
#define STAGES 2
#endif
#ifndef NUM_PRODUCER_WARPS
#define NUM_PRODUCER_WARPS 1
#endif
#ifndef PERSISTENT  // 0: one block per row tile, for comparison
#define PERSISTENT 1
#endif

using namespace flashcore;

namespace {

constexpr int kRings = 2;  // K and V
constexpr int kConsumers = TILE_M / 16;
constexpr int kThreads = 32 * (kConsumers + NUM_PRODUCER_WARPS);
constexpr int kSlotBytes = TILE_N * kRowBytes;
constexpr int kTileBytes = kRings * STAGES * kSlotBytes;
constexpr int kSharedBytes = kTileBytes + kRings * STAGES * 8;  // and full per slot
constexpr int kBarrierThreads = 32 * (kConsumers + 1);                 // threads at empty: the consumers, one producer warp
constexpr int kKeyBlocks = TILE_N / 16;                         // of a tile: what one ldmatrix.x4 and two mma take
constexpr int kDimBlocks = kHeadDim / 16;
// An SM's registers are dealt out to its four quarters by whole warps: 4 warps in a quarter get at most 128 registers a
// thread, 3 get 168, 2 get 255. What a tile's width needs without spilling decides; ptxas left alone guesses.
constexpr int kWarpsPerSm = TILE_N <= 64 ? 16 : 8;
constexpr int kBlocksPerSm = std::max(1, 32 * kWarpsPerSm / kThreads);
constexpr unsigned kGroupKeys = 64 * 1024;  // of the heads worked on at once: 16 MB of K and V, well inside any L2
constexpr int64_t kMaxItems = int64_t{1} << 30;  // so that counting past the last one cannot overflow
static_assert(TILE_M % 16 == 0 && TILE_N % 16 == 0 && STAGES >= 1, "tiles are made of 16 x 16 blocks");
static_assert(NUM_PRODUCER_WARPS == 1 || NUM_PRODUCER_WARPS == 2, "one warp feeds both rings, or each has its own");
static_assert(kRings * STAGES <= 15, "hardware barriers 1 to 15; 0 is __syncthreads()");
static_assert(kSharedBytes <= 99 * 1024, "the most an sm_89 block can have");

// ------------------------------------------------------------------------------------------------ the work
struct Item {
  Place at;   // at.tile: of TILE_M rows
  int tiles;  // of TILE_N keys
};

// The slot of a tile, and the parity of its round.
struct Turn {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// The order of the work, made for L2: heads are taken in groups whose K and V fit it, so each is read from memory once.
// With a causal mask a group's longest row tiles come first, so that the blocks finish on short ones, close together.
__device__ Item item_at(const flashcore_args &a, unsigned index) {  // unsigned: division is half as long
  const unsigned row_tiles = (a.S_q + TILE_M - 1u) / TILE_M, heads = a.H;
  // Without a mask all tiles take equally long, and one head after the other keeps even fewer bytes in use.
  const unsigned per_group = a.causal ? max(1u, kGroupKeys / a.S_kv) : 1u;
  const unsigned first_head = index / row_tiles / per_group * per_group;
  const unsigned group = min(per_group, a.B * heads - first_head);  // the last one may be smaller
  const unsigned within = index - first_head * row_tiles;
  const unsigned head = first_head + within % group;
  const int row_tile = a.causal ? row_tiles - 1 - within / group : within / group;
  const int keys = a.causal ? min(a.S_kv, (row_tile + 1) * TILE_M) : a.S_kv;  // no row of the tile sees any beyond
  const Place at = {row_tile, static_cast<int>(head % heads), static_cast<int>(head / heads)};
  return {at, (keys + TILE_N - 1) / TILE_N};
}

// Every role of a block goes through this loop: the same items, with the same number of tiles in each.
template <typename Body>
__device__ __forceinline__ void for_each_item(const flashcore_args &a, Body body) {
  const int block = blockIdx.x, blocks = gridDim.x;
  const int items = (a.S_q + TILE_M - 1) / TILE_M * a.B * a.H;
  int first = 0;
  bool back = false;
  do {
    // Back and forth over the blocks: who got the longest item of one round gets the shortest of the next.
    const int index = first + (back ? blocks - 1 - block : block);
    if (index < items) body(item_at(a, index));
    first += blocks, back = !back;
  } while (PERSISTENT && first < items);
}

// ------------------------------------------------------------------------------------------------ shared memory
__device__ uint32_t slot_at(uint32_t smem, int ring, int slot) { return smem + (ring * STAGES + slot) * kSlotBytes; }
__device__ uint32_t full_at(uint32_t smem, int ring, int slot) {
  return smem + kTileBytes + (ring * STAGES + slot) * 8;
}
__device__ int empty_id(int ring, int slot) { return 1 + ring * STAGES + slot; }

__device__ void init_barriers(uint32_t smem) {
  for (int ring = 0; ring < kRings; ++ring) {
    for (int slot = 0; slot < STAGES; ++slot) mbarrier_init(full_at(smem, ring, slot), 32);  // the feeding warp's lanes
  }
}

// ------------------------------------------------------------------------------------------------ producers
__device__ __forceinline__ void feed(const flashcore_args &a, uint32_t smem, int ring, const Turn &turn,
                                     const Item &item, int tile, int lane) {
  const __half *head = ring == 0 ? head_of(a.k, a.k_stride, item.at) : head_of(a.v, a.v_stride, item.at);
  const int64_t stride = ring == 0 ? a.k_stride.row : a.v_stride.row;
  barrier_sync(empty_id(ring, turn.slot), kBarrierThreads);
  copy_rows<TILE_N, 32>(slot_at(smem, ring, turn.slot), head, stride, tile * TILE_N, a.S_kv, lane, swizzle);
  mbarrier_arrive_when_copied(full_at(smem, ring, turn.slot));  // and on to the next, without waiting for it
}

__device__ __forceinline__ void produce(const flashcore_args &a, uint32_t smem, int producer, int lane) {
  Turn turn;  // not reset between items: the rings go on
  for_each_item(a, [&](const Item &item) {
    for (int tile = 0; tile < item.tiles; ++tile, turn.next()) {
      if (NUM_PRODUCER_WARPS == 2) {
        feed(a, smem, producer, turn, item, tile, lane);
      } else {
        feed(a, smem, 0, turn, item, tile, lane);  // K first: the consumers want it first
        feed(a, smem, 1, turn, item, tile, lane);
      }
    }
  });
  // A thread must not be gone while its copies are still to arrive on a barrier, nor leave arrivals unmet.
  for (int ring = 0; ring < kRings; ++ring) {
    if (NUM_PRODUCER_WARPS == 2 && ring != producer) continue;
    for (int slot = 0; slot < STAGES; ++slot) barrier_sync(empty_id(ring, slot), kBarrierThreads);
  }
}

// ------------------------------------------------------------------------------------------------ consumers
using Rows = Attended<1, 2 * kDimBlocks>;  // one consumer warp's 16 query rows
using Queries = uint32_t[1][kDimBlocks][4];

// Q goes straight from global memory into fragments: each half is used by one warp only, so shared memory would be a
// detour. Two of these 4-byte loads share a sector, and L1 serves the second.
__device__ __forceinline__ void load_q(Queries &q, const flashcore_args &a, const Item &item, int row, int lane) {
  const uint32_t flip = fold(a.scale).flip;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // the fragment's registers: rows g, g + 8, g, g + 8; columns 2t, 2t, 2t + 8, 2t + 8
    const int r = row + i % 2 * 8;
    const __half *from = head_of(a.q, a.q_stride, item.at) + r * a.q_stride.row + lane % 4 * 2 + i / 2 * 8;
#pragma unroll
    for (int d = 0; d < kDimBlocks; ++d) {
      q[0][d][i] = r < a.S_q ? *reinterpret_cast<const uint32_t *>(from + 16 * d) ^ flip : 0;  // no row: zeros
    }
  }
}

// The warp is done with a slot; its reads come before what the producer does after the barrier.
__device__ __forceinline__ void release(int ring, int slot) { barrier_arrive(empty_id(ring, slot), kBarrierThreads); }

__device__ __forceinline__ void consume(const flashcore_args &a, uint32_t smem, int warp, int lane) {
  const float factor = fold(a.scale).factor;
  for (int ring = 0; ring < kRings; ++ring) {
    for (int slot = 0; slot < STAGES; ++slot) release(ring, slot);  // all are empty
  }
  Turn turn;  // goes the producers' way, tile by tile
  for_each_item(a, [&](const Item &item) {
    const int warp_row = item.at.tile * TILE_M + 16 * warp, row = warp_row + lane / 4;
    Queries q;
    load_q(q, a, item, row, lane);  // meanwhile the producers have been filling the rings for this item
    Rows rows;
    rows.clear();
    for (int tile = 0; tile < item.tiles; ++tile, turn.next()) {
      float s[1][2 * kKeyBlocks][4];
      mbarrier_wait(full_at(smem, 0, turn.slot), turn.parity);
      multiply_qk(s, q, slot_at(smem, 0, turn.slot), lane, swizzle);
      release(0, turn.slot);  // K's next tile may come while this one's softmax is computed
      if ((tile + 1) * TILE_N > seen_by(a, warp_row)) mask(s, tile * TILE_N, warp_row, a.S_kv, a.causal, lane);
      uint32_t p[kKeyBlocks][1][4];
      rows.softmax(p, s, factor);
      mbarrier_wait(full_at(smem, 1, turn.slot), turn.parity);
      multiply_pv(rows.out, p, slot_at(smem, 1, turn.slot), lane, swizzle);
      release(1, turn.slot);
    }
    const float scale[2] = {rows.last_scale(0, 0), rows.last_scale(0, 1)};
    store<Type::kHalf>(rows.out[0], scale, head_of(a.o, a.o_stride, item.at), a.o_stride.row, row, a.S_q, 0, lane);
  });
}

}  // namespace

static __global__ void __launch_bounds__(kThreads, kBlocksPerSm) flashcore_stage5(const flashcore_args a) {
  const uint32_t smem = shared_address(dynamic_shared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) init_barriers(smem);
  __syncthreads();  // the only time all warps meet
  if (warp < kConsumers) {
    consume(a, smem, warp, lane);
  } else {
    produce(a, smem, warp - kConsumers, lane);
  }
}

// How many blocks the current device holds at once; asked once per device, since the questions take microseconds.
static int resident_blocks(int64_t *blocks) {
  static std::atomic<int> known[64];
  int device = 0, processors = 0, per_processor = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  *blocks = known[device % 64].load();
  if (*blocks > 0) return cudaSuccess;
  const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;  // or more than 48 KB would seem not to fit
  if (const cudaError_t error = cudaFuncSetAttribute(flashcore_stage5, shared, kSharedBytes)) return error;
  const auto count = cudaDevAttrMultiProcessorCount;
  if (const cudaError_t error = cudaDeviceGetAttribute(&processors, count, device)) return error;
  if (const cudaError_t error =
          cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, flashcore_stage5, kThreads, kSharedBytes)) {
    return error;
  }
  if (per_processor == 0) return cudaErrorInvalidConfiguration;
  *blocks = processors * per_processor;
  known[device % 64].store(static_cast<int>(*blocks));
  return cudaSuccess;
}

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const int64_t items = tiles_of(args->S_q, TILE_M) * args->B * args->H;
  if (items > kMaxItems) return cudaErrorInvalidValue;
  int64_t blocks = items;
  if (PERSISTENT) {
    if (const int error = resident_blocks(&blocks)) return error;
    blocks = std::min(blocks, items);
  }
  return launch<flashcore_stage5>(*args, blocks, kThreads, kSharedBytes);
}
