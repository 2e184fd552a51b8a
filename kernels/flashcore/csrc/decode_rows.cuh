// What a warp of decode.cu does with its keys, and how the warps of a block put their results together.
#ifndef FLASHCORE_DECODE_ROWS_CUH
#define FLASHCORE_DECODE_ROWS_CUH

#include "decode_choice.cuh"
#include "decode_reads.cuh"
#include "flagship_tiling.cuh"
#include "online_softmax.cuh"

namespace flashcore {

// An instruction; the tests emulate it (tests/support/cuda_on_cpu/cuda_on_cpu.h).
#ifndef CUDA_ON_CPU

// Add 1, after what this block wrote before its last barrier, and before what it reads after its next one.
__device__ __forceinline__ unsigned long long count_arrival(unsigned long long *word) {
  unsigned long long before;
  asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;\n" : "=l"(before) : "l"(word) : "memory");
  return before;
}

#endif

constexpr int kThreads = 32 * WARPS;

struct Decode {
  const uint16_t *q, *k, *v;
  uint16_t *o;
  flashcore_strides q_stride, k_stride, v_stride, o_stride;
  float factor;      // from scores to powers of 2, positive
  uint32_t flip;     // xor onto two packed values of Q: the sign of the scale
  int rows;          // that read the same keys: row r is query r / sharing of the (r % sharing)th of the heads that share
  int sharing, row_tiles, S_kv, splits;
  int causal, shift, width;  // query i sees keys up to i + shift, if causal; and of them the last `width`
  int share;         // tiles of keys of a split, without a mask
  unsigned long long token;  // its low 16 bits are 0: there arrivals are counted
  unsigned long long *arrivals;  // of each row tile, if there are several splits
  // Of each split of each row tile, one after the other; height: of a row tile.
  float2 *states;  // [min(height, rows)] (maximum, sum)
  float *sums;     // [min(height, rows)][D], not divided by the sum
  // If paged: [B][..] numbers of pages; pages are so many elements apart (the batch's stride of K and V) and have
  // 1 << page_shift keys. How many of a batch's keys there are; S_kv is the most.
  const int *table;
  int64_t table_stride;
  const int *lengths;
  int page_shift, S_q;
};

template <Type TYPE, int DIM, int HALVES>
struct Layout {
  static constexpr Type kType = TYPE;
  static constexpr int kDim = DIM, kHalves = HALVES, kRows = 8 * HALVES;  // of a row tile
  static constexpr int kKeys = keys_of_tile(DIM), kKeyTiles = kKeys / 8;  // of mma
  // Whether a warp reads keys 128 bytes of a row at a time, of 4 rows, not 64 of 8.
  static constexpr bool kWholeLines = HALVES == 1;
  // Tiles of keys, and of values, in a warp's registers: one in use, the others on their way.
  static constexpr int kBuffers = BUFFERS, kValueBuffers = DIM == 128 && HALVES == 2 ? 1 : BUFFERS;
  static constexpr int kPadded = DIM + 8;   // floats between rows of results: neighbours are in other banks
  static constexpr int kOfLane = DIM / 32;  // columns, where a warp reads a row
  static constexpr uint32_t kBoxBytes = kRows * kPadded * 4;
  static constexpr uint32_t kSharedBytes = WARPS * (kBoxBytes + kRows * 8);

  static_assert(kSharedBytes <= 99 * 1024, "fits an L4");
};

// A row's results, and what they are relative to.
template <int COLUMNS>
struct Partial {
  float base, sum, out[COLUMNS];

  __device__ __forceinline__ void clear() {
    base = kLowest, sum = 0.f;
#pragma unroll
    for (float &x : out) x = 0.f;
  }

  __device__ __forceinline__ void raise(float to) {
    const float keep = exp2_approx(base - to);
    base = to, sum *= keep;
#pragma unroll
    for (float &x : out) x *= keep;
  }

  // `base` is at least the other's.
  __device__ __forceinline__ void add(const Partial &other) {
    const float weight = exp2_approx(other.base - base);
    sum += other.sum * weight;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) out[i] += other.out[i] * weight;
  }
};

// A block's boxes in shared memory, one for each warp: [kRows][kPadded] results, and [kRows] maxima and sums.
template <typename C>
struct Boxes {
  unsigned char *memory;

  __device__ __forceinline__ float *out(int box, int row) const {
    return reinterpret_cast<float *>(memory + box * C::kBoxBytes) + row * C::kPadded;
  }
  __device__ __forceinline__ float2 &state(int box, int row) const {
    return reinterpret_cast<float2 *>(memory + WARPS * C::kBoxBytes)[box * C::kRows + row];
  }

