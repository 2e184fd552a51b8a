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

__device__ __forceinline__ Place place(unsigned block, unsigned tiles, unsigned heads) {  // unsigned: divisions are short
  const unsigned tile = block % tiles, head = block / tiles % heads, batch = block / tiles / heads;
  return {static_cast<int>(tile), static_cast<int>(head), static_cast<int>(batch)};
}

// The first row of one head of one batch.
__device__ __forceinline__ const __half *head_of(const void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<const __half *>(base) + at.batch * stride.batch + at.head * stride.head;
}
__device__ __forceinline__ __half *head_of(void *base, const flashcore_strides &stride, const Place &at) {
  return static_cast<__half *>(base) + at.batch * stride.batch + at.head * stride.head;
}

// How many keys a row sees.
__device__ __forceinline__ int seen_by(const flashcore_args &args, int row) {
  return args.causal ? min(args.S_kv, row + 1) : args.S_kv;
}

// ------------------------------------------------------------------------------------------------ copies
// Begin to copy rows first .. first + ROWS - 1 of a head, by THREADS threads, each row's chunk c to byte place(row, c) of
// the tile; rows from `end` on become zeros (a weight of 0 times leftover NaN would be NaN) and are not read. Commit
// afterwards. Eight threads take a row: each keeps its chunk and walks down, one address that grows.

// Few instructions, and a few registers: tiles inside the tensor, nearly all, need no look at each row. The tile at the end
// goes row by row, in a loop kept small since it runs once.
template <int ROWS, int THREADS, typename Offset>
__device__ __forceinline__ void copy_rows(uint32_t tile, const __half *head, int64_t stride, int first, int end,
                                          unsigned thread, Offset place) {
  constexpr unsigned kStep = THREADS / kChunks;  // rows per round
  static_assert(ROWS % kStep == 0, "every round is full");
  const unsigned row = thread / kChunks, chunk = thread % kChunks;
  const __half *from = head + static_cast<uint64_t>(first + row) * stride + chunk * 8;
  // As a start and a distance, which the compiler knows: an address in full would be one more register.
  tile += place(row, chunk);
  const auto down_by = [&](unsigned down) { return tile + (place(row + down, chunk) - place(row, chunk)); };
  if (first + ROWS <= end) {
#pragma unroll
    for (unsigned down = 0; down < ROWS; down += kStep, from += kStep * stride) {
      cp_async_16(down_by(down), from, true);
    }
    return;
  }
#pragma unroll 1
  for (unsigned down = 0; down < ROWS; down += kStep, from += kStep * stride) {
    const bool present = first + row + down < static_cast<unsigned>(end);
    cp_async_16(down_by(down), present ? from : head, present);  // no address outside the tensor
  }
}

// Fewer registers: no branch, and any number of threads.
template <int ROWS, int THREADS, typename Offset>
__device__ __forceinline__ void copy_rows_predicated(uint32_t tile, const __half *head, int64_t stride, int first, int end,
                                                     int thread, Offset place) {
  static_assert(THREADS % kChunks == 0, "a pass over the tile is whole rows");
  constexpr int kPass = THREADS / kChunks;  // rows
  const int chunk = thread % kChunks;
  int row = thread / kChunks;
  const __half *from = head + (first + row) * stride + chunk * 8;
#pragma unroll
  for (int pass = 0; pass < (ROWS + kPass - 1) / kPass; ++pass, row += kPass, from += kPass * stride) {
    if (ROWS % kPass == 0 || row < ROWS) cp_async_16(tile + place(row, chunk), from, first + row < end);
  }
}

// ------------------------------------------------------------------------------------------------ launch
// Let a kernel have more than the 48 KB of shared memory that every kernel may use: each device wants to be asked once.
template <auto kernel>
int allow_shared(size_t shared_bytes) {
  static std::atomic<uint64_t> asked{0};
  if (shared_bytes <= 48 * 1024) return cudaSuccess;
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (!(asked.load() & bit)) {
    const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (const cudaError_t error = cudaFuncSetAttribute(kernel, limit, static_cast<int>(shared_bytes))) return error;
    asked.fetch_or(bit);
  }
  return cudaSuccess;
}

// Launch `blocks` blocks of a kernel that takes flashcore_args; cudaErrorInvalidValue for shapes no kernel here takes.
template <void (*kernel)(flashcore_args)>
int launch(const flashcore_args &args, int64_t blocks, int threads, size_t shared_bytes) {
  const bool positive = args.B > 0 && args.H > 0 && args.S_q > 0 && args.S_kv > 0;
  if (!positive || args.D != kHeadDim || blocks > INT32_MAX) return cudaErrorInvalidValue;
  if (const int error = allow_shared<kernel>(shared_bytes)) return error;
  kernel<<<static_cast<unsigned>(blocks), threads, shared_bytes, static_cast<cudaStream_t>(args.stream)>>>(args);
  return cudaGetLastError();
}

}  // namespace flashcore

#endif
