// stage5: warps with different jobs. Producer warps only copy, consumer warps only compute, and the blocks stay.
//
// The idea: in a kernel whose every warp loads, waits and computes, each tile starts with all warps at one barrier. Here
// one or two producer warps run ahead and fill a ring of STAGES slots for K and one for V with cp.async; the consumer
// warps, 16 query rows each, never issue a copy and never meet each other: each goes its own pace as slots fill, so one
// warp's softmax overlaps another's mma. Blocks are persistent: as many as fit the GPU at once, each walking through its
// share of the row tiles, and the producers fetch the next row tile's keys while the consumers finish the last.
//
// Who waits for whom. Two rings (0: K, 1: V), each with STAGES slots, each slot with two mbarriers:
//
//   full[ring][slot]   32 arrivals a phase: the lanes of the one producer warp that feeds the ring, each arriving by
//                      hardware when its own copies have landed. Consumers wait for it before they read the slot.
//   empty[ring][slot]  one arrival a phase per consumer warp, by one lane after the warp's last read of the slot. The
//                      producer waits for it before it overwrites the slot.
//
// Tiles are numbered on and on over all row tiles of a block; tile n uses slot n % STAGES in round r = n / STAGES, and
// each barrier goes through one phase per round:
//
//   producer, tile n:  wait empty (round r - 1 over: parity (r & 1) ^ 1, true at once for r = 0); copy; arrive on full
//   consumer, tile n:  wait full (round r over: parity r & 1); read; arrive on empty
//
// - Nobody is lapped: full's round r + 1 needs the producer, who needs all consumers' arrivals of round r, each of which
//   comes after that consumer saw full's round r over. So a waiter is never more than one phase behind and one bit of
//   parity is enough.
// - Nobody waits forever: producers and consumers take row tiles and tile counts from the same function (for_each_item),
//   0 and 1 tiles included, so every slot filled is read and every slot waited for is filled. The K and V rings do not
//   wait for each other, and a consumer empties K's slot before it waits for V's, so one producer for both, which fills
//   them in that order, is no cycle either.
// - Nothing is left over at the end: every copy's landing was waited for by the consumers, who leave last.
//
// NUM_PRODUCER_WARPS = 1: one warp feeds both rings; 2: one each. What this design cannot have before Hopper: one thread
// that starts a whole tile's copy (TMA), and registers that producers give to consumers (setmaxnreg).

#include <atomic>
#include <cuda_fp16.h>
#include <math_constants.h>

#include "flashcore.h"
#include "mbarrier.cuh"
#include "tensor.cuh"

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

