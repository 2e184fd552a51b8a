// For kernels whose head dimension is 64: the layout of a tile in shared memory, copies into it, and the launch.
//
// A tile is some rows of 64 halves, 128 bytes each: 8 chunks of 16 bytes, the unit that cp.async copies and ldmatrix
// reads. A 128-byte row spans all 32 banks, so the same chunk of 8 rows would lie in the same 4 banks: chunk c of row r
// is kept at place c ^ (r % 8) instead, and reading a column of chunks touches every bank once (swizzle()).
#ifndef FLASHCORE_TILES_CUH
#define FLASHCORE_TILES_CUH

#include <cuda_fp16.h>

#include <atomic>

#include "tensor.cuh"

namespace flashcore {

constexpr int kHeadDim = 64;
constexpr int kRowBytes = kHeadDim * 2;
constexpr int kChunks = kRowBytes / 16;

// Byte offset of chunk `chunk` of row `row` in a tile.
__device__ __forceinline__ uint32_t swizzle(uint32_t row, uint32_t chunk) {  // unsigned: % is then a mask
  return row * kRowBytes + ((chunk ^ row % kChunks) << 4);
}

// What one block works on: consecutive blocks share a head, so that its K and V are read from L2, not from DRAM.
struct Place {
  int tile, head, batch;
};

__device__ __forceinline__ Place place(int block, int tiles, int heads) {
  return {block % tiles, block / tiles % heads, block / tiles / heads};
}

// The first row of one head of one batch.
__device__ __forceinline__ const __half *head_of(const void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<const __half *>(base) + at.batch * stride.batch + at.head * stride.head;
}
__device__ __forceinline__ __half *head_of(void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<__half *>(base) + at.batch * stride.batch + at.head * stride.head;
}

// Begin to copy rows first .. first + ROWS - 1 of a head into a swizzled tile; rows from `end` on become zeros, so that
// a weight of zero meets a value of zero and never a NaN that happened to lie in memory. Commit afterwards.
// Each thread keeps its chunk and strides over rows: one address that grows, not one per row held in registers.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(uint32_t tile, const __half *head, int64_t stride, int first, int end,
                                          int thread) {
  static_assert(THREADS % kChunks == 0, "a pass over the tile is whole rows");
  constexpr int kPass = THREADS / kChunks;  // rows
  const int chunk = thread % kChunks;
  int row = thread / kChunks;
  const __half *from = head + (first + row) * stride + chunk * 8;
#pragma unroll
  for (int pass = 0; pass < (ROWS + kPass - 1) / kPass; ++pass, row += kPass, from += kPass * stride) {
    if (ROWS % kPass == 0 || row < ROWS) cp_async_16(tile + swizzle(row, chunk), from, first + row < end);
  }
}

// ------------------------------------------------------------------------------------------------ launch
// Launch `blocks` blocks of a kernel that takes flashcore_args; cudaErrorInvalidValue for shapes no kernel here takes.
template <void (*kernel)(flashcore_args)>
int launch(const flashcore_args &args, int64_t blocks, int threads, size_t shared_bytes) {
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0;
  if (!positive || args.D != kHeadDim || blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (shared_bytes > 48 * 1024) {  // beyond what every kernel may use, each device wants to be asked once
    static std::atomic<uint64_t> asked{0};
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device)) return error;
    const uint64_t bit = uint64_t{1} << (device % 64);
    if (!(asked.load() & bit)) {
      const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if (const cudaError_t error = cudaFuncSetAttribute(kernel, limit, static_cast<int>(shared_bytes))) return error;
      asked.fetch_or(bit);
    }
  }
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, static_cast<cudaStream_t>(args.stream)>>>(args);
  return cudaGetLastError();
}

}  // namespace flashcore

#endif
