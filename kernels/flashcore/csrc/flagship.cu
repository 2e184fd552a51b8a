// flagship: what the other variants taught, put together, and chosen by shape and device.
//
// A block has TILE_M query rows. Its WARPS_KV groups of warps each walk over their own tiles of keys and never wait for
// each other before the end: a group copies its own K and V into its own ring of STAGES tiles and meets at a barrier of
// its own; a group of one warp needs none. Then each warp adds up some columns of all groups' results and writes them.
//
// Further ideas, each of them a few lines, so that it can be taken out again and measured (docs/flagship-notes.md):
// - STAGES tiles of K and V are on their way before the first is looked at: a short sequence is one burst of copies.
// - STAGGERED: half of the groups begin to copy when the other half's copies are on their way, and each quarter of a
//   multiprocessor has a warp of either half: one computes while the other's keys arrive.
// - PIPELINED: tensor instructions of the next tile's Q K^T alternate with the exponentials of this one, so that both
//   units work at the same time within one warp. With 32 rows a warp the next scores take the registers of this tile's,
//   16 keys at a time, and maxima are looked for among those that are there already.
// - Sums are rescaled without asking whether a maximum grew; threads that are many enough keep where they are in K and V;
//   a block without groups writes whole rows, by way of shared memory.
// - TENSOR_SUMS: the sums of rows are one more column of P V, a column of ones.
// - Where the last blocks would leave much of the device idle, they are divided: two tilings in one launch.
// - SHARED_Q: queries are read from shared memory in each step, which makes room for 32 rows per warp at D = 128.
// - The way to the first copy is short: no division, a grid of three dimensions, keys before queries.
// - On sm_90 a launch begins before the one ahead has ended, and waits for it before its first copy.
//
// FP16 and bfloat16, head dimensions 64, 80, 96, 128 and 256, any strides, and fewer heads of K and V than of Q.

#ifdef KERNEL_ALONE  // to a file of device code: nothing of the host's
#include "flagship.cuh"
#else
#include "flagship_candidates.cuh"
#endif

#ifndef TILE_M  // 0: choose by shape and device. Otherwise the library holds the one tiling that these describe
#define TILE_M 0
#endif
#ifndef TILE_N
#define TILE_N 64
#endif
#ifndef STAGES
#define STAGES 1
#endif
#ifndef WARPS_KV
#define WARPS_KV 1
#endif
#ifndef WARP_ROWS
#define WARP_ROWS 16
#endif
#ifndef PIPELINED
#define PIPELINED 0
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 0
#endif
#ifndef STAGGERED
#define STAGGERED 0
#endif
#ifndef TENSOR_SUMS
#define TENSOR_SUMS 0
#endif
#ifndef SHARED_Q
#define SHARED_Q 0
#endif
#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif
#ifndef BFLOAT16
#define BFLOAT16 0
#endif
#ifndef MASKED
#define MASKED 0
#endif
// All tilings take a compiler many seconds, so there are several libraries, each for some calls (library_of() of
// flagship_choice.cuh); LIBRARY is the number of this one, -1 where one has all. And this file can be compiled as several
// translation units at once: PART is the sum of what a unit has, 1 for the functions of flashcore.h and a power of two for
// each #if below with tilings. (registry.py has what is whose, and sums that take about as long as each other.) What the compiler makes of a kernel, the
// order of a few instructions before its loop, depends on whether another one of its unit has the same expressions for
// addresses in shared memory. So FP16 and bfloat16 of a tiling stay together, and tilings for FP16 alone share an #if with
// such another: each kernel comes out the same to the byte, whatever else is in its unit.
#ifndef PART
#define PART 2097151
#endif
#ifndef LIBRARY
#define LIBRARY -1
#endif

