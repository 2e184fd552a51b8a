// How many clocks the busiest multiprocessor takes for a shape with a tiling of flagship.cu. Plain C++, for tests, too.
//
// Instructions are counted as the machine code has them, for sm_89 and sm_90 alike; the rate at which tensor cores execute
// them is the chip's own. What is fitted is how long a step waits for itself, what begins and ends a block, how fast copies
// come, and how much of all that overlaps (docs/flagship-notes.md has the fit, and what the choice costs by it).
#ifndef FLASHCORE_FLAGSHIP_COST_CUH
#define FLASHCORE_FLAGSHIP_COST_CUH

#include <cmath>
#include <utility>

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
constexpr double kStep = 233.6;      // instructions of a step that do not grow with it
constexpr double kRead = 0.616;      // of reads of shared memory, that count
constexpr double kWaits[2][2] = {{21.6, 52.92}, {504.1, 852.9}};  // of a step for itself: plain, pipelined; 16, 32 rows
constexpr double kInTurn = 0.914, kOverlapped = 0.2407;  // of a warp's instructions, that it waits for: plain, pipelined
constexpr double kFill = 0.4821;     // likewise of a pipelined warp's first and last step, which overlap with none
constexpr double kBegin = 1191, kRows = 1.548;    // what begins and ends a block, for itself and for each row
constexpr double kMerge = 70.31, kMerged = 16.43;  // likewise with several groups of warps
constexpr double kLate = 288.5, kLateRows = 2.042;  // likewise if they are staggered
constexpr double kFirst = 0.3507;    // of the first copies, that nothing hides
constexpr double kEnds = 0.1983;     // of what begins and ends a block, that keeps other blocks waiting
constexpr double kNext = 398.9;      // by which each other block of a multiprocessor delays one
constexpr double kMask[2] = {3.599, 5.883};  // instructions for each masked score of a lane: 16, 32 rows a warp
constexpr double kCopied = 89.05;    // bytes a clock, from the L2 cache to a multiprocessor

// Clocks of a block while 1, 2 .. of them run on its multiprocessor. (No tiling has room for more.)
constexpr int kMostBlocks = 4;
struct Block {
  double clocks[kMostBlocks];
};

// The blocks of a tiling for a shape.
template <typename Tiling>
struct Work {
  const Tiling &c;
  const Load &load;
  double tiles, unit, step, ends, masked;

  Work(const Tiling &tiling, const Load &shape, const Chip &chip)
      : c(tiling), load(shape), tiles(std::ceil(shape.queries / c.rows)) {
    // A warp's step, in clocks of its quarter of a multiprocessor: tensor instructions, all instructions, exponentials (8
    // each), and reads of shared memory (4 of the multiprocessor each, so 16 if all four quarters read alike).
    const double wide = load.dim / 64, high = c.warp_rows / 16, deep = c.keys / 16.0;
    const bool sums = c.tensor_sums == 1 || (c.tensor_sums == 2 && chip.mma < 16);
    const double tensor = deep * high * (16 * wide + sums) * chip.mma;
    const double issued = kStep + deep * (48 * wide + 16 * wide * high + 28 * high);
    // Keys and values, and queries that are read in each step. (Of warps of 32 rows the fit has those.)
    const double read = (128 * deep + (c.shared_q && high == 1 ? 64 : 0)) * wide;
    unit = beside(tensor, issued, 8 * (8 * deep * high + 2 * high), kRead * read);
    step = kWaits[c.pipelined != 0][high > 1] + (c.pipelined ? kOverlapped : kInTurn) * (tensor + issued);
    masked = kMask[high > 1] * 8 * deep * high;
    const double rows = c.rows * wide, first = c.rows + 2 * c.keys * std::fmin(c.groups, std::ceil(load.keys / c.keys));
    ends = kBegin + kRows * rows + kFirst * first * load.dim * 2 / kCopied;
    if (c.groups > 1) ends += kMerge + kMerged * rows;
    if (c.staggered) ends += kLate + kLateRows * rows;
    if (c.pipelined) ends += kFill * (tensor + issued);
  }

