// mbarrier.cuh's instructions on a processor. The count lives in the emulated shared memory, so that a barrier nobody
// made is found out. Under odd seeds, copies and the arrivals tied to them happen late and in any order between
// threads, one whenever some thread asks in vain for a phase to be over.
#pragma once
#include "cuda_on_cpu.h"

namespace cuda_on_cpu {

struct Mbarrier {
  int16_t expected, missing;
  uint32_t phase;
};
static_assert(sizeof(Mbarrier) == 8);

struct Arrival {
  const Fiber *by;
  std::vector<Copy> copies;  // that must land before it
  uint32_t barrier;
};
inline std::vector<Arrival> in_flight;

inline Mbarrier &mbarrier_at(uint32_t address) {
  auto &barrier = *reinterpret_cast<Mbarrier *>(at(address, 8));
  if (barrier.expected <= 0) fail("an mbarrier that was not initialised");
  return barrier;
}

inline void land(size_t i) {  // the earliest arrival of the thread that arrival i is of
  const Fiber *by = in_flight[i].by;
  for (i = 0; in_flight[i].by != by;) ++i;
  perform(in_flight[i].copies);
  [[maybe_unused]] const auto pause = pause_races();
  Mbarrier &barrier = mbarrier_at(in_flight[i].barrier);
  if (--barrier.missing == 0) barrier.missing = barrier.expected, ++barrier.phase;
  in_flight.erase(in_flight.begin() + static_cast<std::ptrdiff_t>(i));
  in_vain = 0;
}

}  // namespace cuda_on_cpu

inline void __nanosleep(unsigned) {}
constexpr int cudaErrorInvalidConfiguration = 9;
template <typename Kernel>
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel, int, size_t) {
  return *blocks = 2, 0;
}

namespace flashcore {

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  if (!cuda_on_cpu::in_flight.empty()) cuda_on_cpu::fail("a block ended with copies in flight that nobody waited for");
  const cuda_on_cpu::Mbarrier fresh{static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0};
  [[maybe_unused]] const auto pause = cuda_on_cpu::pause_races();
  std::memcpy(cuda_on_cpu::at(barrier, 8), &fresh, 8);
}

inline void mbarrier_arrive_when_copied(uint32_t barrier) {
  std::vector<cuda_on_cpu::Copy> copies;
  for (auto &group : cuda_on_cpu::now->groups) copies.insert(copies.end(), group.begin(), group.end());
  cuda_on_cpu::now->groups.assign(1, {});
  if constexpr (cuda_on_cpu::races::on) {
    const auto pause = cuda_on_cpu::pause_races();
    cuda_on_cpu::races::copies_arrive(barrier, cuda_on_cpu::mbarrier_at(barrier).expected);
  }
  cuda_on_cpu::in_flight.push_back({cuda_on_cpu::now, std::move(copies), barrier});
  if (cuda_on_cpu::copies_at_once) cuda_on_cpu::land(cuda_on_cpu::in_flight.size() - 1);
}

inline bool mbarrier_over(uint32_t barrier, uint32_t parity) {
  // The phase named is over when the current one has the other parity; more than one behind cannot be told on a GPU.
  const auto phase = [&] {
    [[maybe_unused]] const auto pause = cuda_on_cpu::pause_races();
    return cuda_on_cpu::mbarrier_at(barrier).phase;
  }();
  if (phase % 2 != parity) {
    if constexpr (cuda_on_cpu::races::on) cuda_on_cpu::races::saw(barrier, phase);
    return true;
  }
  if (!cuda_on_cpu::in_flight.empty()) {
    cuda_on_cpu::land(cuda_on_cpu::draw() % cuda_on_cpu::in_flight.size());
  } else if (++cuda_on_cpu::in_vain > 100000) {
    cuda_on_cpu::fail("deadlock: everybody waits for an mbarrier");
  }
  cuda_on_cpu::yield();
  return false;
}

}  // namespace flashcore
