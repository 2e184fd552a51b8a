// Into how many splits decode.cu divides the keys, and what they leave for each other in the workspace. Plain C++.
#ifndef FLASHCORE_DECODE_CHOICE_CUH
#define FLASHCORE_DECODE_CHOICE_CUH

#include <algorithm>
#include <cmath>

#include "flashcore.h"

namespace flashcore {

constexpr int kMostSplits = 256;

// Keys of a tile: 4 KB of K, 4 KB of V.
constexpr int keys_of_tile(int dim) { return 2048 / dim; }

struct Work {
  int sharing;            // heads of queries for each head of keys
  int64_t rows;           // of one head of keys
  int64_t height, tiles;  // rows of a row tile, half an mma's or all; and row tiles
  int64_t groups;         // row tiles in all
  int causal, width;      // a row sees so many keys up to its last
  int64_t dim, keys;      // the last: that any row sees

  explicit Work(const flashcore_args &args)
      : sharing(args.H_kv ? args.H / args.H_kv : 1),
        rows(int64_t{sharing} * args.S_q),
        height(rows > 8 ? 16 : 8),
        tiles((rows + height - 1) / height),
        groups(tiles * (args.H / sharing) * args.B),
        causal(args.causal ? args.causal : 2 * (args.window_right == 1)),
        width(args.window_left ? args.window_left : 1 << 30),
        dim(args.D),
        keys(std::min<int64_t>(args.causal == 1 && args.S_q < args.S_kv ? args.S_q : args.S_kv, int64_t{width} + args.S_q - 1)) {}
};

// Where in the workspace things begin, in bytes; the arrivals first of all.
struct Places {
  size_t states, sums, bytes;

  Places(const Work &work, int splits) {
    const size_t each = work.rows < work.height ? work.rows : work.height, count = splits > 1 ? work.groups * splits : 0;
    states = count ? work.groups * 8 : 0;
    sums = (states + count * each * 8 + 15) / 16 * 16;
    bytes = sums + count * each * work.dim * 4;
  }
};

// Tiles of keys of a split.
inline int64_t share_of(const Work &work, int splits) {
  const int64_t tile_keys = keys_of_tile(static_cast<int>(work.dim)), tiles = (work.keys + tile_keys - 1) / tile_keys;
  return (tiles + splits - 1) / splits;
}

// What a split costs beside its keys, in bytes that a multiprocessor could have read meanwhile: to begin, and to leave its
// results and have them merged.
constexpr double kBegin = 32e3, kMerge = 64e3;

// Of the ways to divide the keys evenly, the one by which the busiest multiprocessor is done first. (Of 13 shapes on an H200,
// beside the best of 2 to 6 numbers of splits timed for each: 4.0 % slower at most.)
inline int splits_for(const Work &work, int processors, int resident) {
  const int64_t tile_keys = keys_of_tile(static_cast<int>(work.dim)), tiles = (work.keys + tile_keys - 1) / tile_keys;
  const double tile = 4.0 * tile_keys * work.dim;
  const int64_t enough = 1 + 2 * int64_t{resident} * processors / work.groups;
  const double merged = 4.0 * (work.rows < work.height ? work.rows : work.height) * work.dim;  // bytes of a split's results
  double least = INFINITY;
  int best = 1;
  for (int splits = 1; splits <= kMostSplits && splits <= enough && splits <= tiles; ++splits) {
    const int64_t share = share_of(work, splits);
    if ((tiles + share - 1) / share < splits) continue;  // some would be empty
    const int64_t blocks = work.groups * splits, busiest = (blocks + processors - 1) / processors;
    const double rounds = std::ceil(double(busiest) / resident);
    const double cost = tile * share * busiest + kBegin * rounds + (splits > 1 ? kMerge + merged * splits : 0);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

}  // namespace flashcore

#endif