  // Add up the first `count` boxes: four columns a thread, given to leave(row, column, partial).
  template <typename Leave>
  __device__ __forceinline__ void add_up(int count, int rows, int thread, Leave leave) const {
    constexpr int kPieces = C::kDim / 4;  // of a row
#pragma unroll 1
    for (int piece = thread; piece < rows * kPieces; piece += kThreads) {
      const int row = piece / kPieces, column = piece % kPieces * 4;
      Partial<4> whole;
      whole.clear();
      for (int box = 0; box < count; ++box) whole.base = fmaxf(whole.base, state(box, row).x);
      for (int box = 0; box < count; ++box) {
        const float2 known = state(box, row);
        const float4 x = *reinterpret_cast<const float4 *>(out(box, row) + column);
        whole.add({known.x, known.y, {x.x, x.y, x.z, x.w}});
      }
      leave(row, column, whole);
    }
  }
};

// What a warp carries from tile to tile: of queries g and g + 8, and the sums of queries 2t, 2t + 1 and both plus 8.
template <typename C>
struct Rows {
  uint32_t q[C::kDim / 32][C::kHalves][4];
  float base[C::kHalves], sum[C::kHalves];  // the latter of this lane's keys only
  float out[C::kDim / 64][4][C::kHalves][4];  // [w][i]: dimensions 64w + 8g + 2i, of both queries, and its neighbour

  __device__ __forceinline__ void scores(float (&s)[C::kKeyTiles][4], const Keys<C> &k) const {
    if constexpr (C::kWholeLines) {
      return scores_of_lines(s, k);
    } else {
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n) zero(s[n]);
#pragma unroll
      for (int c = 0; c < C::kDim / 32; ++c)
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const uint32_t a[4] = {q[c][0][2 * u], q[c][C::kHalves - 1][2 * u], q[c][0][2 * u + 1],
                                 q[c][C::kHalves - 1][2 * u + 1]};
#pragma unroll
          for (int n = 0; n < C::kKeyTiles; ++n) mma<C::kType>(s[n], a, k[n][c][2 * u], k[n][c][2 * u + 1]);
        }
    }
  }

  // The mma's second 8 rows, which few queries leave free, are the queries again, of the upper 32 dimensions of each 64. Of
  // 4 keys, column 2t has the lower and column 2t + 1 the upper ones of key t: half of the products are of no use, and the
  // two that are meet in one lane.
  __device__ __forceinline__ void scores_of_lines(float (&s)[C::kKeyTiles][4], const Keys<C> &k) const {
    constexpr int kLinesOfRow = C::kDim / 64;
    float part[C::kKeyTiles][2][4];
#pragma unroll
    for (int n = 0; n < C::kKeyTiles; ++n) zero(part[n][0]), zero(part[n][1]);
#pragma unroll
    for (int line = 0; line < kLinesOfRow; ++line)
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const auto &low = q[2 * line][0], &high = q[2 * line + 1][0];
        const uint32_t a[4] = {low[2 * u], high[2 * u], low[2 * u + 1], high[2 * u + 1]};
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const auto &b = k[n][i * kLinesOfRow + line];
            mma<C::kType>(part[n][i], a, b[2 * u], b[2 * u + 1]);
          }
      }
#pragma unroll
    for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) s[n][i] = part[n][i][0] + part[n][i][3];
  }

  // Weights, as P^T's operand; sums and output are brought to the new maxima.
  __device__ __forceinline__ void softmax(uint32_t (&p)[C::kKeyTiles][C::kHalves], const float (&s)[C::kKeyTiles][4],
                                          float factor, int lane) {
#pragma unroll
    for (int h = 0; h < C::kHalves; ++h) {
      float most = -CUDART_INF_F;
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
      const float keep = raise_base(base[h], reduce_max<4>(most), factor);
      sum[h] *= keep;
#pragma unroll
      for (int n = 0; n < C::kKeyTiles; ++n) {
        const float x = exp2_approx(s[n][2 * h] * factor - base[h]);  // exactly 0 where masked
        const float y = exp2_approx(s[n][2 * h + 1] * factor - base[h]);
        sum[h] += x + y;
        p[n][h] = pack<C::kType>(x, y);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float of_column = __shfl_sync(kAllLanes, keep, lane % 4 * 8 + 4 * e);
#pragma unroll
        for (int w = 0; w < C::kDim / 64; ++w)
#pragma unroll
          for (int i = 0; i < 4; ++i) out[w][i][h][e] *= of_column, out[w][i][h][2 + e] *= of_column;
      }
    }
  }

  __device__ __forceinline__ void add_up(const uint32_t (&p)[C::kKeyTiles][C::kHalves], const Values<C> &v) {
#pragma unroll
    for (int n = 0; n < C::kKeyTiles; n += 2)
#pragma unroll
      for (int w = 0; w < C::kDim / 64; ++w)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t a[4];  // of two keys each: a dimension and its neighbour, 8 keys on the same
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            a[2 * m] = __byte_perm(v[n + m][0][w][i], v[n + m][1][w][i], 0x5410);
            a[2 * m + 1] = __byte_perm(v[n + m][0][w][i], v[n + m][1][w][i], 0x7632);
          }