namespace {

constexpr int kHeadDim = 64;
constexpr int kRings = 2;  // K and V
constexpr int kConsumers = TILE_M / 16;
constexpr int kWarps = kConsumers + NUM_PRODUCER_WARPS;
constexpr int kThreads = 32 * kWarps;
constexpr int kRowBytes = kHeadDim * 2;             // 128: eight 16-byte chunks, a full turn of the banks
constexpr int kSlotBytes = TILE_N * kRowBytes;
constexpr int kBarriers = kRings * kRings * STAGES;  // full and empty, per ring and slot
constexpr int kSharedBytes = kRings * STAGES * kSlotBytes + kBarriers * 8;
constexpr unsigned kProducerPause = 40;  // ns between a producer's looks at a slot still in use: far below a tile's time
constexpr int kMaxDevices = 64;
static_assert(TILE_M % 16 == 0 && TILE_N % 16 == 0 && STAGES >= 1, "tiles are made of 16 x 16 blocks");
static_assert(NUM_PRODUCER_WARPS == 1 || NUM_PRODUCER_WARPS == 2, "one warp feeds a ring, or both");
static_assert(kSharedBytes <= 99 * 1024, "the most an sm_89 block can have");

// What the launch knows and the kernel would otherwise work out again in every thread.
struct Plan {
  int items;            // row tiles over all batches and heads
  int row_tiles;        // per head
  int heads_per_group;  // heads whose row tiles are taken together
  float scale_log2;     // |scale| * log2(e): exp(scale * x) is exp2 of one multiply-add
  uint32_t q_sign;      // flips two halves' signs where scale is negative, so that larger scores still weigh more
};

struct Item {
  int batch, head, first_row, tiles;
};

struct Turn {  // the slot of a tile and the parity of its round
  int slot = 0;
  uint32_t parity = 0;
  __device__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// The order of the work, made for L2: heads are taken in groups whose K and V fit it, so each is read from memory once.
// With a causal mask a group's longest row tiles come first, and what is left to balance at the end is short.
__device__ Item item_at(const flashcore_args &a, const Plan &plan, int index) {
  const int group = index / (plan.heads_per_group * plan.row_tiles);
  const int first_head = group * plan.heads_per_group;
  const int heads = min(plan.heads_per_group, a.B * a.H - first_head);  // the last group may be smaller
  const int within = index - first_head * plan.row_tiles;
  const int head = first_head + within % heads;
  const int row_tile = a.causal ? plan.row_tiles - 1 - within / heads : within / heads;
  const int first_row = row_tile * TILE_M;
  const int keys = a.causal ? min(a.S_kv, first_row + TILE_M) : a.S_kv;  // beyond these, no row of the tile sees any
  return {head / a.H, head % a.H, first_row, (keys + TILE_N - 1) / TILE_N};
}

// Every role of a block goes through this loop: the same items, the same number of tiles in each.
template <typename Body>
__device__ __forceinline__ void for_each_item(const flashcore_args &a, const Plan &plan, Body body) {
  const int block = blockIdx.x, blocks = gridDim.x;
  if (!PERSISTENT) return body(item_at(a, plan, block));
  for (int first = 0, round = 0; first < plan.items; first += blocks, ++round) {
    // Back and forth over the blocks: who got the longest item of one round gets the shortest of the next.
    const int index = first + (round % 2 ? blocks - 1 - block : block);
    if (index < plan.items) body(item_at(a, plan, index));
  }
}

__device__ const __half *head_of(const void *base, const flashcore_strides &stride, const Item &item) {
  return static_cast<const __half *>(base) + item.batch * stride.batch + item.head * stride.head;
}

__device__ uint32_t slot_of(uint32_t smem, int ring, int slot) { return smem + (ring * STAGES + slot) * kSlotBytes; }
__device__ uint32_t full_of(uint32_t smem, int ring, int slot) {
  return smem + kRings * STAGES * kSlotBytes + (ring * STAGES + slot) * 16;
}
__device__ uint32_t empty_of(uint32_t smem, int ring, int slot) { return full_of(smem, ring, slot) + 8; }

// One tile into one slot: 8 lanes per row, so that a warp's 32 copies are 4 whole rows of 128 bytes.
__device__ __forceinline__ void copy_tile(uint32_t slot, const __half *rows, int64_t stride, int first, int count) {
  const int chunk = threadIdx.x % 8;
#pragma unroll
  for (int i = 0; i < TILE_N / 4; ++i) {
    const int row = (threadIdx.x % 32) / 8 + 4 * i;
    // Rows past the end are filled with zeros and not read: a weight of 0 times leftover NaN would be NaN.
    cp_async_16(slot + swizzle(row, chunk), rows + (first + row) * stride + 8 * chunk, first + row < count);
  }
}

__device__ __forceinline__ void produce(const flashcore_args &a, const Plan &plan, uint32_t smem, int producer) {
  Turn turn;  // not reset between items: the rings go on
  for_each_item(a, plan, [&](const Item &item) {
    for (int tile = 0; tile < item.tiles; ++tile, turn.next()) {
#pragma unroll
      for (int ring = 0; ring < kRings; ++ring) {
        if (ring % NUM_PRODUCER_WARPS != producer) continue;
        const __half *rows = ring == 0 ? head_of(a.k, a.k_stride, item) : head_of(a.v, a.v_stride, item);
        const int64_t stride = ring == 0 ? a.k_stride.row : a.v_stride.row;
        mbarrier_wait(empty_of(smem, ring, turn.slot), turn.parity ^ 1, kProducerPause);
        copy_tile(slot_of(smem, ring, turn.slot), rows, stride, tile * TILE_N, a.S_kv);
        mbarrier_arrive_when_copied(full_of(smem, ring, turn.slot));
      }
    }
  });
}

}  // namespace
