// Runs the kernels of kernels/flashcore/csrc on a processor: the logic of a kernel can be tested where no GPU is.
// How: build.py here turns x<<<...>>>( into a call, compiles with a C++ compiler and this header first; see there.
//
// A block's threads are fibers of one OS thread; blocks run one after the other. What a warp does together (shuffles,
// ldmatrix, mma, wmma) is one exchange() in which all 32 lanes must take part, with the same operation, or the launch
// fails, with a reason as its error's name; so does a barrier that not all reach. Shared memory starts as NaN, and
// touching more than was asked for fails. What the hardware leaves open is drawn from CUDA_ON_CPU_SEED: the order in
// which threads proceed, and whether a cp.async happens at once (even seeds) or as late as its wait allows (odd
// seeds). A missing barrier or wait thus gives wrong results under some seeds; a library compiled to find races
// (races.cpp) fails under every seed. Fragments of WMMA are spread over lanes unlike on any real GPU, unless a test asks
// for what is there from sm_80 on.
#pragma once
#define CUDA_ON_CPU

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "races.h"

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#ifdef CUDA_ON_CPU_RACES  // all of it in one range
#define __shared__ static __attribute__((section("cuda_shared")))
extern "C" unsigned char __start_cuda_shared[], __stop_cuda_shared[];
#else
#define __shared__ static  // one block at a time
#endif
#define CUDART_INF_F INFINITY
#define threadIdx (cuda_on_cpu::now->index)
#define blockIdx (cuda_on_cpu::grid.block)
#define blockDim (cuda_on_cpu::grid.threads)
#define gridDim (cuda_on_cpu::grid.blocks)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace cuda_on_cpu {

inline const char *failure;  // of the last launch
[[noreturn]] inline void fail(const char *what);

constexpr int kStack = 256 * 1024, kShared = 228 * 1024, kSharedOfL4 = 99 * 1024;
inline bool on_an_l4() {
  const char *device = std::getenv("CUDA_ON_CPU_DEVICE");
  return device && std::strcmp(device, "L4") == 0;
}
alignas(128) __shared__ unsigned char shared_memory[kShared];
inline size_t shared_bytes;
inline unsigned chance;  // state of the random choices
inline bool copies_at_once;
inline int in_vain;  // questions whether a phase of an mbarrier is over, since anybody arrived anywhere

struct Grid {
  dim3 blocks, threads, block;
};
inline Grid grid;

struct Copy {
  unsigned char *to;
  const void *from;
};

struct Fiber {
  dim3 index;
  int lane, warp;
  bool done = false;
  const unsigned *watched = nullptr;  // runs again once this counter is no longer `seen`
  unsigned seen = 0;
  std::vector<std::vector<Copy>> groups{1};  // of cp.async; the last one is open
  ucontext_t start;
  jmp_buf context;
  bool started = false;
};
inline Fiber *now;
inline jmp_buf scheduler;

// Between fibers by longjmp, since swapcontext asks the kernel for the signals' mask, each time.
inline void resume(Fiber *fiber) {
  now = fiber;
  if constexpr (races::on) races::runs(static_cast<int>(fiber->index.x));
  if (_setjmp(scheduler) != 0) return;
  if (fiber->started) _longjmp(fiber->context, 1);
  fiber->started = true;
  setcontext(&fiber->start);
}
inline void yield() {
  if (_setjmp(now->context) == 0) _longjmp(scheduler, 1);
}

inline void fail(const char *what) {  // by a thread of the kernel: none of them goes on
  failure = what;
  _longjmp(scheduler, 1);
}

struct Barrier {
  int arrived = 0;
  unsigned round = 0;
};
inline Barrier barriers[16];

struct Warp {
  Barrier meeting;
  const char *operation;
  alignas(16) unsigned char box[2][32][128];  // by round: a lane may be one exchange ahead of another
};
inline std::vector<Warp> warps;

inline unsigned draw() { return (chance = chance * 1664525u + 1013904223u) >> 8; }

inline void wait_past(const unsigned &counter, unsigned value) {
  now->watched = &counter, now->seen = value;
  while (counter == value) yield();
  now->watched = nullptr;
}

inline void arrive(Barrier &barrier, int expected, bool orders = true) {
  if (races::on && orders) races::release(&barrier);
  if (++barrier.arrived > expected) fail("more threads at a barrier than it was declared for");
  if (barrier.arrived < expected) return;
  if (races::on && orders) races::complete(&barrier, barrier.round);
  barrier.arrived = 0, ++barrier.round;
  in_vain = 0;
}

