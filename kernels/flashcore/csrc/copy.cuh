// Copies of whole tiles for kernels whose copying must cost little: few instructions, few registers.
#ifndef FLASHCORE_COPY_CUH
#define FLASHCORE_COPY_CUH

#include "tiles.cuh"

namespace flashcore {

// Begin to copy rows first .. first + ROWS - 1 of a head, by THREADS threads, each row's chunk c to byte offset(row, c)
// of the tile; rows from `end` on become zeros (a weight of 0 times leftover NaN would be NaN) and are not read.
// Eight threads take a row. Tiles inside the tensor, nearly all, need no look at each row: one pointer walks down, with
// three instructions a chunk. The tile at the end goes row by row, in a loop kept small since it runs once.
template <int ROWS, int THREADS, typename Offset>
__device__ __forceinline__ void copy_rows(uint32_t tile, const __half *head, int64_t stride, int first, int end,
                                          int thread, Offset offset) {
  constexpr int kStep = THREADS / kChunks;  // rows per round
  static_assert(ROWS % kStep == 0, "every round is full");
  const int row = thread / kChunks, chunk = thread % kChunks;
  const __half *from = head + (first + row) * stride + chunk * 8;
  if (first + ROWS <= end) {
#pragma unroll
    for (int down = 0; down < ROWS; down += kStep, from += kStep * stride) {
      cp_async_16(tile + offset(row + down, chunk), from, true);
    }
    return;
  }
#pragma unroll 1
  for (int down = 0; down < ROWS; down += kStep, from += kStep * stride) {
    const bool present = first + row + down < end;
    cp_async_16(tile + offset(row + down, chunk), present ? from : head, present);  // no address outside the tensor
  }
}

}  // namespace flashcore

#endif
