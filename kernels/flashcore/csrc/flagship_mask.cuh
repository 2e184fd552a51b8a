// Boolean masks for flagship.cu: a tiling that is Masked takes one byte per key, or per query and key, 0 for what is not
// seen, and a causal mask whose diagonal ends in the lower right corner.
//
// A mask of keys alone (its rows are one: padding, left or right) is looked through once, by each warp, before anything
// is copied: tiles before the first key that is seen and behind the last one are left out, and if there are no holes
// between them no byte is read again but those of the first tile. Any other mask is read tile by tile; a warp whose rows see
// no key of a tile leaves it out, and one whose rows see all is not delayed further.
// A row that sees no key becomes zeros.
#ifndef FLASHCORE_FLAGSHIP_MASK_CUH
#define FLASHCORE_FLAGSHIP_MASK_CUH

#include "flagship_tiling.cuh"

namespace flashcore {

template <typename C>
struct Masked : C {
  static constexpr bool kMasked = true, kSpan = true;
  static_assert(C::kTileN == 64, "16 keys for each lane of a quad");
};

// What sees all keys from one on, as behind padding: no byte is looked at again.
template <typename C>
struct Padded : C {
  static constexpr bool kPadded = true, kSpan = true;
  static_assert(C::kPipelined && C::kGroups == 1, "the first tile is apart from the others");
};

// A Masked tiling whose blocks take another one, Padded, where there are no holes between the keys that they see.
template <typename C, typename Other>
struct Twice : Masked<C> {
  static constexpr bool kTwice = true;
  using WithoutHoles = Padded<Other>;
  static_assert(C::kThreads == Other::kThreads && C::kTileM == Other::kTileM && C::kSharedBytes == Other::kSharedBytes);
};

// Bit n: whether byte n is not 0.
__device__ __forceinline__ uint32_t seen_of(const uint4 &bytes) {
  const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
  uint32_t seen = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t ones = ((((words[i] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | words[i]) & 0x80808080u) >> 7;
    seen |= (ones * 0x10204080u >> 28) << (4 * i);  // the lowest bits of 4 bytes, side by side
  }
  return seen;
}

// The same of 16 bytes, of which `left` exist; `whole`: those that start at multiples of 16 may be read at once.
__device__ __forceinline__ uint32_t seen_of_16(const uint8_t *from, int left, bool whole) {
  if (whole && left >= 16) return seen_of(*reinterpret_cast<const uint4 *>(from));
  uint32_t seen = 0;
#pragma unroll 1
  for (int n = 0; n < 16 && n < left; ++n) seen |= (from[n] != 0 ? 1u : 0u) << n;
  return seen;
}

// The keys that rows of a block may see, from the beginning of a tile on; the mask's bytes count in tiles that begin before
// `read_to`.
struct Span {
  int first, end, read_to;
  bool holes;  // else rows see all keys from read_to to the end
};

// Of a mask's head: where its bytes are, and whether 16 of them may be read at once.
struct Bytes {
  const uint8_t *head;
  int64_t row;
  bool whole;
};

__device__ __forceinline__ Bytes bytes_of(const Task &task, const Spot &at) {
  const uint8_t *head = head_at(task.mask, task.mask_stride, at.batch, at.head);
  return {head, task.mask_stride.row, (reinterpret_cast<uint64_t>(head) | task.mask_stride.row) % 16 == 0};
}

__device__ __forceinline__ Span span_of(const Task &task, const Spot &at, int end, int tile_keys, int lane) {
  const Bytes mask = bytes_of(task, at);
  if (!task.mask) return {0, end, 0, false};
  if (mask.row != 0) return {0, end, end, true};
  constexpr int kAtOnce = 4, kPass = 16 * 32;
  int from = end, to = 0, count = 0;
  for (int first = 16 * lane; first < end; first += kAtOnce * kPass) {
    const auto whole = [&](int key) { return mask.whole && key + 16 <= end; };
    uint4 bytes[kAtOnce];  // all on their way at once
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int key = first + i * kPass;
      bytes[i] = whole(key) ? *reinterpret_cast<const uint4 *>(mask.head + key) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int key = first + i * kPass;
      const uint32_t seen = whole(key) ? seen_of(bytes[i]) : seen_of_16(mask.head + key, end - key, false);
      if (seen) from = min(from, key + __ffs(seen) - 1), to = key + 32 - __clz(seen);
      count += __popc(seen);
    }
  }
  to = __reduce_max_sync(kAllLanes, to), count = __reduce_add_sync(kAllLanes, count);
  from = min(__reduce_min_sync(kAllLanes, from), to);
  const bool holes = count != to - from;
  return {from / tile_keys * tile_keys, to, holes ? to : from, holes};
}

// Which keys of a tile a warp's rows see. Of row g + 8 * h of row tile i a lane has 16 keys, those from 16 * (lane % 4) on, in
// bits 16 * h and up of rows[i]. `any`, `all`: of all rows together.
template <typename C>
struct Seen {
  uint32_t rows[C::kRowTiles];
  bool any = true, all = true;
};

template <typename C>
__device__ __forceinline__ Seen<C> seen_of(const Task &task, const Spot &spot, const Span &span, int key, int row,
                                           int lane) {
  Seen<C> seen;
  if (key >= span.read_to) return seen;
  const Bytes mask = bytes_of(task, spot);
  const int at = key + lane % 4 * 16;
  uint32_t some = 0, every = ~0u;
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i) {
    if (mask.row != 0) {
      seen.rows[i] = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t down = min(row + 16 * i + lane / 4 + 8 * h, task.S_q - 1);
        seen.rows[i] |= seen_of_16(mask.head + down * mask.row + at, span.end - at, mask.whole) << (16 * h);
      }
    } else {
      seen.rows[i] = i ? seen.rows[0] : seen_of_16(mask.head + at, span.end - at, mask.whole) * 0x10001u;
    }
    some |= seen.rows[i], every &= seen.rows[i];
  }
  seen.any = __any_sync(kAllLanes, some != 0), seen.all = __all_sync(kAllLanes, every == ~0u);
  return seen;
}

// -inf for scores of keys that are not seen. The lanes of a quad tell each other of their keys.
template <typename C>
__device__ __forceinline__ void hide(float (&s)[C::kRowTiles][C::kKeyTiles][4], const Seen<C> &seen, int lane) {
#pragma unroll
  for (int i = 0; i < C::kRowTiles; ++i)
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const uint32_t of_16 = __shfl_sync(kAllLanes, seen.rows[i], lane / 4 * 4 + part) >> (lane % 4 * 2);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (!(of_16 >> (16 * h + 8 * n + e) & 1)) s[i][2 * part + n][2 * h + e] = -CUDART_INF_F;
    }
}

}  // namespace flashcore

#endif
