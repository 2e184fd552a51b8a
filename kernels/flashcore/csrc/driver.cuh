// Launches through the driver's own function, with a handle that was asked for once per device: the runtime looks up
// both at every launch, which is part of the time of a call from Python. With CODE_FROM_FILE the kernel is none of this
// library's, but of a file of device code.
#ifndef FLASHCORE_DRIVER_CUH
#define FLASHCORE_DRIVER_CUH

#include <cuda_runtime.h>

#include "flashcore.h"

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

constexpr int kDevices = 64;

inline int ask_driver(int number, flashcore_device &device) {
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, number))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.major, cudaDevAttrComputeCapabilityMajor, number))
    return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&device.minor, cudaDevAttrComputeCapabilityMinor, number))
    return error;
  return cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
}

inline int current_device(int &number, flashcore_device &device) {  // remembered
  static flashcore_device known[kDevices];
  static Published<bool> ready[kDevices];
  if (const cudaError_t error = cudaGetDevice(&number)) return error;
  if (number >= kDevices) return cudaErrorInvalidValue;
  if (!ready[number].load()) {  // two threads may both ask: they write the same
    if (const int error = ask_driver(number, known[number])) return error;
    ready[number].store(true);
  }
  device = known[number];
  return cudaSuccess;
}

#ifndef CUDA_ON_CPU

// As cuLaunchKernel is declared: function, blocks, threads, bytes of shared memory, stream, parameters, extra.
using Launch = int (*)(cudaFunction_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t,
                       void **, void **);

// A function of the driver, as CUDA 12.0 has it; no library is linked with the driver.
template <typename Function>
int ask_for(const char *name, Function &function) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  if (error) return error;
  if (status != cudaDriverEntryPointSuccess) return cudaErrorSymbolNotFound;
  function = reinterpret_cast<Function>(found);
  return cudaSuccess;
}

// The same, asked for once: each function that is asked for so has a type of its own.
template <typename Function>
int ask_once(const char *name, Function &function) {
  static Published<Function> known;
  function = known.load();
  if (function) return cudaSuccess;
  if (const int error = ask_for(name, function)) return error;
  known.store(function);
  return cudaSuccess;
}

#ifdef CODE_FROM_FILE

using Code = struct CUlib_st *;
using CodeKernel = struct CUkern_st *;

// The kernel called `name` in a file of device code, for every device and as long as the process lives.
inline int load_kernel(const char *file, const char *name, CodeKernel &kernel) {
  int (*load)(Code *, const char *, void *, void *, unsigned, void *, void *, unsigned) = nullptr;
  int (*get)(CodeKernel *, Code, const char *) = nullptr;
  if (const int error = ask_for("cuLibraryLoadFromFile", load)) return error;
  if (const int error = ask_for("cuLibraryGetKernel", get)) return error;
  Code code = nullptr;
  if (const int error = load(&code, file, nullptr, nullptr, 0, nullptr, nullptr, 0)) return error;
  return get(&kernel, code, name);
}

#endif

// As cuLaunchKernelEx is declared: a launch with attributes, one of which lets it begin before the one ahead has ended.
struct LaunchConfig {  // CUlaunchConfig
  unsigned blocks[3], threads[3], shared_bytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attributes;
  unsigned count;
};
using LaunchWith = int (*)(const LaunchConfig *, cudaFunction_t, void **, void **);

// A kernel of one parameter, as one device has it, that calls wait_for_previous() before it reads or writes global memory.
// The driver's codes are the runtime's (cudaErrorInvalidValue is CUDA_ERROR_INVALID_VALUE, and so on).
template <typename Parameter>
struct Handle {
#ifdef CODE_FROM_FILE
  using Kernel = CodeKernel;

  int open(Kernel kernel) {
    int (*get)(cudaFunction_t *, Kernel) = nullptr;
    if (const int error = ask_for("cuKernelGetFunction", get)) return error;
    return get(&function, kernel);
  }
#else
  using Kernel = void (*)(Parameter);

  int open(Kernel kernel) { return cudaGetFuncBySymbol(&function, reinterpret_cast<const void *>(kernel)); }
#endif

  // Let it have so much shared memory, and ask how many of its blocks a multiprocessor holds.
  int allow(unsigned threads, int shared_bytes, int &resident) {
    constexpr int kPtxVersion = 5, kMaxDynamicSharedSizeBytes = 8;  // as CUfunction_attribute has them
    int (*get)(int *, int, cudaFunction_t) = nullptr;
    if (const int error = ask_for("cuFuncGetAttribute", get)) return error;
    int version = 0;
    if (const int error = get(&version, kPtxVersion, function)) return error;
    waits = version >= 90;
    int (*set)(cudaFunction_t, int, int) = nullptr;
    int (*count)(int *, cudaFunction_t, int, size_t) = nullptr;
    if (const int error = ask_for("cuFuncSetAttribute", set)) return error;
    if (const int error = ask_for("cuOccupancyMaxActiveBlocksPerMultiprocessor", count)) return error;
    if (const int error = set(function, kMaxDynamicSharedSizeBytes, shared_bytes)) return error;
    return count(&resident, function, static_cast<int>(threads), static_cast<size_t>(shared_bytes));
  }

  int start(Kernel, dim3 blocks, unsigned threads, size_t shared_bytes, void *stream, Parameter parameter) const {
    void *parameters[] = {&parameter};
    if (waits) {
      LaunchWith launch;
      if (const int error = ask_once("cuLaunchKernelEx", launch)) return error;
      cudaLaunchAttribute early;
      early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      early.val.programmaticStreamSerializationAllowed = 1;
      const LaunchConfig config = {{blocks.x, blocks.y, blocks.z}, {threads, 1, 1}, static_cast<unsigned>(shared_bytes),
                                   static_cast<cudaStream_t>(stream), &early, 1};
      return launch(&config, function, parameters, nullptr);
    }
    Launch launch;
    if (const int error = ask_once("cuLaunchKernel", launch)) return error;
    return launch(function, blocks.x, blocks.y, blocks.z, threads, 1, 1, static_cast<unsigned>(shared_bytes),
                  static_cast<cudaStream_t>(stream), parameters, nullptr);
  }

  cudaFunction_t function;
  bool waits;  // its code is for sm_90 or later, so that it calls wait_for_previous() (tensor.cuh)
};

#else  // on a processor there is no driver

template <typename Parameter>
struct Handle {
  using Kernel = void (*)(Parameter);

  int open(Kernel of) { return kernel = of, cudaSuccess; }

  int allow(unsigned threads, int shared_bytes, int &resident) const {
    if (const int error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes))
      return error;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, static_cast<int>(threads), shared_bytes);
  }

  int start(Kernel, dim3 blocks, unsigned threads, size_t shared_bytes, void *stream, Parameter parameter) const {
    kernel<<<blocks, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(parameter);
    return cudaGetLastError();
  }

  Kernel kernel;
};

#endif

// What a device knows of a kernel: asked once.
template <typename Parameter>
struct Prepared {
  Published<int> resident;  // blocks that a multiprocessor holds at a time; 0: not asked yet
  Handle<Parameter> handle;

  int prepare(typename Handle<Parameter>::Kernel kernel, unsigned threads, int shared_bytes, int &blocks) {
    blocks = resident.load();
    if (blocks) return cudaSuccess;
    if (const int error = handle.open(kernel)) return error;  // two threads may both ask: they write the same
    if (const int error = handle.allow(threads, shared_bytes, blocks)) return error;
    blocks = blocks > 1 ? blocks : 1;
    resident.store(blocks);
    return cudaSuccess;
  }
};

}  // namespace flashcore

#endif