  // That of a row tile. (Without a mask all are alike.)
  Block block(int tile) const {
    const double end = load.causal ? std::fmin(load.keys, (tile + 1.0) * c.rows) : load.keys;
    const auto tiles_of_keys = [&](int of) { return (of - 1) / c.keys + 1; };
    const int all = tiles_of_keys(static_cast<int>(end)), high = c.warps / c.groups;
    double quarter[4] = {}, late = 0;
    for (int warp = 0; warp < c.warps; ++warp) {
      const int group = warp / high;
      const auto of_group = [&](int of) { return of > group ? (of - group - 1) / c.groups + 1 : 0; };
      int steps = of_group(all), hidden = 0;
      if (load.causal) {  // a pipelined warp leaves no tile out
        const int row = tile * c.rows + warp % high * c.warp_rows, seen = tiles_of_keys(row + c.warp_rows);
        if (!c.pipelined && seen < all) steps = of_group(seen);
        hidden = steps - of_group(row / c.keys);
        if (hidden < 0) hidden = 0;
      }
      quarter[warp % 4] += steps * unit + hidden * masked;
      late = std::fmax(late, hidden * masked);
    }
    const double mean = (quarter[0] + quarter[1] + quarter[2] + quarter[3]) / 4 + kEnds * ends;
    const double most =
        std::fmax(std::fmax(quarter[0], quarter[1]), std::fmax(quarter[2], quarter[3])) + kEnds * ends;
    const double alone = ends + late + ((all - 1) / c.groups + 1) * step;
    const double copied = (c.rows + 2.0 * all * c.keys) * load.dim * 2 / kCopied;
    Block found;
    for (int others = 0; others < kMostBlocks; ++others)
      found.clocks[others] =
          beside(alone + kNext * others, std::fmax(most, (others + 1) * mean), (others + 1) * copied);
    return found;
  }
};

// A multiprocessor while blocks are dealt out.
struct Processor {
  double now = 0, left[kMostBlocks];  // of each block, as a share of it
  Block blocks[kMostBlocks];
  int running = 0;

  void take(const Block &block) { blocks[running] = block, left[running++] = 1; }

  // The first of its blocks that ends, and when.
  int first(double &end) const {
    int found = 0;
    end = INFINITY;
    for (int i = 0; i < running; ++i) {
      const double at = now + left[i] * blocks[i].clocks[running - 1];
      if (at < end) end = at, found = i;
    }
    return found;
  }

  // That one ends, then.
  void end(int block, double then) {
    for (int i = 0; i < running; ++i) left[i] -= (then - now) / blocks[i].clocks[running - 1];
    now = then, --running;
    blocks[block] = blocks[running], left[block] = left[running];
  }
};

// When the last block of a causal launch ends. Those of a batch start longest first, one on each multiprocessor, then a
// second one, and so on; each further one starts where one ends. After some rounds they even out.
template <typename Tiling>
double dealt_out(const Work<Tiling> &work, int processors, int resident) {
  constexpr int kProcessors = 256, kRounds = 4;
  if (processors > kProcessors) processors = kProcessors;
  int heads = static_cast<int>(work.load.heads);
  const int tiles = static_cast<int>(work.tiles);
  const double count = work.tiles * heads * work.load.batches;
  if (count > kRounds * processors * resident) {
    double sum = 0;
    for (int tile = 0; tile < work.tiles; ++tile) sum += work.block(tile).clocks[resident - 1];
    return sum * heads * work.load.batches / processors / resident + work.block(0).clocks[0] / 2;
  }
  // Blocks of different heads are alike. Where so many heads at a time take as many multiprocessors, one stands for all.
  int alike = heads;
  for (int other = processors; other; std::swap(alike, other)) alike %= other;
  heads /= alike, processors /= alike;
  Processor all[kProcessors];
  double ends[kProcessors], last = 0;
  const int blocks = static_cast<int>(count) / alike;
  int started = 0;
  Block next;
  const auto take = [&](Processor &one) {
    if (started % heads == 0) next = work.block(tiles - 1 - started / heads % tiles);
    one.take(next), ++started;
  };
  const auto first = [&](int i) { return all[i].first(ends[i]); };
  while (started < blocks && started < processors * resident) take(all[started % processors]);
  for (int i = 0; i < processors; ++i) first(i);
  for (;;) {
    int i = 0;
    for (int other = 1; other < processors; ++other)
      if (ends[other] < ends[i] * (1 - 1e-9)) i = other;  // of those that end together the first, however it is rounded
    if (ends[i] == INFINITY) return last;
    last = ends[i];
    all[i].end(first(i), last);
    if (started < blocks) take(all[i]);
    first(i);
  }
}

// `resident`: blocks that a multiprocessor holds at a time.
template <typename Tiling>
double clocks(const Tiling &c, const Load &load, const Chip &chip, int resident) {
  const Work<Tiling> work(c, load, chip);
  if (resident > kMostBlocks) resident = kMostBlocks;
  if (load.causal) return dealt_out(work, chip.processors, resident);
  const Block block = work.block(0);
  const double each = std::ceil(work.tiles * load.batches * load.heads / chip.processors);
  const double rounds = std::floor(each / resident);
  const int rest = int(each - rounds * resident);
  return rounds * block.clocks[resident - 1] + (rest ? block.clocks[rest - 1] : 0);
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
