// Finds races in shared memory, whatever the order was in which threads ran: two accesses to the same bytes, by
// different threads, one of them a write, and no barrier between them. A schedule that makes the results wrong need not
// be met, so one run of a code path is enough.
//
// Each thread knows how far it has seen each warp (a vector clock; warps, since whole warps meet at barriers), and of
// each two bytes it is known who wrote them last, and when which lanes read them last. What orders: __syncthreads(),
// __syncwarp(), bar.sync and bar.arrive, an mbarrier's phase. What does not, though lanes meet: shuffles, votes,
// ldmatrix, mma. The bytes that a cp.async writes are nobody's, its own thread's included, until that thread's wait.
//
// Not seen: global memory, and single bytes (neighbours in a cell belong to different threads).
#include "races.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <vector>

namespace cuda_on_cpu::races {
namespace {

constexpr int kWarps = 32, kCell = 2;

using Clock = std::array<uint32_t, kWarps>;
void join(Clock &into, const Clock &other) {
  for (int w = 0; w < kWarps; ++w) into[w] = std::max(into[w], other[w]);
}

struct Thread {
  Clock seen{};
  uint32_t clock = 1;  // the same for all lanes at the same place of the program
  std::vector<std::vector<size_t>> groups{1};  // first cells of copies in flight
};

struct Write {
  uint32_t clock = 0;
  int16_t thread = -1;
  bool in_flight = false;
};
struct Read {
  uint32_t clock = 0, lanes = 0;
};

struct Meeting {
  Clock pending{}, done[2]{};
};
struct Phases {
  Clock pending{};
  int arrived = 0;
  std::vector<Clock> over;
};

unsigned char *memory;
size_t cells;
int thread = -1, warps, paused;
std::vector<Thread> threads;
std::vector<Write> writes;
std::vector<Read> reads[kWarps];
std::unordered_map<const void *, Meeting> meetings;
std::unordered_map<uint32_t, Phases> mbarriers;
char message[160];
bool any;

void report(size_t cell, const char *now, int by, const char *before) {
  if (any) return;
  any = true;
  std::snprintf(message, sizeof message, "race: byte %zu of shared memory, %s by warp %d lane %d, %s by warp %d",
                cell * kCell, now, thread / 32, thread % 32, before, by);
}

bool sees(const Thread &me, const Write &last) {
  if (last.in_flight) return false;
  return last.thread < 0 || last.thread == thread || last.clock <= me.seen[last.thread / 32];
}

const char *how(const Write &last) { return last.in_flight ? "being copied" : "written"; }

void read(size_t first, size_t end) {
  const Thread &me = threads[thread];
  auto &mine = reads[thread / 32];
  for (size_t c = first; c < end; ++c) {
    if (!sees(me, writes[c])) report(c, "read", writes[c].thread / 32, how(writes[c]));
    if (mine[c].clock != me.clock) mine[c] = {me.clock, 0};
    mine[c].lanes |= 1u << thread % 32;
  }
}

void write(size_t first, size_t end, bool in_flight) {
  const Thread &me = threads[thread];
  const char *what = in_flight ? "copied to" : "written";
  for (size_t c = first; c < end; ++c) {
    if (!sees(me, writes[c])) report(c, what, writes[c].thread / 32, how(writes[c]));
    for (int w = 0; w < warps; ++w) {
      const Read &last = reads[w][c];
      const bool others = w != thread / 32 || (last.lanes & ~(1u << thread % 32));
      if (last.clock > me.seen[w] && others) report(c, what, w, "read");
    }
    writes[c] = {me.clock, static_cast<int16_t>(thread), in_flight};
  }
}

void access(const void *pointer, size_t bytes, bool writes_it) {
  if (thread < 0 || paused || bytes < kCell) return;
  const auto at = static_cast<size_t>(static_cast<const unsigned char *>(pointer) - memory);
  if (at >= cells * kCell) return;
  const size_t first = at / kCell, end = std::min(cells, (at + bytes + kCell - 1) / kCell);
  if (writes_it) write(first, end, false);
  else read(first, end);
}

void land(Thread &me, size_t groups) {  // the oldest ones; at the time of the wait
  for (size_t g = 0; g < groups; ++g) {
    for (const size_t first : me.groups[g])
      for (size_t c = first; c < first + 16 / kCell; ++c)
        if (writes[c].thread == thread) writes[c].in_flight = false, writes[c].clock = me.clock;
    me.groups[g].clear();
  }
}

void leave(Clock &at) {
  Thread &me = threads[thread];
  join(at, me.seen);
  uint32_t &own = at[thread / 32];
  own = std::max(own, me.clock++);
}

}  // namespace

const char *found() { return any ? message : nullptr; }

void begin(unsigned char *shared, size_t bytes, int count) {
  memory = shared, warps = count, cells = bytes / kCell, thread = -1, paused = 0, any = false;
  threads.assign(32 * warps, {});
  writes.assign(cells, {});
  for (int w = 0; w < warps; ++w) reads[w].assign(cells, {});
  meetings.clear(), mbarriers.clear();
}

void runs(int number) { thread = number; }
void release(const void *barrier) { leave(meetings[barrier].pending); }
void complete(const void *barrier, unsigned round) {
  Meeting &meeting = meetings[barrier];
  meeting.done[round % 2] = meeting.pending, meeting.pending = {};
}
void acquire(const void *barrier, unsigned round) { join(threads[thread].seen, meetings[barrier].done[round % 2]); }

void copy(const unsigned char *to) {
  const size_t first = static_cast<size_t>(to - memory) / kCell;
  write(first, first + 16 / kCell, true);
  threads[thread].groups.back().push_back(first);
}
void commit() { threads[thread].groups.emplace_back(); }
void wait(size_t pending) {
  Thread &me = threads[thread];
  if (me.groups.size() > 1 + pending) land(me, me.groups.size() - 1 - pending);
}

void copies_arrive(uint32_t mbarrier, int expected) {
  Thread &me = threads[thread];
  land(me, me.groups.size());
  me.groups.assign(1, {});
  Phases &phases = mbarriers[mbarrier];
  leave(phases.pending);
  if (++phases.arrived == expected) {
    phases.over.push_back(phases.pending);
    phases.arrived = 0, phases.pending = {};
  }
}
void saw(uint32_t mbarrier, uint32_t phases) {
  const auto &over = mbarriers[mbarrier].over;
  if (phases > 0 && phases <= over.size()) join(threads[thread].seen, over[phases - 1]);
}

Pause::Pause() { ++paused; }
Pause::~Pause() { --paused; }

}  // namespace cuda_on_cpu::races

