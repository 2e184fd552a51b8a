// The kernel of flagship.cu, a template over its tiling. Its ideas are told there.
#ifndef FLASHCORE_FLAGSHIP_CUH
#define FLASHCORE_FLAGSHIP_CUH

#include "flagship_rows.cuh"
#include "flagship_score.cuh"

namespace flashcore {

// The rows of one block. `Work` is a Task, or more. With a mask the kernel has called wait_for_previous(); `known`: the keys
// that the rows see, if it has looked already.
template <typename C, typename Work, typename... Known>
__device__ __forceinline__ void attend(const Work &task, const Spot at, const Known... known) {
  constexpr int kStages = C::kStages;
  const unsigned thread = threadIdx.x, group_thread = thread % C::kGroupThreads;
  const int lane = thread % 32, group = thread / C::kGroupThreads;
  const int warp_row = group_thread / 32 * C::kWarpRows;
  const unsigned kv_head = task.sharing ? __umulhi(at.head, task.sharing) : at.head;
  const uint16_t *k = head_at(task.k, task.k_stride, at.batch, kv_head);
  const uint16_t *v = head_at(task.v, task.v_stride, at.batch, kv_head);
  const int tile_row = at.tile * C::kTileM, first_row = tile_row + warp_row;
  const int shift = C::kSpan ? task.shift : 0;  // a causal row sees so many keys more
  const int end = task.causal ? min(task.S_kv, tile_row + C::kTileM + shift) : task.S_kv;
  Span span = {0, C::kWindowed ? max(end, 0) : end, 0, false};
  if constexpr (sizeof...(Known) > 0) {
    span = Span(known...);
  } else if constexpr (C::kMasked) {
    span = span_of(task, at, max(end, 0), C::kTileN, lane);
  }
  float slope = 0.f;  // of ALiBi
  if constexpr (C::kScored || C::kWindowed) span = within_window<C>(task, span, tile_row);
  if constexpr (C::kScored) slope = slope_of(task, at);
  const int first_key = C::kSpan ? span.first : 0;  // that any row of this block sees
  // What keys are counted from. (At D = 128 the compiler has better instructions for a window's tiles where it is 0.)
  const int origin = C::kWindowed && !C::kPipelined ? 0 : first_key;
  const int keys = (C::kSpan ? span.end : end) - origin, place = first_row + shift - origin;  // of the warp's first row
  if constexpr (C::kSpan) k += origin * task.k_stride.row, v += origin * task.v_stride.row;
  const int key_tiles = static_cast<unsigned>(keys + origin - first_key + C::kTileN - 1) / C::kTileN;
  // Of this group: tiles group, group + kGroups ..
  const int steps = static_cast<unsigned>(key_tiles - group + C::kGroups - 1) / C::kGroups;
  const float factor = task.factor;

  unsigned char *const memory = dynamic_shared();
  unsigned char *const rings = memory + C::kQBytes + C::kRowStateBytes;
  const uint32_t q_tile = shared_address(memory);
  const Queries queries = {q_tile, warp_row, task.flip};
  const uint32_t k_ring = shared_address(rings) + group * C::kRingBytes, v_ring = k_ring + kStages * C::kTileBytes;
  const auto key_of = [&](int step) { return first_key - origin + (step * C::kGroups + group) * C::kTileN; };
  const auto slot = [&](int step) { return (kStages == 1 ? 0 : step % kStages) * C::kTileBytes; };
  const uint16_t *k_from[C::kLines] = {k}, *v_from[C::kLines] = {v};  // the heads, or what is copied next, of each line
  if constexpr (C::kWalks) {
    const unsigned first = key_of(0) + group_thread / C::kLine, chunk = group_thread % C::kLine;
    k_from[0] += static_cast<uint64_t>(first) * task.k_stride.row + chunk * 8;
    v_from[0] += static_cast<uint64_t>(first) * task.v_stride.row + chunk * 8;
  }
  if constexpr (C::kWalks && C::kLines > 1) {
    const unsigned first = key_of(0) + group_thread / C::kBehind, chunk = C::kLine + group_thread % C::kBehind;
    k_from[1] = k + static_cast<uint64_t>(first) * task.k_stride.row + chunk * 8;
    v_from[1] = v + static_cast<uint64_t>(first) * task.v_stride.row + chunk * 8;
  }
  const auto load = [&](uint32_t ring, const uint16_t *(&from)[C::kLines], int64_t stride, int step) {
    constexpr int kThreads = C::kGroupThreads;
    if constexpr (C::kWalks) {
      if (step < steps) {
        const uint32_t tile = ring + slot(step);
        copy_rows_from<C, C::kTileN, kThreads, 0, C::kLine>(tile, from[0], stride, keys - key_of(step), group_thread);
        if constexpr (C::kLines > 1)
          copy_rows_from<C, C::kTileN, kThreads, C::kLine, C::kBehind>(tile, from[1], stride, keys - key_of(step),
                                                                       group_thread);
      }
#pragma unroll
      for (int i = 0; i < C::kLines; ++i) from[i] += C::kGroups * C::kTileN * stride;
    } else if (step < steps) {
      copy_rows_of<C, C::kTileN, kThreads>(ring + slot(step), from[0], stride, key_of(step), keys, group_thread);
    }
  };
  const auto load_k = [&](int step) { load(k_ring, k_from, task.k_stride.row, step); };  // of step 0, 1, 2 .. in turn
  const auto load_v = [&](int step) { load(v_ring, v_from, task.v_stride.row, step); };
  const auto group_barrier = [&] {  // all that share this group's rings
    if (C::kRowGroups > 1) {
      barrier_sync(1 + group, C::kGroupThreads);
    } else {
      __syncwarp();
    }
  };

  constexpr int kEarly = C::kStaggered ? C::kThreads / 2 : C::kThreads;  // threads that copy the queries
  // What the first copies need is computed while the launch ahead ends. (32 rows a warp have no registers to keep it in.)
  constexpr bool kKnown = !C::kSpan && C::kWarpRows == 16;
  const auto q_head = [&] { return head_at(task.q, task.q_stride, at.batch, at.head); };
  const uint16_t *q_from = nullptr;
  if constexpr (kKnown) q_from = kept(begin_of<C, kEarly>(q_head(), task.q_stride.row, tile_row, thread));
  const auto load_q = [&] {
    const auto stride = task.q_stride.row;
    if constexpr (kKnown) {
      copy_lines<C, C::kTileM, kEarly>(q_tile, q_from, stride, tile_row, task.S_q, thread);
      if constexpr (C::kLines > 1)
        copy_rows_of<C, C::kTileM, kEarly, C::kLine, C::kBehind>(q_tile, q_head(), stride, tile_row, task.S_q, thread);
    } else {
      copy_rows_of<C, C::kTileM, kEarly>(q_tile, q_head(), stride, tile_row, task.S_q, thread);
    }
  };

  // Staggered: the second half of the groups begins to copy when the first half's queries and keys are on their way, so that
  // the first half computes while the rest arrives.
  const bool early = !C::kStaggered || thread < kEarly;
  if constexpr (kKnown) {  // as late as it may be
    const auto begin = [&](const uint16_t *head, int64_t stride) {
      return address_of(C::kWalks ? head : begin_of<C, C::kGroupThreads>(head, stride, key_of(0), group_thread));
    };
    const uint32_t q_place = q_tile + place_of<C>(thread / C::kLine, thread % C::kLine);
    wait_for_previous(address_of(q_from) | q_place | begin(k_from[0], task.k_stride.row) |
                      begin(v_from[0], task.v_stride.row));
  } else if constexpr (!C::kSpan) {
    wait_for_previous();
  }
  if constexpr (C::kStaggered) {
    if (early) {
      load_q();
      cp_async_commit();
    } else {
      barrier_sync(15, C::kThreads);
    }
    load_k(0);
    if (early) barrier_sync(15, C::kThreads);
  } else {
    load_k(0);
    load_q();
  }
  cp_async_commit();
  const auto first_here = [&](auto pending) {  // the queries, and each group's first keys; `pending` copies may be late
    constexpr int kPending = decltype(pending)::value;
    if constexpr (C::kStaggered) {
      if (early) cp_async_wait<kPending + 1>();
      barrier_sync(14, C::kThreads);
      cp_async_wait<kPending>();
      group_barrier();
    } else {
      cp_async_wait<kPending>();
      __syncthreads();
    }
  };

  State<C> state;
  Tile<C> s;
  float maxima[C::kRowTiles][2];
  clear(state, group);
  Seen<C> seen;  // of a step's tile
  const auto read_mask = [&](int step) {
    if constexpr (C::kMasked) seen = seen_of<C>(task, at, span, origin + key_of(step), first_row, lane);
  };
  const auto masked = [&](int step) {  // whether any score of the tile was
    const int key = key_of(step);
    bool some = key + C::kTileN > keys || (task.causal && key + C::kTileN - 1 > place);
    // Short of registers, a lane's number is read again where it is needed rarely.
    const auto here = [&] { return C::kScored && C::kSharedQ ? static_cast<int>(thread_again() % 32) : lane; };
    if constexpr (C::kWindowed && C::kPipelined) {
      some |= key < place - task.width + C::kWarpRows - 1;
      const auto first_of = [&](int last) { return last - task.width; };
      if (some) mask_both_ends(s, key, place, keys, task.causal, thread_again() % 32, first_of);
    } else {
      if (some) mask(s, key, place, keys, task.causal, here());
      if constexpr (C::kWindowed) {
        const int hidden = place - task.width - key;
        if (hidden + C::kWarpRows - 1 > 0) hide_before(s, hidden, lane), some = true;
      }
    }
    if constexpr (C::kMasked) {
      if (C::kPipelined) read_mask(step);
      if (!seen.all) hide<C>(s, seen, here());
      some |= !seen.all;
    }
    return some;
  };
  const auto score = [&](int step) {  // and the rows' maxima
    scores<C, C::kKeyTiles>(s, state, queries, k_ring + slot(step), 0, lane);
    if constexpr (C::kScored) adjust<C>(s, task, slope, key_of(step), place, lane);
    if constexpr (C::kPadded) {  // pipelined: this is the first tile, the only one with keys before the first that is seen
      mask_both_ends(s, 0, place, keys, task.causal, lane, [&](int) { return span.read_to - first_key; });
    } else {
      masked(step);
    }
    max_of_tile(maxima, s);
  };
  const auto needed = [&](int step) {
    if constexpr (C::kScored || C::kWindowed)
      if (key_of(step) + C::kTileN <= place - task.width) return false;
    return !(task.causal && key_of(step) > place + C::kWarpRows - 1) && (!C::kMasked || seen.any);
  };
  const auto begin = [&] {  // once the queries are here
    if constexpr (C::kSharedQ) flip_tile<C>(memory, task.flip, thread);
    keep_q(state, queries, lane);
  };

  if constexpr (!C::kPipelined && kStages == 1) {
    // Copies in flight, oldest first: K(0) V(0) K(1) V(1) ..; K's place is free once its scores are, V's after the step.
    load_v(0);
    cp_async_commit();
    first_here(Number<1>{});
    begin();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      read_mask(step);
      if (step > 0) {
        cp_async_wait<0>();
        group_barrier();
        load_v(step);
        cp_async_commit();
      }
      const bool now = needed(step);
      if (now) {
        score(step);
        if (step == 0) {  // nothing to rescale
          begin_bases(state, maxima, factor);
        } else {
          rescale(state, maxima, factor);
        }
      }
      cp_async_wait<0>();
      group_barrier();
      load_k(step + 1);
      cp_async_commit();
      if (now) exp_and_add_up(state, s, v_ring, factor, lane);
    }
  } else if constexpr (!C::kPipelined) {
    // Copies in flight: K(0), V(0), then K(n) with V(n), a whole step or more ahead: one barrier a step. V(0) is waited for with
    // K(0): a question within the step, whether it is the first, would keep maxima and exponentials from being mixed. (But
    // beside the pipelined loop of attend_twice(), whose registers it would cost.)
    constexpr bool kLateValues = C::kTwice;
    const auto load_pair = [&](int step) {
      load_k(step);
      load_v(step);
      cp_async_commit();
    };
    load_v(0);
    cp_async_commit();
#pragma unroll
    for (int step = 1; step < kStages; ++step) load_pair(step);
    first_here(Number<kLateValues ? kStages : kStages - 1>{});
    begin();
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      read_mask(step);
      if (step > 0) {
        cp_async_wait<kStages - 2>();
        group_barrier();
        load_pair(step + kStages - 1);
      }
      const bool now = needed(step);
      if (now) {
        score(step);
        rescale(state, maxima, factor);
        if (!kLateValues) exp_and_add_up(state, s, v_ring + slot(step), factor, lane);
      }
      if (kLateValues && step == 0) {
        cp_async_wait<kStages - 1>();
        group_barrier();
      }
      if (kLateValues && now) exp_and_add_up(state, s, v_ring + slot(step), factor, lane);
    }
  } else {
    // Copies in flight: K(0), then V(n) with K(n + 1), which a step needs together.
    const auto load_pair = [&](int step) {
      load_v(step);
      load_k(step + 1);
      cp_async_commit();
    };
#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) load_pair(step);
    first_here(Number<kStages - 1>{});
    begin();
    if (steps > 0) score(0);
#pragma unroll 1
    for (int step = 0; step < steps - 1; ++step) {
      cp_async_wait<kStages - 2>();
      group_barrier();
      load_pair(step + kStages - 1);
      rescale(state, maxima, factor);
      reset_max(maxima);
      if constexpr (C::kRowTiles == 1) {  // tensor instructions of the next tile before this one's exponentials
        constexpr int kCount = C::kKeyTiles % 4 == 0 ? 4 : 2;  // key tiles whose sums run in parallel
        Tile<C> next;
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; n += kCount) {
          scores<C, kCount>(next, state, queries, k_ring + slot(step + 1), n, lane);
          if (n > 0) row_max<kCount>(maxima, next, n - kCount);
#pragma unroll
          for (int m = n; m < n + kCount; m += 2) {
            Weights<C> p;
            weights_of<C>(p, state, s, m, factor);
            add_up<C>(state, p, v_ring + slot(step), m, lane);
          }
        }
        row_max<kCount>(maxima, next, C::kKeyTiles - kCount);
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) s[0][n][e] = next[0][n][e];
      } else {  // the next tile's scores take the registers of this one's
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; n += 2) {
          Weights<C> p;
          weights_of<C>(p, state, s, n, factor);
          scores<C, 2>(s, state, queries, k_ring + slot(step + 1), n, lane);
          if (n > 0) row_max<2>(maxima, s, n - 2);
          add_up<C>(state, p, v_ring + slot(step), n, lane);
        }
        row_max<2>(maxima, s, C::kKeyTiles - 2);
      }
      if (masked(step + 1)) {
        reset_max(maxima);
        row_max<C::kKeyTiles>(maxima, s);
      }
      quad_max(maxima);
    }
    if (steps > 0) {
      cp_async_wait<0>();
      group_barrier();
      rescale(state, maxima, factor);
      exp_and_add_up(state, s, v_ring + slot(steps - 1), factor, lane);
    }
  }

  allow_next();
  uint16_t *o = head_at(task.o, task.o_stride, at.batch, at.head) + tile_row * task.o_stride.row;
  if constexpr (C::kGroups > 1) {
    if (C::kReadToTheEnd) group_barrier();  // all have left this group's keys and values
    auto *row_states = reinterpret_cast<float2 *>(memory + C::kQBytes);
    merge(state, rings, row_states, group, warp_row, o, task.o_stride.row, task.S_q - tile_row, lane);
  } else {
    // By way of the warp's own rows of the queries' tile, which nobody reads any more.
    store_via_smem<C::kType>(state.out, [&](int i, int h) { return scale_of<C>(row_sum(state, i, h)); }, memory, warp_row,
                             o, task.o_stride.row, task.S_q - tile_row, lane, place_of<C>);
  }
}

