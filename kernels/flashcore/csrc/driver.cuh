// Launches through the driver's own function, with a handle that was asked for once per device: the runtime looks up
// both at every launch, which is part of the time of a call from Python.
#ifndef FLASHCORE_DRIVER_CUH
#define FLASHCORE_DRIVER_CUH

#include <cuda_runtime.h>

namespace flashcore {

// What is needed of <atomic> and <cuda.h> is here: a twelfth of what the compilers of one tiling take is reading these
// two, and a search has many built.

// Of static storage: what one thread stores, another loads with all that was written before.
template <typename T>
struct Published {
  T load() const { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }
  void store(T to) { __atomic_store_n(&value, to, __ATOMIC_RELEASE); }

  T value;
};

#ifndef CUDA_ON_CPU

// As cuLaunchKernel is declared: function, blocks, threads, bytes of shared memory, stream, parameters, extra.
using Launch = int (*)(cudaFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t,
                       void **, void **);

inline int driver_launch(Launch &launch) {
  static Published<void *> known;
  void *found = known.load();
  if (!found) {
    cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuLaunchKernel", &found, 12000, cudaEnableDefault, &status);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuLaunchKernel", &found, cudaEnableDefault, &status);
#endif
    if (error) return error;
    if (status != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
    known.store(found);
  }
  launch = reinterpret_cast<Launch>(found);
  return cudaSuccess;
}

// A kernel of one parameter, as one device has it.
template <typename Parameter>
struct Handle {
  using Kernel = void (*)(Parameter);

  int open(Kernel kernel) { return cudaGetFuncBySymbol(&function, reinterpret_cast<const void *>(kernel)); }

  // The driver's codes are the runtime's (cudaErrorInvalidValue is CUDA_ERROR_INVALID_VALUE, and so on).
  int start(Kernel, dim3 blocks, unsigned threads, size_t shared_bytes, void *stream, Parameter parameter) const {
    Launch launch;
    if (const int error = driver_launch(launch)) return error;
    void *parameters[] = {&parameter};
    return launch(function, blocks.x, blocks.y, blocks.z, threads, 1, 1, static_cast<unsigned>(shared_bytes),
                  static_cast<cudaStream_t>(stream), parameters, nullptr);
  }

  cudaFunction_t function;
};

#else  // on a processor there is no driver

template <typename Parameter>
struct Handle {
  using Kernel = void (*)(Parameter);

  int open(Kernel) { return cudaSuccess; }

  int start(Kernel kernel, dim3 blocks, unsigned threads, size_t shared_bytes, void *stream, Parameter parameter) const {
    kernel<<<blocks, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(parameter);
    return cudaGetLastError();
  }
};

#endif

}  // namespace flashcore

#endif
