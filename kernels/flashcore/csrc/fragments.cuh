// WMMA's fragments of halves with FP32 sums, and where their elements lie.
//
// CUDA does not say which lane holds which element. What is written here holds on sm_80 to sm_90; look_at_device() finds
// out whether it holds on a device. Who relies on it asks before the first launch there.
#ifndef FLASHCORE_FRAGMENTS_CUH
#define FLASHCORE_FRAGMENTS_CUH

#include <mma.h>

#include "tiles.cuh"

namespace flashcore {

namespace wmma = nvcuda::wmma;

using Left = wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major>;
using Keys = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major>;  // K's rows are B's columns
using Values = wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major>;
using Sum = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
using Halves = wmma::fragment<wmma::accumulator, 16, 16, 16, __half>;

// Of element e of an accumulator: a lane has two rows, 8 apart, and the quad that shares them has their other columns.
constexpr int kElements = 8;
__device__ __forceinline__ int half_of(int e) { return e / 2 % 2; }
__device__ __forceinline__ int row_of(int e, int lane) { return lane / 4 + 8 * half_of(e); }
__device__ __forceinline__ int column_of(int e, int lane) { return lane % 4 * 2 + e % 2 + e / 4 * 8; }

// Elements e and e + 1 of an accumulator, as halves, to the left operand of the next product. Its second 8 elements
// repeat the first where they mean anything; on sm_80 and later they are in no register.
__device__ __forceinline__ void put(Left &left, int e, __half2 pair) {
  left.x[e] = left.x[e + kElements] = pair.x;
  left.x[e + 1] = left.x[e + kElements + 1] = pair.y;
}

constexpr size_t kLayoutBytes = 256 * (sizeof(float) + sizeof(__half));

// What is asked of a device once.
struct Device {
  int processors;
  bool fast_tensor;  // kFastTensor of the code that runs there
  bool differs;      // elements lie otherwise
};

// One warp looks. Numbers up to 255 are exact in halves, too.
static __global__ void flashcore_look(Device *found) {
  float *numbers = reinterpret_cast<float *>(dynamic_shared());
  __half *identity = reinterpret_cast<__half *>(numbers + 256);
  const int lane = threadIdx.x;
  for (int i = lane; i < 256; i += 32)
    numbers[i] = static_cast<float>(i), identity[i] = __float2half_rn(i / 16 == i % 16 ? 1.f : 0.f);
  __syncwarp();
  Sum in, out;
  Left left;
  Values right;
  wmma::load_matrix_sync(in, numbers, 16, wmma::mem_row_major);
  wmma::load_matrix_sync(right, identity, 16);
#pragma unroll
  for (int e = 0; e < kElements; e += 2) put(left, e, __floats2half2_rn(in.x[e], in.x[e + 1]));
  wmma::fill_fragment(out, 0.f);
  wmma::mma_sync(out, left, right, out);
#pragma unroll
  for (int e = 0; e < kElements; ++e) {
    const float here = static_cast<float>(16 * row_of(e, lane) + column_of(e, lane));
    if (in.x[e] != here || out.x[e] != here) found->differs = true;
  }
  if (lane == 0) found->fast_tensor = kFastTensor;
}

// Look, on the current device. A thread whose stream is recording a graph may ask, too: this is no part of the graph, hence a
// stream of its own, and such a thread may wait for it in this mode only.
inline int look_now(int number, Device &device) {
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, number))
    return error;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode)) return error;
  Device *seen = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaMallocHost(reinterpret_cast<void **>(&seen), sizeof *seen);
  if (!error) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (!error) {
    *seen = {};
    flashcore_look<<<1, 32, kLayoutBytes, stream>>>(seen);
    error = cudaGetLastError();
  }
  if (!error) error = cudaStreamSynchronize(stream);
  if (!error) device.fast_tensor = seen->fast_tensor, device.differs = seen->differs;
  if (stream) cudaStreamDestroy(stream);
  if (seen) cudaFreeHost(seen);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return error;
}

// At the current device, remembered; cudaErrorNotSupported where elements lie otherwise.
inline int look_at_device(Device &device) {
  constexpr int kDevices = 64;
  static Device known[kDevices];
  static std::atomic<bool> ready[kDevices];
  int number = 0;
  if (const cudaError_t error = cudaGetDevice(&number)) return error;
  if (number >= kDevices) return cudaErrorInvalidValue;
  if (!ready[number].load()) {  // two threads may both look: they write the same
    if (const int error = look_now(number, device)) return error;
    known[number] = device, ready[number].store(true);
  }
  device = known[number];
  return device.differs ? cudaErrorNotSupported : cudaSuccess;
}

}  // namespace flashcore

#endif
