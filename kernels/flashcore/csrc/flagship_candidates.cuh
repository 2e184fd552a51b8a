// The tilings of flagship.cu as the host sees them: what it needs to know of each, and the lists of them.
#ifndef FLASHCORE_FLAGSHIP_CANDIDATES_CUH
#define FLASHCORE_FLAGSHIP_CANDIDATES_CUH

#include "driver.cuh"
#include "flagship.cuh"

namespace flashcore {

template <typename... C>
inline Prepared<Task> prepared[kDevices];

struct Sizes {
  int rows, warp_rows, keys, groups, stages, warps;
  bool pipelined, staggered;
  int tensor_sums;  // kNever, kAlways, kWhereFast
  bool shared_q, masked;
};

template <typename C>
inline constexpr Sizes sizes = {C::kTileM,  C::kWarpRows,   C::kTileN,     C::kGroups, C::kStages, C::kThreads / 32,
                                C::kPipelined, C::kStaggered, C::kOnes, C::kSharedQ, C::kMasked};

// A tiling that may be chosen. (One description for all, and functions that are no templates over the tiling: those
// would be compiled for each.)
struct Candidate : Sizes {
  int shared_bytes, least_shared;  // the last: of a device that may choose it
  Handle<Task>::Kernel kernel;
  Prepared<Task> *of_device;
  const Sizes *rest = nullptr;  // the second tiling of its launches, if they have one
};

struct Candidates {
  const Candidate *first;
  size_t count;
};

template <typename C>
constexpr Candidate candidate() {
  return {sizes<C>, static_cast<int>(C::kSharedBytes), static_cast<int>(kOneTiling ? C::kSharedBytes : C::kLeastShared),
          flashcore_flagship<C>, prepared<C>};
}

template <typename C, typename Rest>
constexpr Candidate candidate() {
  using Both = Together<C, Rest>;
  return {sizes<C>, static_cast<int>(Both::kSharedBytes), static_cast<int>(Both::kLeastShared),
          flashcore_flagship<C, Rest>, prepared<C, Rest>, &sizes<Rest>};
}

template <typename... C>
Candidates candidates() {
  static constexpr Candidate all[] = {candidate<C>()...};
  return {all, sizeof...(C)};
}

// A tiling for either type.
template <auto... HOW>
struct OfType {
  template <Type TYPE>
  using Of = Tiling<TYPE, HOW...>;
};

template <auto... HOW>
struct WithMask {
  template <Type TYPE>
  using Of = Masked<Tiling<TYPE, HOW...>>;
};

template <typename... T>
Candidates both(Type type) {
  return type == Type::kHalf ? candidates<typename T::template Of<Type::kHalf>...>()
                             : candidates<typename T::template Of<Type::kBfloat16>...>();
}

// What there is for a type, in the order in which it is looked at. Each tiling is the fastest, or nearly, for some shapes
// (docs/flagship-notes.md); bfloat16 has fewer, for the sake of the build's time.
// Those with masks are last, and for calls that need them only.
// Tiling<.., rows, rows per warp, keys, groups, stages, pipelined, least blocks, staggered, tensor sums, shared queries>
Candidates tilings_of_16_rows(Type type);
Candidates tilings_of_32_rows_staggered(Type type);
Candidates tilings_of_32_rows_pipelined(Type type);
Candidates tilings_of_64_rows(Type type);
Candidates tilings_of_64_rows_in_groups(Type type);
Candidates tilings_of_80_rows(Type type);
Candidates tilings_of_128_rows(Type type);
Candidates tilings_of_128_rows_and_fewer(Type type);  // in one launch
Candidates tilings_for_128_of_32_rows(Type type);  // here and below: D = 128
Candidates tilings_for_128_of_64_rows_staggered(Type type);
Candidates tilings_for_128_of_64_rows_pipelined(Type type);
Candidates tilings_for_128_of_128_rows(Type type);
Candidates small_tilings_for_80(Type type);
Candidates large_tilings_for_80(Type type);
Candidates small_tilings_for_96(Type type);
Candidates large_tilings_for_96(Type type);
Candidates small_tilings_for_256(Type type);
Candidates large_tilings_for_256(Type type);
Candidates tilings_with_masks(Type type);  // of D = 64, and of 128
Candidates tilings_for_128_with_masks(Type type);
Candidates the_only_tiling(Type type, int dim);  // of a library of one

}  // namespace flashcore

#endif
