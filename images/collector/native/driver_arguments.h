// The arguments of the driver's functions that are watched, as cuda.h declares them, in their order:
// so the Sanitizer hands them on. Its own header for this lacks the tensor maps' functions.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace accel_trace {

struct EncodeArguments {  // cuTensorMapEncodeTiled, Im2col and Im2colWide begin with these
  void* map;
  uint32_t type;
  uint32_t rank;
  void* address;
  const uint64_t* extents;
  const uint64_t* strides;
};

struct ReplaceAddressArguments {
  void* map;
  void* address;
};

struct LaunchArguments {  // cuLaunchKernel; cuLaunchCooperativeKernel has no `extra`
  CUfunction function;
  unsigned int grid[3], block[3], shared;
  CUstream stream;
  void** parameters;
  void** extra;
};

struct LaunchExArguments {
  const void* config;
  CUfunction function;
  void** parameters;
  void** extra;
};

struct RuntimeLaunchArguments {  // cudaLaunchKernel, and cudaLaunchCooperativeKernel
  const void* function;
  unsigned int grid[3], block[3];
  void** parameters;
};

struct RuntimeLaunchExArguments {  // cudaLaunchKernelExC
  const void* config;
  const void* function;
  void** parameters;
};

struct EndCaptureArguments {
  CUstream stream;
  CUgraph* graph;
};

}  // namespace accel_trace
