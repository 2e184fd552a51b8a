// How many clocks the busiest multiprocessor takes for a shape with a tiling of flagship.cu. Plain C++, for tests, too.
//
// Instructions are counted as the machine code has them, for sm_89 and sm_90 alike; the rate at which tensor cores execute
// them is the chip's own. What is fitted is how long a step waits for itself, what begins and ends a block, how fast copies
// come, and how much of all that overlaps (docs/flagship-notes.md has the fit, and what the choice costs by it).
#ifndef FLASHCORE_FLAGSHIP_COST_CUH
#define FLASHCORE_FLAGSHIP_COST_CUH

#include <cmath>

namespace flashcore {

// Of a chip: multiprocessors, and clocks of a quarter of one for an mma.m16n8k16 with FP32 sums.
struct Chip {
  int processors;
  double mma;
};

// By compute capability. That of 9.0 is measured (mma.sync, not wgmma), the others follow from datasheets.
inline double mma_clocks(int major, int minor) {
  if (major == 9) return 6.63;
  return (major == 8 && minor == 0) || major == 10 ? 8 : 16;
}

struct Load {
  double batches, heads, queries, keys, dim;
  bool causal;
};

// Things that use different units: longer than the longest, shorter than the sum.
inline double beside(double a, double b, double c = 0, double d = 0) { return std::sqrt(a * a + b * b + c * c + d * d); }

// Fitted, in clocks but for the shares.
constexpr double kStep = 150.9;     // instructions of a step that do not grow with it
constexpr double kIssue = 1.131;    // of those that do, that count
constexpr double kRead = 0.7352;     // of reads of shared memory, that count
constexpr double kWaits[2][2] = {{0.03, 50.5}, {74.6, 414}};  // of a step for itself: plain or pipelined, 16 or 32 rows a warp
constexpr double kInTurn = 0.9339, kOverlapped = 0.4502;   // of a warp's instructions, that it waits for: plain, pipelined
constexpr double kBegin = 1602, kMerge = 2059, kStaggered = 1967;  // what begins and ends a block: 1 group, more of them
constexpr double kEnds = 0.02212;     // of that, what keeps other blocks waiting
constexpr double kMask = 7.395;      // instructions for each masked score of a lane
constexpr double kFirst = 0.7525, kLate = 0.5381;  // of blocks that do not even out
constexpr double kCopied = 69.37;    // bytes a clock, from the L2 cache to a multiprocessor

// Steps of the blocks of one multiprocessor: one after the other, as many at a time as are resident; and of all of them.
struct Steps {
  double in_turn, rounds, all, blocks;
};

// Without a mask all blocks are alike. With it, a block has as many steps as its last row sees keys, and those of a batch
// start longest first: they even out where they follow each other, and the longest ones of the last batch come late.
template <typename Tiling>
Steps steps_of(const Tiling &c, const Load &load, double processors, int resident) {
  const double tiles = std::ceil(load.queries / c.rows), share = tiles * load.batches * load.heads / processors;
  const double longest = std::ceil(std::ceil(load.keys / c.keys) / c.groups), each = std::ceil(share);
  if (!load.causal) return {std::ceil(each / resident) * longest, std::ceil(each / resident), each * longest, each};
  const double q = load.queries, kv = load.keys, seen = kv >= q ? q / 2 : kv - kv * kv / (2 * q);
  const double mean = std::fmin(longest, (seen + c.rows / 2.0) / (c.keys * c.groups) + 0.5);
  const bool followed = share > resident;
  const double batch = tiles * load.heads, waves = std::fmin(each, resident);
  double first = 0;  // of the blocks that start at once on one multiprocessor, the most: where a batch begins
  for (int from = 0; from < waves; ++from) {
    const double at = std::ceil(from * processors / batch) * batch - from * processors;
    double sum = 0;
    for (int i = 0; at < processors && i < waves && at + i * processors < batch * load.batches; ++i) {
      const double tile = tiles - 1 - std::floor(std::fmod(at + i * processors, batch) / load.heads);
      sum += std::ceil(std::fmin(kv, (tile + 1) * c.rows) / (c.keys * c.groups));
    }
    first = std::fmax(first, sum);
  }
  Steps found = {std::fmax(longest, mean * share / resident), std::fmax(1, share / resident), mean * share,
                 std::fmax(1, share)};
  if (first > found.all) found.all += kFirst * (first - found.all);
  const double begun = followed ? std::fmax(0, found.in_turn * (1 - 1 / load.batches) - mean / 2) : 0;
  const double late = kLate * std::fmax(0, begun + longest - found.in_turn);
  found.in_turn += late;
  if (followed) found.all += late * resident / 2;
  return found;
}

// `resident`: blocks that a multiprocessor holds at a time.
template <typename Tiling>
double clocks(const Tiling &c, const Load &load, const Chip &chip, int resident) {
  // A warp's step, in clocks of its quarter of a multiprocessor: tensor instructions, all instructions, exponentials (8
  // each), and reads of shared memory (4 of the multiprocessor each, so 16 if all four quarters read alike).
  const double wide = load.dim / 64, high = c.warp_rows / 16, deep = c.keys / 16.0;
  const bool sums = c.tensor_sums == 1 || (c.tensor_sums == 2 && chip.mma < 16);
  const double tensor = deep * high * (16 * wide + sums) * chip.mma;
  const double issued = kStep + deep * (48 * wide + 16 * wide * high + 28 * high) * kIssue;
  // Keys and values, and queries that are read in each step. (Of warps of 32 rows the fit has those.)
  const double read = (128 * deep + (c.shared_q && high == 1 ? 64 : 0)) * wide;
  const double unit = beside(tensor, issued, 8 * (8 * deep * high + 2 * high), kRead * read);
  const double step = kWaits[c.pipelined ? 1 : 0][high > 1 ? 1 : 0] + (c.pipelined ? kOverlapped : kInTurn) * (tensor + issued);
  const double ends = c.groups == 1 ? kBegin : c.pipelined ? kMerge : kStaggered;
  const double masked = load.causal ? kMask * 8 * deep * high * std::ceil(std::ceil(double(c.rows) / c.keys) / c.groups) : 0;
  const double tiles = std::ceil(load.keys / c.keys);
  const double busy = std::ceil(c.warps * std::fmin(1, tiles / c.groups) / 4);  // warps with keys, of a quarter
  const Steps steps = steps_of(c, load, chip.processors, resident);
  const double alone = steps.rounds * (ends + masked) + steps.in_turn * step;
  const double shared = steps.all * busy * unit + steps.blocks * (kEnds * ends + masked * busy);
  const double copied = (steps.blocks * c.rows + 2 * steps.all * c.groups * c.keys) * load.dim * 2 / kCopied;
  return beside(alone, shared, copied);
}

// The same for two tilings in one launch: full waves of `c`, then the row tiles that are left, divided into those of `rest`;
// INFINITY where one of the two alone would do the same. The last blocks go where blocks end, `resident` to a multiprocessor,
// and some get none. Causal blocks even out by themselves.
template <typename Tiling, typename Rest>
double clocks(const Tiling &c, const Rest &rest, Load load, Chip chip, int resident) {
  const double tiles = std::ceil(load.queries / c.rows), all = tiles * load.batches * load.heads;
  const double slots = double(chip.processors) * resident, whole = std::floor(all / slots) * slots;
  if (load.causal || whole == 0 || whole == all) return INFINITY;
  load.batches = 1, load.heads = whole / tiles;
  const double first = clocks(c, load, chip, resident);
  load.heads = (all - whole) / tiles;
  const double last = std::ceil((all - whole) * c.rows / rest.rows / resident);
  if (last < chip.processors) chip.processors = static_cast<int>(last);
  return first + clocks(rest, load, chip, resident);
}

}  // namespace flashcore

#endif
