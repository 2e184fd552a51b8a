// What a kernel needs of <cuda_runtime.h>, for a unit that is compiled without it (-DOWN_DECLARATIONS, apart.py): nvcc includes
// that header before any source, and to read it, twice, is a quarter of what a trial of a search costs a compiler. Names
// and meaning are CUDA's, and so is the machine code, to the byte (a test compares).
#ifndef FLASHCORE_DECLARATIONS_CUH
#define FLASHCORE_DECLARATIONS_CUH

#include <device_launch_parameters.h>  // threadIdx and its like; by it the vector types, __device__ and the rest
#include <stddef.h>
#include <stdint.h>

#define CUDART_INF_F __int_as_float(0x7f800000)

// The compiler knows these by name.
extern "C" {
__device__ __device_builtin__ void __syncthreads(void);
__device__ __device_builtin__ void __trap(void);
__device__ __device_builtin__ int min(int, int);
__device__ __device_builtin__ int max(int, int);
__device__ __device_builtin__ int __ffs(int);
__device__ __device_builtin__ int __clz(int);
__device__ __device_builtin__ int __popc(unsigned);
__device__ __device_builtin__ int __reduce_add_sync_signed_impl(unsigned lanes, int value);
__device__ __device_builtin__ int __reduce_min_sync_signed_impl(unsigned lanes, int value);
__device__ __device_builtin__ int __reduce_max_sync_signed_impl(unsigned lanes, int value);
__host__ __device__ __device_builtin__ float fabsf(float);
__host__ __device__ __device_builtin__ float fmaxf(float, float);
__device__ __device_builtin__ float __int_as_float(int);
__device__ __device_builtin__ int __float_as_int(float);
__device__ __device_builtin__ unsigned __umulhi(unsigned, unsigned);
__device__ __device_builtin__ void __nvvm_bar_warp_sync(unsigned lanes);
__device__ __device_builtin__ unsigned __nvvm_shfl_bfly_sync(unsigned lanes, unsigned value, unsigned flip, unsigned clamp);
__device__ size_t __nv_cvta_generic_to_shared_impl(const void *pointer);
}

static __device__ __forceinline__ void __syncwarp() { __nvvm_bar_warp_sync(0xffffffffu); }

static __device__ __forceinline__ float __shfl_xor_sync(unsigned lanes, float value, int flip) {
  constexpr unsigned kWholeWarp = 0x1f;  // the last lane of a segment, and no segments
  return __int_as_float(__nvvm_shfl_bfly_sync(lanes, __float_as_int(value), flip, kWholeWarp));
}

static __device__ __forceinline__ int __reduce_add_sync(unsigned lanes, int value) {
  return __reduce_add_sync_signed_impl(lanes, value);
}
static __device__ __forceinline__ int __reduce_min_sync(unsigned lanes, int value) {
  return __reduce_min_sync_signed_impl(lanes, value);
}
static __device__ __forceinline__ int __reduce_max_sync(unsigned lanes, int value) {
  return __reduce_max_sync_signed_impl(lanes, value);
}

static __device__ __forceinline__ size_t __cvta_generic_to_shared(const void *pointer) {
  return __nv_cvta_generic_to_shared_impl(pointer);
}

static __device__ __forceinline__ float2 make_float2(float x, float y) { return {x, y}; }
static __device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static __device__ __forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

#endif