// ------------------------------------------------------------ what the compiler calls: -fsanitize=thread
using cuda_on_cpu::races::access;
#define HOOKS(N)                                                        \
  void __tsan_read##N(void *p) { access(p, N, false); }                 \
  void __tsan_write##N(void *p) { access(p, N, true); }                 \
  void __tsan_unaligned_read##N(void *p) { access(p, N, false); }       \
  void __tsan_unaligned_write##N(void *p) { access(p, N, true); }       \
  void __tsan_volatile_read##N(void *p) { access(p, N, false); }        \
  void __tsan_volatile_write##N(void *p) { access(p, N, true); }
#define ATOMICS(BITS, T)                                                                              \
  T __tsan_atomic##BITS##_load(const volatile T *p, int) { return __atomic_load_n(p, 5); }            \
  void __tsan_atomic##BITS##_store(volatile T *p, T x, int) { __atomic_store_n(p, x, 5); }            \
  T __tsan_atomic##BITS##_fetch_or(volatile T *p, T x, int) { return __atomic_fetch_or(p, x, 5); }    \
  T __tsan_atomic##BITS##_fetch_add(volatile T *p, T x, int) { return __atomic_fetch_add(p, x, 5); }
extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
ATOMICS(8, uint8_t) ATOMICS(32, uint32_t) ATOMICS(64, uint64_t)
void __tsan_read_range(void *p, size_t bytes) { access(p, bytes, false); }
void __tsan_write_range(void *p, size_t bytes) { access(p, bytes, true); }
void __tsan_vptr_update(void *, void *) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}
