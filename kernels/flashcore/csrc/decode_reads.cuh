// How a lane of decode.cu reads tiles of keys and values, from the rows of a head or from pages of a cache.
#ifndef FLASHCORE_DECODE_READS_CUH
#define FLASHCORE_DECODE_READS_CUH

#include "flagship_tiling.cuh"
#include "online_softmax.cuh"

namespace flashcore {

// An instruction; the tests emulate it (tests/support/cuda_on_cpu/cuda_on_cpu.h).
#ifndef CUDA_ON_CPU

// 16 bytes that nobody writes meanwhile and nobody here reads again: in this order, as early as it is written. (.nc says that
// nobody writes them while the kernel runs: what a launch reads that begins before the one ahead has ended, that one may write.)
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define READ_ONLY
#else
#define READ_ONLY ".nc"
#endif
__device__ __forceinline__ void load_16(uint32_t (&to)[4], const void *from) {
  asm volatile("ld.global" READ_ONLY ".L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}

#endif

constexpr bool kPaged = PAGED;

// Tiles as a lane has them: of keys 8n + 2 * (lane / 8) and the next one 8 dimensions of each 64, or, if there are more than 8
// rows, of key 8n + g of each 32; of values 8n + 2t and 8n + 2t + 1 8 dimensions of each 64.
template <typename C>
using Keys = uint32_t[C::kKeyTiles][C::kDim / 32][4];
template <typename C>
using Values = uint32_t[C::kKeyTiles][2][C::kDim / 64][4];

// Where rows of a head are: from `head` on, or in pages, which `table` has in order. 16 keys are in one page.
struct Place {
  const uint16_t *head;
  flashcore_strides stride;  // batch: from page to page
};

// Pages of a tile, of each 16 keys.
template <typename C>
struct Pages {
  static constexpr int kCount = kPaged ? C::kKeys / 16 : 1;
  int page[kCount];

  // Once it is known how many keys there are: what is read in place of those behind the last one is of its 16.
  __device__ __forceinline__ void settle(int key, int keys) {
#pragma unroll
    for (int i = 1; i < kCount; ++i)
      if (key + 16 * i >= keys) page[i] = page[i - 1];
  }

  // Of the tile that begins with `key`, the 16 keys number `i`: the row of number `at` among them.
  __device__ __forceinline__ const uint16_t *row(const Place &place, int shift, int key, int keys, int i, int at) const {
    if constexpr (!kPaged) return place.head + static_cast<uint64_t>(min(key + 16 * i + at, keys - 1)) * place.stride.row;
    const int first = min(key + 16 * i, (keys - 1) / 16 * 16), within = first & ((1 << shift) - 1);
    const uint16_t *const base = place.head + page[i] * place.stride.batch + within * place.stride.row;
    return base + static_cast<uint64_t>(min(at, keys - 1 - first)) * place.stride.row;
  }
};

// The pages of a warp's tiles, one after the other: those of kTiles tiles, of 16 keys a lane, are here, those of the next as
// many on their way. (Reads come back in the order in which a multiprocessor begins them. A page that is asked for when it is
// needed comes behind all keys and values that are on their way: 10 % of the time at D = 64.)
template <typename C>
struct Table {
  static constexpr int kCount = Pages<C>::kCount, kTiles = 32 / kCount;
  const int *pages;
  int shift, step, lane, at = 0, now = 0, next = 0;
  unsigned last;  // key for which there is an entry

  // Of tiles `tile`, tile + step .. The pages of those behind the last key are anything.
  __device__ __forceinline__ int find(unsigned tile) const {
    const unsigned key = (tile + lane / kCount * step) * C::kKeys + lane % kCount * 16;
    return pages[min(key, last) >> shift];
  }

  __device__ __forceinline__ void take(Pages<C> &of, int tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) of.page[i] = __shfl_sync(kAllLanes, now, at + tile * kCount + i);
  }

  // On by `count` tiles, a divisor of kTiles; `tile` is the first one of these.
  __device__ __forceinline__ void advance(int count, int tile) {
    at += count * kCount;
    if (at == 32) at = 0, now = next, next = find(tile + kTiles * step);
  }
};

// Of the tile that begins with `key`, where a lane reads keys, [n][i], and values. Keys beyond `keys` are the last ones again:
// weights of zero times what is attended anyhow.
template <typename C>
struct Reads {
  const Place &k, &v;
  int shift, keys, lane;

  __device__ __forceinline__ const uint16_t *key(const Pages<C> &pages, int key, int n, int i) const {
    const int at = C::kWholeLines ? lane / 8 * 2 + i : lane / 4, chunk = C::kWholeLines ? lane % 8 : lane % 4;
    return pages.row(k, shift, key, keys, n / 2, n % 2 * 8 + at) + chunk * 8;
  }
  __device__ __forceinline__ const uint16_t *value(const Pages<C> &pages, int key, int n, int i) const {
    return pages.row(v, shift, key, keys, n / 2, n % 2 * 8 + lane % 4 * 2 + i) + lane / 4 * 8;
  }
};

// Begin to read keys from `key` on.
template <typename C>
__device__ __forceinline__ void load_keys(Keys<C> &to, const Reads<C> &reads, const Pages<C> &pages, int key) {
#pragma unroll
  for (int n = 0; n < C::kKeyTiles; ++n) {
    if constexpr (C::kWholeLines) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint16_t *row = reads.key(pages, key, n, i);
#pragma unroll
        for (int line = 0; line < C::kDim / 64; ++line) load_16(to[n][i * (C::kDim / 64) + line], row + 64 * line);
      }
    } else {
      const uint16_t *row = reads.key(pages, key, n, 0);
#pragma unroll
      for (int c = 0; c < C::kDim / 32; ++c) load_16(to[n][c], row + 32 * c);
    }
  }
}

template <typename C>
__device__ __forceinline__ void load_values(Values<C> &to, const Reads<C> &reads, const Pages<C> &pages, int key) {
#pragma unroll
  for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint16_t *row = reads.value(pages, key, n, i);
#pragma unroll
      for (int w = 0; w < C::kDim / 64; ++w) load_16(to[n][i][w], row + 64 * w);
    }
}

}  // namespace flashcore

#endif
