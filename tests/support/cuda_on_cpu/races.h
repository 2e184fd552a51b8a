// What the detector of races.cpp is told. Only in libraries that are compiled for it (build.py, races=True): its hooks
// for each load and store come from the compiler, which takes time, and so do they.
#pragma once
#include <cstddef>
#include <cstdint>

namespace cuda_on_cpu::races {

#ifdef CUDA_ON_CPU_RACES
inline constexpr bool on = true;
#else
inline constexpr bool on = false;
#endif

const char *found();                                         // the first race of the block, or null
void begin(unsigned char *memory, size_t bytes, int warps);  // a block
void runs(int thread);                                       // from here on; -1: none of the kernel's
void release(const void *barrier);                           // this thread arrives
void complete(const void *barrier, unsigned round);          // all have
void acquire(const void *barrier, unsigned round);           // this thread goes on
void copy(const unsigned char *to);                          // 16 bytes, some time from now
void commit();                                               // of this thread's copies
void wait(size_t pending);                                   // all but that many of its groups have landed
void copies_arrive(uint32_t mbarrier, int expected);         // all of them, and then this thread, later
void saw(uint32_t mbarrier, uint32_t phases);                // so many phases of it over

struct Pause {  // what the emulator itself does to shared memory
  Pause();
  ~Pause();
};

}  // namespace cuda_on_cpu::races