// The same by one of two tilings: where there are holes between the keys that rows see, or not.
template <typename C>
__device__ __forceinline__ void attend_twice(const Task &task, const Spot at) {
  const int end = task.causal ? min(task.S_kv, static_cast<int>(at.tile + 1) * C::kTileM + task.shift) : task.S_kv;
  const Span span = span_of(task, at, max(end, 0), C::kTileN, threadIdx.x % 32);
  if (span.holes) {
    attend<C>(task, at, span);
  } else {
    attend<typename C::WithoutHoles>(task, at, span);
  }
}

// A tiling that wants more shared memory than there is (kMostShared) is never chosen there (flagship_choice.cuh asks the
// device), and its kernel is left out: a quarter of the time of a build for an L4.
template <typename C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) flashcore_flagship(const Task task) {
  if constexpr ((kOneTiling ? C::kSharedBytes : C::kLeastShared) > kMostShared) {
    __trap();
  } else {
    if (C::kMasked) wait_for_previous();  // the mask is read first of all
    if constexpr (C::kTwice) {
      attend_twice<C>(task, spot(task));
    } else {
      attend<C>(task, spot(task));
    }
  }
}

// Two tilings in one launch: the first `whole` blocks, which fill the device some times over, have a row tile of C each; of
// the tiles behind, which would leave it partly idle, each is divided between blocks of Rest.
template <typename C, typename Rest>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) flashcore_flagship(const Task task) {
  using Both = Together<C, Rest>;
  if constexpr (Both::kLeastShared > kMostShared) {
    __trap();
  } else {
    const bool whole = blockIdx.x < task.whole;
    const unsigned behind = blockIdx.x - task.whole;
    const unsigned tile = whole ? blockIdx.x : task.whole + behind / Both::kParts;
    const unsigned head = tile / task.tiles;  // of all batches
    Spot at = {tile % task.tiles, head % task.heads, head / task.heads};
    if (whole) {
      attend<C>(task, at);
    } else {
      at.tile = at.tile * Both::kParts + behind % Both::kParts;
      if (at.tile * Rest::kTileM < static_cast<unsigned>(task.S_q)) attend<Rest>(task, at);
    }
  }
}

}  // namespace flashcore

#endif
