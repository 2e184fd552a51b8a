// nvcuda::wmma for 16x16x16 halves with float sums: what CUDA's <mma.h> declares, on a processor.
#pragma once
#include "cuda_on_cpu.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

// Element e of lane l is element 32 * e + (5 * l + 7) % 32 of the matrix: no real layout, so none can be relied on.
template <typename Use, int M, int N, int K, typename T, typename Layout = void>
struct fragment {
  static_assert(M == 16 && N == 16 && K == 16);
  static constexpr int num_elements = 8;
  T x[num_elements];
};

inline int position(int element) { return 32 * element + (5 * cuda_on_cpu::now->lane + 7) % 32; }

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
  for (int e = 0; e < f.num_elements; ++e) {
    const int row = position(e) / 16, column = position(e) % 16;
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
  for (int e = 0; e < f.num_elements; ++e) {
    const int row = position(e) / 16, column = position(e) % 16;
    to[layout == mem_row_major ? row * stride + column : column * stride + row] = f.x[e];
  }
  __syncwarp();
}

template <typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, 16, 16, 16, float> &d, const fragment<matrix_a, 16, 16, 16, __half, LayoutA> &a,
              const fragment<matrix_b, 16, 16, 16, __half, LayoutB> &b,
              const fragment<accumulator, 16, 16, 16, float> &c) {
  const auto as = cuda_on_cpu::exchange("wmma.mma a", a), bs = cuda_on_cpu::exchange("wmma.mma b", b);
  float left[256], right[256];
  for (int lane = 0; lane < 32; ++lane)
    for (int e = 0; e < 8; ++e) {
      const int place = 32 * e + (5 * lane + 7) % 32;
      left[place] = __half2float(as[lane].x[e]), right[place] = __half2float(bs[lane].x[e]);
    }
  for (int e = 0; e < 8; ++e) {
    float sum = c.x[e];
    for (int k = 0; k < 16; ++k) sum += left[position(e) / 16 * 16 + k] * right[k * 16 + position(e) % 16];
    d.x[e] = sum;
  }
}

}  // namespace nvcuda::wmma