#pragma unroll
          for (int h = 0; h < C::kHalves; ++h) mma<C::kType>(out[w][i][h], a, p[n][h], p[n + 1][h]);
        }
  }
};

// One warp's tiles of keys, `from`, from + step .. below `to`; `table` begins with them. All rows see keys to `open`, the
// lane's rows those to `ends`, none any behind `keys`, and of these the last task.width. `begin` is called, to set up `rows`
// and `ends`, when the first tiles are on their way.
template <typename C, typename Begin>
__device__ __forceinline__ void attend(Rows<C> &rows, const Decode &task, const Place &k, const Place &v, Table<C> &table,
                                       int from, int step, int to, int keys, int open, const int (&ends)[C::kHalves],
                                       int lane, Begin begin) {
  Pages<C> pages[C::kBuffers];
  Keys<C> k_tiles[C::kBuffers];
  Values<C> v_tiles[C::kValueBuffers];
  const Reads<C> reads = {k, v, task.page_shift, keys, lane};
  const auto load_k = [&](int i, int at) {
    if (at >= to) return;
    if constexpr (kPaged) table.take(pages[i], i), pages[i].settle(at * C::kKeys, keys);
    load_keys<C>(k_tiles[i], reads, pages[i], at * C::kKeys);
  };
  const auto load_v = [&](int i, int at) {  // `i`: of its keys' tile
    if (at >= to) return;
    load_values<C>(v_tiles[i % C::kValueBuffers], reads, pages[i], at * C::kKeys);
  };
  if constexpr (!kPaged) {
    uint64_t known = 0;
#pragma unroll
    for (int n = 0; n < 2 * C::kKeyTiles; ++n)
      known |= address_of(reads.key(pages[0], from * C::kKeys, n / 2, n % 2)) |
               address_of(reads.value(pages[0], from * C::kKeys, n / 2, n % 2));
    wait_for_previous(known);
  }
#pragma unroll
  for (int i = 0; i < C::kBuffers; ++i) {
    load_k(i, from + i * step);
    if (i < C::kValueBuffers) load_v(i, from + i * step);
  }
  if constexpr (kPaged)
    if (from + Table<C>::kTiles * step < to) table.next = table.find(from + Table<C>::kTiles * step);
  begin();
#pragma unroll 1
  for (int first = from; first < to; first += C::kBuffers * step) {
    if constexpr (kPaged) table.advance(C::kBuffers, first + C::kBuffers * step);
#pragma unroll
    for (int i = 0; i < C::kBuffers; ++i) {
      const int at = first + i * step, key = at * C::kKeys;
      if (at >= to) break;
      float s[C::kKeyTiles][4];
      rows.scores(s, k_tiles[i]);
      load_k(i, at + C::kBuffers * step);
      if (key + C::kKeys > open || key < keys - task.width) {
#pragma unroll
        for (int n = 0; n < C::kKeyTiles; ++n)
#pragma unroll
          for (int e = 0; e < 2 * C::kHalves; ++e)
            if (const int to_end = ends[e / 2] - (key + 8 * n + lane % 4 * 2 + e % 2); to_end <= 0 || to_end > task.width)
              s[n][e] = -CUDART_INF_F;
      }
      uint32_t p[C::kKeyTiles][C::kHalves];
      rows.softmax(p, s, task.factor, lane);
      rows.add_up(p, v_tiles[i % C::kValueBuffers]);
      load_v((i + C::kValueBuffers) % C::kBuffers, at + C::kValueBuffers * step);
    }
  }
}

}  // namespace flashcore

#endif
