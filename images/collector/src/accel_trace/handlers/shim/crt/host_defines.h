// Stands in for the toolkit's file of this name where only the runtime wheel is installed.
// Device-side words mean nothing to a host compiler, and alignment is the compiler's own.
#pragma once

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __align__(bytes)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __specialization_static static
#define CUDARTAPI
#define CUDARTAPI_CDECL
