// nvcuda::wmma for 16x16x16 halves with float sums: what CUDA's <mma.h> declares, on a processor.
#pragma once
#include "cuda_on_cpu.h"

#include <type_traits>

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  static constexpr bool is_left = std::is_same_v<Use, matrix_a>;
  static constexpr int num_elements = std::is_same_v<Use, accumulator> ? 8 : 16;  // of 16 the last 8 mean nothing
  T x[num_elements];
};

// Where in the matrix, row by row, element e of a lane lies: as on sm_80 and later, or, for kernels that rely on no layout,
// scattered as on no real GPU; or so in left operands only. build.py chooses.
enum class Layout { kScattered, kAmpere, kApart };
inline int position(int e, int lane, bool is_left) {
  constexpr Layout layout = Layout::CUDA_ON_CPU_FRAGMENTS;
  if (layout == Layout::kScattered || (layout == Layout::kApart && is_left)) return 32 * e + (5 * lane + 7) % 32;
  return 16 * (lane / 4 + 8 * (e / 2 % 2)) + lane % 4 * 2 + e % 2 + 8 * (e / 4);
}
template <typename F>
int position(const F &, int e, int lane = cuda_on_cpu::now->lane) {
  return position(e, lane, F::is_left);
}

template <typename F, typename T>
void fill_fragment(F &f, T value) {
  for (auto &x : f.x) x = value;
}

template <typename T>
void check(const T *matrix, unsigned stride) {
  if (reinterpret_cast<uintptr_t>(matrix) % 32 != 0) cuda_on_cpu::fail("wmma: not a multiple of 32 bytes");
  if (stride * sizeof(T) % 16 != 0) cuda_on_cpu::fail("wmma: a stride is a multiple of 16 bytes");
}

template <typename F, typename T>
void load(F &f, const T *from, unsigned stride, bool row_major) {
  cuda_on_cpu::exchange("wmma.load", from);
  check(from, stride);
  for (auto &x : f.x) x = NAN;
  for (int e = 0; e < 8; ++e) {
    const int row = position(f, e) / 16, column = position(f, e) % 16;
    f.x[e] = from[row_major ? row * stride + column : column * stride + row];
  }
}

template <typename Use, int M, int N, int K, typename T>
void load_matrix_sync(fragment<Use, M, N, K, T, row_major> &f, const T *from, unsigned stride) {
  load(f, from, stride, true);
}
template <typename Use, int M, int N, int K, typename T>
void load_matrix_sync(fragment<Use, M, N, K, T, col_major> &f, const T *from, unsigned stride) {
  load(f, from, stride, false);
}
template <int M, int N, int K, typename T>
void load_matrix_sync(fragment<accumulator, M, N, K, T> &f, const T *from, unsigned stride, layout_t layout) {
  load(f, from, stride, layout == mem_row_major);
}

template <int M, int N, int K, typename T>
void store_matrix_sync(T *to, const fragment<accumulator, M, N, K, T> &f, unsigned stride, layout_t layout) {
  cuda_on_cpu::exchange("wmma.store", to);
  check(to, stride);
  for (int e = 0; e < 8; ++e) {
    const int row = position(f, e) / 16, column = position(f, e) % 16;
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = f.x[e];
  }
  cuda_on_cpu::exchange("wmma.stored", 0);  // which orders no memory
}

template <typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, __half, LayoutA> &a,
              const fragment<matrix_b, 16, 16, 16, __half, LayoutB> &b,
              const fragment<accumulator, 16, 16, 16, float> &c) {
  struct Operands {
    __half a[8], b[8];
  } mine;
  std::copy_n(a.x, 8, mine.a), std::copy_n(b.x, 8, mine.b);
  const auto all = cuda_on_cpu::exchange("wmma.mma", mine);
  float left[256], right[256];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 8; ++e) {
      left[position(a, e, lane)] = __half2float(all[lane].a[e]);
      right[position(b, e, lane)] = __half2float(all[lane].b[e]);
    }
  for (int e = 0; e < 8; ++e) {
    float sum = c.x[e];
    const int row = position(c, e) / 16, column = position(c, e) % 16;
    for (int k = 0; k < 16; ++k) sum += left[row * 16 + k] * right[k * 16 + column];
    d.x[e] = sum;
  }
}

}  // namespace nvcuda::wmma