inline auto pause_races() {
  if constexpr (races::on) return races::Pause();
  else return 0;
}

inline void perform(std::vector<Copy> &copies) {
  [[maybe_unused]] const auto pause = pause_races();
  for (const Copy &copy : copies) copy.from ? std::memcpy(copy.to, copy.from, 16) : std::memset(copy.to, 0, 16);
  copies.clear();
}

inline void meet(Barrier &barrier, int expected, bool orders = true) {  // orders: also memory
  if (draw() % 8 == 0) std::for_each(now->groups.begin(), now->groups.end(), perform);  // they land when they like
  const unsigned round = barrier.round;
  arrive(barrier, expected, orders);
  wait_past(barrier.round, round);
  if (races::on && orders) races::acquire(&barrier, round);
}

inline bool meet_and_vote(int expected, bool mine) {  // at barrier 0
  static bool votes[2];  // by round: a thread may be one barrier ahead of another
  bool &any = votes[barriers[0].round % 2];
  any = mine || (any && barriers[0].arrived > 0);
  meet(barriers[0], expected);
  return any;
}

// What the lanes of a warp gave, to be read before this lane's next exchange.
template <typename T>
struct Given {
  const unsigned char (*box)[128];
  T operator[](int lane) const {
    T value;
    std::memcpy(&value, box[lane], sizeof(T));
    return value;
  }
};

// Each lane gives a value and sees those of all 32.
template <typename T>
Given<T> exchange(const char *operation, const T &mine, bool orders = false) {
  static_assert(sizeof(T) <= 128);
  Warp &warp = warps[now->warp];
  auto &box = warp.box[warp.meeting.round % 2];
  if (warp.meeting.arrived == 0) warp.operation = operation;
  if (std::strcmp(warp.operation, operation) != 0) fail("lanes of a warp are at different instructions");
  std::memcpy(box[now->lane], &mine, sizeof(T));
  meet(warp.meeting, 32, orders);
  return {box};
}

inline void run_block(const std::function<void()> &kernel) {
  static std::function<void()> body;
  static std::vector<std::unique_ptr<char[]>> stacks;  // kept for the next block: fresh ones are dear
  body = kernel;
  const int threads = static_cast<int>(grid.threads.x);
#ifdef CUDA_ON_CPU_RACES
  races::begin(__start_cuda_shared, static_cast<size_t>(__stop_cuda_shared - __start_cuda_shared), threads / 32);
#endif
  std::memset(shared_memory, 0xff, kShared);
  std::fill(std::begin(barriers), std::end(barriers), Barrier{});
  in_vain = 0;
  warps.assign(threads / 32, Warp{});
  std::vector<Fiber> fibers(threads);
  std::vector<Fiber *> order;
  for (int i = 0; i < threads; ++i) {
    Fiber &fiber = fibers[i];
    fiber.index = dim3(i, 0, 0), fiber.lane = i % 32, fiber.warp = i / 32;
    if (stacks.size() <= static_cast<size_t>(i)) stacks.emplace_back(new char[kStack]);
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = stacks[i].get(), fiber.start.uc_stack.ss_size = kStack;
    makecontext(&fiber.start, +[] { body(), now->done = true, _longjmp(scheduler, 1); }, 0);
    order.push_back(&fiber);
  }
  std::vector<unsigned> speed;  // warps that run at one pace would hide that they do not wait for each other
  for (size_t i = 0; i < warps.size(); ++i) speed.push_back(1 + draw() % 8);
  for (bool progress = true; progress;) {
    progress = false;
    std::vector<bool> runs;
    for (const unsigned s : speed) runs.push_back(draw() % 8 < s);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    for (Fiber *fiber : order) {
      if (fiber->done || (fiber->watched && *fiber->watched == fiber->seen)) continue;
      progress = true;
      if (!runs[fiber->warp]) continue;
      resume(fiber);
      if constexpr (races::on) failure = failure ? failure : races::found();
      if (failure) return;
    }
  }
  const auto stuck = [](const Fiber &fiber) { return !fiber.done; };
  if (std::any_of(fibers.begin(), fibers.end(), stuck)) {
    failure = "deadlock: a barrier or warp instruction was not reached by all";
  }
}

