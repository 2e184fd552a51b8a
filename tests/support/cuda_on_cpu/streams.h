// What a kernel's host code asks of the runtime beside launches, on a processor, where a launch has ended when it returns.
#pragma once

enum { cudaErrorNotSupported = 801, cudaStreamNonBlocking = 1 };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };

inline cudaError_t cudaMallocHost(void **memory, size_t bytes) { return *memory = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFreeHost(void *memory) { return std::free(memory), cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) { return *stream = nullptr, cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }
