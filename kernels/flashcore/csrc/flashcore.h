// The one interface every kernel of this folder has, on the GPU and on the CPU: no framework headers, no C++ names.
//
//   O = softmax(scale * Q K^T [+ masks]) V      for each batch and head
//
// Tensors are FP16 (or what dtype says), [B, H, S, D] by their strides (in elements); the last dimension is contiguous. With `causal` 1, key j
// is seen by query i where j <= i, as torch's is_causal has it; with 2, where j <= i + S_kv - S_q, as torch's
// causal_lower_right. With a mask, too, only where its byte is not 0. The output of a query that sees no key is 0. The
// Python mirror of this struct is library.Args; a
// library built from another version of this file is refused when it is loaded (flashcore_args_bytes).
#ifndef FLASHCORE_H
#define FLASHCORE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
#define FLASHCORE_API extern "C" __attribute__((visibility("default")))
#else
#define FLASHCORE_API __attribute__((visibility("default")))
#endif

typedef struct flashcore_strides {
  int64_t batch, head, row;
} flashcore_strides;

typedef struct flashcore_args {
  const void *q, *k, *v;
  void *o;
  flashcore_strides q_stride, k_stride, v_stride, o_stride;
  int32_t B, H, S_q, S_kv, D;
  float scale;
  int32_t causal;
  int32_t threads;  // CPU kernels: how many to use, 0 for all; GPU kernels ignore it
  void *stream;     // GPU kernels: the cudaStream_t to launch on; CPU kernels ignore it and return when done
  int32_t H_kv;     // heads of K and V, a divisor of H; 0: H. Kernels that take only H are never given another
  int32_t dtype;    // 0: FP16; 1: bfloat16, given only to kernels that take it
  void *workspace;  // flashcore_workspace_bytes() bytes that nobody else uses until the kernel is done; null for none
  int32_t tiling;   // of libraries that choose one: 0, or the number of the one to use (flashcore_tiling); others ignore it
  // Given, as is causal 2, only to kernels that take it: [B, H, S_q, S_kv] bytes by their strides, one after the other in
  // the last dimension; null: none.
  const void *mask;
  flashcore_strides mask_stride;
  // Given only to kernels that take them; all zeros: nothing of the kind. Query i stands at key i + S_kv - S_q, or at key i
  // with `causal` 1. It sees so many keys before and behind its place, plus 1 (0: all). A scaled score s becomes
  // softcap * tanh(s / softcap), less the slope of its head times the distance of the key.
  int32_t window_left, window_right;
  float softcap;
  const float *slopes;  // [B, H], or [H] with a slope_batch of 0
  int64_t slope_batch;
  // Sequences one behind the other in the dimension S: where each begins, and the last one ends, [B + 1] on the device. S_q
  // and S_kv are the longest, batch strides are not used.
  const int32_t *starts_q, *starts_k;
  // Keys and values in pages of `page_keys`, 16 or another power of 2: page n of batch b is number table[b * table_stride + n],
  // and the batch strides of K and V are those between pages. lengths [B]: the keys of a batch, at most S_kv. On the device.
  const int32_t *table, *lengths;
  int64_t table_stride;
  int32_t page_keys;
} flashcore_args;

// 0, or the cudaError_t of what went wrong (1, cudaErrorInvalidValue, for arguments the kernel does not take).
FLASHCORE_API int flashcore_forward(const flashcore_args *args);
// The error's name, for messages.
FLASHCORE_API const char *flashcore_error(int code);
FLASHCORE_API size_t flashcore_args_bytes(void);
// Only of kernels that need memory between their launches: how much, for these arguments (addresses do not matter).
FLASHCORE_API size_t flashcore_workspace_bytes(const flashcore_args *args);
// Only of libraries whose kernel is in a file of device code: take it from there, before anything else. `settings` are the
// values that the variant's `told` names (registry.py). 0, or the cudaError_t of what went wrong.
FLASHCORE_API int flashcore_open(const char *file, const char *kernel, const int32_t *settings);

// Only of variants that are several libraries in one folder: tell the first one where, before anything else. It hands calls
// on to the one that has their tilings, or returns cudaErrorFileNotFound if that is not built yet.
FLASHCORE_API void flashcore_folder(const char *path);

// What a library's choice of a tiling depends on, beside the arguments.
typedef struct flashcore_device {
  int32_t processors, shared_bytes;  // multiprocessors, shared memory that a block may have
  int32_t major, minor;              // compute capability
} flashcore_device;

// Only of libraries that choose. The name of a tiling, for a type and a head dimension, by its number from 1 on, or from 101
// on of those of the flagship that take masks; null: no more. Until the next call in this thread.
FLASHCORE_API const char *flashcore_tiling(int32_t dtype, int32_t D, int32_t number);
// The number of the tiling that would be chosen on a device, of whose multiprocessors each holds `resident`[number - 1]
// blocks of a tiling at a time; 0: none fits. Needs no GPU.
FLASHCORE_API int flashcore_choice(const flashcore_args *args, const flashcore_device *device, const int32_t *resident);

#endif