template <typename... Parameters>
auto launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, size_t shared = 0, void * = nullptr) {
  return [=](Parameters... parameters) {
    const char *seed = std::getenv("CUDA_ON_CPU_SEED");
    chance = seed ? std::atoi(seed) : 0, copies_at_once = chance % 2 == 0;
    failure = nullptr;
    if (shared > static_cast<size_t>(on_an_l4() ? kSharedOfL4 : kShared)) failure = "more shared memory than a block can have";
    if (threads.x % 32 != 0 || threads.x > 1024) failure = "a block is 1 to 32 whole warps here";
    grid.blocks = blocks, grid.threads = threads, shared_bytes = shared;
    for (unsigned block = 0; block < blocks.x * blocks.y * blocks.z && !failure; ++block) {
      grid.block = dim3(block % blocks.x, block / blocks.x % blocks.y, block / blocks.x / blocks.y);
      run_block([=] { kernel(parameters...); });
    }
  };
}

inline unsigned char *at(uint32_t address, int bytes) {
  unsigned char *pointer = shared_memory + static_cast<int32_t>(address);
  const bool dynamic = pointer >= shared_memory && pointer < shared_memory + kShared;
  if (address % bytes != 0) fail("misaligned shared address");
  if (dynamic && pointer + bytes > shared_memory + shared_bytes) fail("outside the shared memory that was asked for");
  return pointer;
}

}  // namespace cuda_on_cpu

// ------------------------------------------------------------------------------------------------ CUDA's own functions
inline void __syncthreads() { cuda_on_cpu::meet(cuda_on_cpu::barriers[0], static_cast<int>(blockDim.x)); }
inline int __syncthreads_or(int mine) { return cuda_on_cpu::meet_and_vote(static_cast<int>(blockDim.x), mine); }
inline unsigned long long atomicCAS(unsigned long long *at, unsigned long long old, unsigned long long to) {
  const unsigned long long found = *at;
  if (found == old) *at = to;
  return found;
}
template <typename T>
T __ldcg(const T *from) {
  return *from;
}
[[noreturn]] inline void __trap() { cuda_on_cpu::fail("a trap"); }
inline void __syncwarp(unsigned = ~0u) { cuda_on_cpu::exchange("syncwarp", 0, true); }
template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return cuda_on_cpu::exchange("shfl.xor", x)[cuda_on_cpu::now->lane ^ mask];
}
template <typename T>
T __shfl_sync(unsigned, T x, int lane) {
  return cuda_on_cpu::exchange("shfl", x)[lane % 32];
}
inline int __any_sync(unsigned, int predicate) {
  const auto all = cuda_on_cpu::exchange("vote", predicate);
  bool any = false;
  for (int lane = 0; lane < 32; ++lane) any |= all[lane] != 0;
  return any;
}
inline int __all_sync(unsigned mask, int predicate) { return !__any_sync(mask, !predicate); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) made |= static_cast<unsigned>(both >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return made;
}
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline int __vimax3_s32(int x, int y, int z) { return std::max(std::max(x, y), z); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>((static_cast<uint64_t>(x) * y) >> 32); }
template <typename Merge>
int reduced(int mine, Merge merge) {
  const auto all = cuda_on_cpu::exchange("redux", mine);
  int found = all[0];
  for (int lane = 1; lane < 32; ++lane) found = merge(found, all[lane]);
  return found;
}
inline int __reduce_min_sync(unsigned, int x) { return reduced(x, [](int a, int b) { return std::min(a, b); }); }
inline int __reduce_max_sync(unsigned, int x) { return reduced(x, [](int a, int b) { return std::max(a, b); }); }
inline int __reduce_add_sync(unsigned, int x) { return reduced(x, std::plus<int>()); }
inline int __ffs(unsigned x) { return __builtin_ffs(static_cast<int>(x)); }
inline int __clz(unsigned x) { return x ? __builtin_clz(x) : 32; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
using std::max;
using std::min;

struct float2 {
  float x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using __half = _Float16;
using half = __half;
struct alignas(4) __half2 {
  __half x, y;
};
using half2 = __half2;
inline __half __float2half_rn(float x) { return static_cast<__half>(x); }
inline __half __float2half(float x) { return static_cast<__half>(x); }
inline float __half2float(__half x) { return static_cast<float>(x); }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half __hmax(__half x, __half y) { return x > y || y != y ? x : y; }  // of a number and NaN, the number
inline __half2 __hmax2(__half2 x, __half2 y) { return {__hmax(x.x, y.x), __hmax(x.y, y.y)}; }
inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }

using cudaError_t = int;
using cudaStream_t = void *;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline cudaError_t cudaGetLastError() { return cuda_on_cpu::failure ? cudaErrorLaunchFailure : cudaSuccess; }
inline cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
#include "streams.h"
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) {
  return cudaSuccess;
}
inline const char *cudaGetErrorName(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return cuda_on_cpu::failure;
  if (error == cudaErrorNotSupported) return "cudaErrorNotSupported";
  return error ? "cudaErrorInvalidValue" : "cudaSuccess";
}
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
// CUDA_ON_CPU_DEVICE=L4 makes choices, and limits, those of an L4.
inline cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  const bool l4 = cuda_on_cpu::on_an_l4();
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = l4 ? 58 : 3; break;
    case cudaDevAttrComputeCapabilityMajor: *value = l4 ? 8 : 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = l4 ? 9 : 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = l4 ? cuda_on_cpu::kSharedOfL4 : cuda_on_cpu::kShared; break;
  }
  return cudaSuccess;
}

