// A barrier in shared memory at which copies arrive, and warps wait for them: sm_80 and later, nothing of Hopper's.
//
// An mbarrier counts arrivals. When as many have come as it was made for, its phase is over and it counts anew. A
// waiter names the phase by its parity, so waiting for parity 0 ends once the first phase is over, and waiting for
// parity 1 on a barrier nobody has arrived at ends at once: the phase "before the first" counts as over. Ours are
// 64-bit words of shared memory, named by their 32-bit shared address.
#ifndef FLASHCORE_MBARRIER_CUH
#define FLASHCORE_MBARRIER_CUH

#include <stdint.h>

namespace flashcore {

#ifndef CUDA_ON_CPU  // the tests run these kernels on a processor: tests/support/cuda_on_cpu emulates the instructions

// One thread does this, once; a __syncthreads() then shows the barrier to the others.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// One arrival, later: when every cp.async this thread has issued so far has landed. The thread itself goes on at once,
// which is the whole point of a producer warp. noinc: the arrival is one of those the barrier was made for.
__device__ __forceinline__ void mbarrier_arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Whether the phase of this parity is over (acquire). Hopper's try_wait would sleep in hardware; sm_80 can only ask.
__device__ __forceinline__ bool mbarrier_over(uint32_t barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{ .reg .pred p;\n"
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}

#endif  // CUDA_ON_CPU

// Wait for it. No pause between the questions: who waits here computes next, and the copies were begun long before.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_over(barrier, parity)) continue;
}

}  // namespace flashcore

#endif