namespace flashcore {

#if TILE_M

constexpr Type kOnly = BFLOAT16 ? Type::kBfloat16 : Type::kHalf;
using Plain = Tiling<kOnly, HEAD_DIM, TILE_M, WARP_ROWS, TILE_N, WARPS_KV, STAGES, PIPELINED, MIN_BLOCKS, STAGGERED,
                     TENSOR_SUMS, SHARED_Q>;
#if MASKED
using Only = Masked<Plain>;
#else
using Only = Plain;
#endif

#ifdef KERNEL_ALONE
template __global__ void flashcore_flagship<Only>(const Task);
#elif PART & 2
Candidates the_only_tiling(Type type, int dim) {
  return type == kOnly && dim == HEAD_DIM ? candidates<Only>() : Candidates{};
}
#endif

#else

#if PART & 2
Candidates tilings_of_16_rows(Type type) {
  return type == Type::kHalf ? candidates<Tiling<Type::kHalf, 64, 16, 16, 16, 4, 2, true, 1, false, kWhereFast>,
                                          Tiling<Type::kHalf, 64, 16, 16, 32, 4, 2, true, 1, false, kWhereFast>,
                                          Tiling<Type::kHalf, 64, 16, 16, 64, 4, 2, true, 1, false, kWhereFast>>()
                             : candidates<Tiling<Type::kBfloat16, 64, 16, 16, 32, 4, 2, true, 1, false, kWhereFast>>();
}
#endif

#if PART & 4
Candidates tilings_of_32_rows_staggered(Type type) {
  return both<OfType<64, 32, 16, 128, 4, 1, false, 1, true>, OfType<64, 32, 16, 128, 2, 1, false, 1, true>>(type);
}
#endif

#if PART & 8
Candidates tilings_of_32_rows_pipelined(Type type) {
  return both<OfType<64, 32, 16, 64, 2, 2, true, 0, false, kAlways>>(type);
}
#endif

#if PART & 2048
Candidates tilings_of_80_rows(Type type) {
  return both<OfType<64, 80, 16, 128, 2, 1, false, 1, true, kAlways, true>>(type);
}
#endif

#if PART & 16
Candidates tilings_of_64_rows(Type type) {
  if (type != Type::kHalf) return {};
  return candidates<Tiling<Type::kHalf, 64, 64, 16, 64, 1, 2, true, 0, false, kWhereFast>>();
}
#endif

#if PART & 32
Candidates tilings_of_64_rows_in_groups(Type type) {
  return both<OfType<64, 64, 32, 64, 2, 2, true, 2, false, kAlways>>(type);
}
#endif

#if PART & 64
Candidates tilings_of_128_rows(Type type) { return both<OfType<64, 128, 32, 64, 1, 2, true, 0, false, kAlways>>(type); }
#endif

#if PART & 16384
Candidates tilings_of_128_rows_and_fewer(Type type) {
  using Whole = Tiling<Type::kHalf, 64, 128, 32, 64, 1, 2, true, 0, false, kAlways>;
  static constexpr Candidate all[] = {
      candidate<Whole, Tiling<Type::kHalf, 64, 64, 32, 64, 2, 2, true, 0, false, kAlways>>(),
      candidate<Whole, Tiling<Type::kHalf, 64, 32, 32, 32, 4, 2, true, 0, false, kAlways>>(),
      candidate<Whole, Tiling<Type::kHalf, 64, 64, 16, 64, 1, 2, true, 0, false, kWhereFast>>()};
  return type == Type::kHalf ? Candidates{all, 3} : Candidates{};
}
#endif

#if PART & 128
Candidates tilings_for_128_of_32_rows(Type type) { return both<OfType<128, 32, 16, 64, 4, 1, false, 1, true>>(type); }
#endif

#if PART & 256
Candidates tilings_for_128_of_64_rows_staggered(Type type) {
  return both<OfType<128, 64, 16, 64, 2, 1, false, 1, true>>(type);
}
#endif

#if PART & 512
Candidates tilings_for_128_of_64_rows_pipelined(Type type) {
  return both<OfType<128, 64, 16, 64, 1, 2, true, 0, false, true>>(type);
}
#endif

#if PART & 1024
Candidates tilings_for_128_of_128_rows(Type type) {
  return both<OfType<128, 128, 32, 64, 1, 2, false, 0, false, kAlways, true>>(type);
}
#endif

#if PART & 4096
struct Of128Rows {  // pipelined, where there are no holes
  template <Type TYPE>
  using Of = Twice<Tiling<TYPE, 64, 128, 32, 64, 1, 2, false, 0, false, kAlways>,
                   Tiling<TYPE, 64, 128, 32, 64, 1, 2, true, 0, false, kAlways>>;
};

Candidates tilings_with_masks(Type type) {
  return both<WithMask<64, 32, 16, 64, 2, 2, true, 0, false, kAlways>,
              WithMask<64, 64, 16, 64, 1, 2, false, 3, false, kWhereFast>,
              Of128Rows>(type);
}
#endif

#if PART & 8192
Candidates tilings_for_128_with_masks(Type type) {
  return both<WithMask<128, 32, 16, 64, 2, 1, false, 1, true>,
              WithMask<128, 64, 16, 64, 1, 2, true, 0, false, kAlways>>(type);
}
#endif

template <int DIM>
Candidates small_tilings_around_96(Type type) {
  return both<OfType<DIM, 32, 16, 32, 2, 2, true, 0, false, kAlways>, OfType<DIM, 64, 16, 48, 1, 2, true, 0, false, kAlways>>(
      type);
}

template <int DIM, typename Largest>
Candidates large_tilings_around_96(Type type) {
  return both<OfType<DIM, 128, 32, 32, 1, 2, true, 0, false, kAlways>, Largest,
              WithMask<DIM, 64, 16, 64, 1, 2, true, 0, false, kAlways>>(type);
}

#if PART & 32768
Candidates small_tilings_for_80(Type type) { return small_tilings_around_96<80>(type); }
#endif

#if PART & 65536
Candidates large_tilings_for_80(Type type) {
  return large_tilings_around_96<80, OfType<80, 128, 32, 48, 1, 2, true, 0, false, kAlways>>(type);
}
#endif

#if PART & 131072
Candidates small_tilings_for_96(Type type) { return small_tilings_around_96<96>(type); }
#endif

#if PART & 262144
Candidates large_tilings_for_96(Type type) {
  return large_tilings_around_96<96, OfType<96, 128, 32, 64, 1, 1, false, 0, false, kAlways, true>>(type);
}
#endif

#if PART & 524288
Candidates small_tilings_for_256(Type type) {
  return both<OfType<256, 32, 16, 32, 2, 1, false, 0, false, kNever, true>,
              OfType<256, 64, 16, 64, 1, 1, false, 0, false, kNever, true>>(type);
}
#endif

#if PART & 1048576
Candidates large_tilings_for_256(Type type) {
  return both<OfType<256, 128, 16, 32, 1, 1, false, 0, false, kNever, true>>(type);
}
#endif

#endif  // TILE_M

}  // namespace flashcore

#if PART & 1 && !defined(KERNEL_ALONE)

#include "flagship_choice.cuh"

FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  const bool positive = args->B > 0 && args->H > 0 && args->S_q > 0 && args->S_kv > 0 && args->H_kv >= 0;
  const bool known = args->dtype == 0 || args->dtype == 1;
  if (!positive || !known || (args->H_kv && args->H % args->H_kv)) return cudaErrorInvalidValue;
#if LIBRARY >= 0
  if (const int library = library_of(*args); library != LIBRARY) {
    const auto forward = function_of(library, forwards, "flashcore_forward");
    return forward ? forward(args) : cudaErrorFileNotFound;
  }
#endif
  return choose(*args, remembered(*args));
}

#endif