// ------------------------------------------------------------------------------------------------ instructions
namespace flashcore {

inline unsigned char *dynamic_shared() { return cuda_on_cpu::shared_memory; }
inline uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(static_cast<const unsigned char *>(pointer) - cuda_on_cpu::shared_memory);
}

inline void cp_async_16(uint32_t to, const void *from, bool present) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) cuda_on_cpu::fail("cp.async from a misaligned address");
  auto &open = cuda_on_cpu::now->groups.back();
  open.push_back({cuda_on_cpu::at(to, 16), present ? from : nullptr});
  if constexpr (cuda_on_cpu::races::on) cuda_on_cpu::races::copy(open.back().to);
  if (cuda_on_cpu::copies_at_once) cuda_on_cpu::perform(open);
}
inline void load_16(uint32_t (&to)[4], const void *from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) cuda_on_cpu::fail("16 bytes from a misaligned address");
  std::memcpy(to, from, 16);
}
inline unsigned long long count_arrival(unsigned long long *word) { return (*word)++; }
inline void cp_async_commit() {
  cuda_on_cpu::now->groups.emplace_back();
  if constexpr (cuda_on_cpu::races::on) cuda_on_cpu::races::commit();
}
template <int PENDING>
void cp_async_wait() {
  auto &groups = cuda_on_cpu::now->groups;
  for (size_t i = 0; i + 1 + PENDING < groups.size(); ++i) cuda_on_cpu::perform(groups[i]);
  if constexpr (cuda_on_cpu::races::on) cuda_on_cpu::races::wait(PENDING);
}

template <bool TRANSPOSED>
void ldmatrix(uint32_t (&r)[4], uint32_t row) {
  const auto rows = cuda_on_cpu::exchange(TRANSPOSED ? "ldmatrix.trans" : "ldmatrix", row);
  const int g = cuda_on_cpu::now->lane / 4, t = cuda_on_cpu::now->lane % 4;
  for (int m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      const int line = TRANSPOSED ? 2 * t + i : g, column = TRANSPOSED ? g : 2 * t + i;
      std::memcpy(&pair[i], cuda_on_cpu::at(rows[8 * m + line], 16) + 2 * column, 2);
    }
    std::memcpy(&r[m], pair, 4);
  }
}
inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) { ldmatrix<false>(r, row); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row) { ldmatrix<true>(r, row); }

inline void mma_16816(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    __half a[8], b[4];
  } mine;
  std::memcpy(mine.a, a, 16), std::memcpy(mine.b, &b0, 4), std::memcpy(mine.b + 2, &b1, 4);
  const auto all = cuda_on_cpu::exchange("mma", mine);
  const int g = cuda_on_cpu::now->lane / 4, t = cuda_on_cpu::now->lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {  // where PTX says that A[row][k] and B[k][column] are
      const __half x = all[row % 8 * 4 + k % 8 / 2].a[k % 2 + 2 * (row / 8) + 4 * (k / 8)];
      const __half y = all[column * 4 + k % 8 / 2].b[k % 2 + 2 * (k / 8)];
      c[i] += __half2float(x) * __half2float(y);
    }
  }
}

inline void wait_for_previous() {}  // one launch at a time
inline void allow_next() {}
inline unsigned thread_again() { return threadIdx.x; }
inline uint32_t pack_halves(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  std::memcpy(&bits, &pair, 4);
  return bits;
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline void barrier_sync(int id, int threads) { cuda_on_cpu::meet(cuda_on_cpu::barriers[id], threads); }
inline void barrier_arrive(int id, int threads) { cuda_on_cpu::arrive(cuda_on_cpu::barriers[id], threads); }

}  // namespace flashcore

#include "bfloat16.h"   // bfloat16.cuh's instructions
#include "fp8.h"        // fp8.cuh's
#include "mbarriers.h"  // mbarrier.cuh's
