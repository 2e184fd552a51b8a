// Into how many splits decode.cu divides the keys, and what they leave for each other in the workspace. Plain C++.
#ifndef FLASHCORE_DECODE_CHOICE_CUH
#define FLASHCORE_DECODE_CHOICE_CUH

#include <cmath>

#include "flashcore.h"

namespace flashcore {

constexpr int kRows = 16;          // of a row tile, an mma's
constexpr int kMostSplits = 256;

struct Work {
  int sharing;           // heads of queries for each head of keys
  int64_t rows, tiles;   // of one head of keys, and its row tiles
  int64_t groups;        // row tiles in all
  int64_t dim, keys;     // the last: that any row sees

  explicit Work(const flashcore_args &args)
      : sharing(args.H_kv ? args.H / args.H_kv : 1),
        rows(int64_t{sharing} * args.S_q),
        tiles((rows + kRows - 1) / kRows),
        groups(tiles * (args.H / sharing) * args.B),
        dim(args.D),
        keys(args.causal && args.S_q < args.S_kv ? args.S_q : args.S_kv) {}
};

// Where in the workspace things begin, in bytes; the flags first of all.
struct Places {
  size_t states, sums, bytes;

  Places(const Work &work, int splits) {
    const size_t each = work.rows < kRows ? work.rows : kRows, count = splits > 1 ? work.groups * splits : 0;
    states = count * 8;
    sums = (states + count * each * 8 + 15) / 16 * 16;
    bytes = sums + count * each * work.dim * 4;
  }
};

// What a split costs beside its keys, in bytes that a multiprocessor could have read meanwhile: to begin, and to leave its
// results and have them merged.
constexpr double kBegin = 32e3, kMerge = 64e3;

// Of the ways to divide the keys evenly, the one by which the busiest multiprocessor is done first; half of what it reads
// counts as all read on average, since one that others leave alone is served faster.
inline int splits_for(const Work &work, int processors, int resident) {
  const int64_t tile_keys = TILE_BYTES / (2 * work.dim), tiles = (work.keys + tile_keys - 1) / tile_keys;
  const double tile = 2.0 * TILE_BYTES, all = tile * tiles * work.groups / processors;
  const int64_t enough = 1 + 2 * int64_t{resident} * processors / work.groups;
  const double merged = 4.0 * (work.rows < kRows ? work.rows : kRows) * work.dim;  // bytes of a split's results
  double least = INFINITY;
  int best = 1;
  for (int splits = 1; splits <= kMostSplits && splits <= enough && splits <= tiles; ++splits) {
    const int64_t share = (tiles + splits - 1) / splits;
    if ((tiles + share - 1) / share < splits) continue;  // some would be empty
    const int64_t blocks = work.groups * splits, busiest = (blocks + processors - 1) / processors;
    const double rounds = std::ceil(double(busiest) / resident);
    const double cost = (all + tile * share * busiest) / 2 + kBegin * rounds + (splits > 1 ? kMerge + merged * splits : 0);
    if (cost < least) least = cost, best = splits;
  }
  return best;
}

}  // namespace flashcore

#endif
