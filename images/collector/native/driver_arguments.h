// The arguments of the driver's functions that are watched, as cuda.h declares them, in their order:
// so the Sanitizer hands them on.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace accel_trace {

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

struct LookupArguments {  // cuModuleGetFunction, cuLibraryGetKernel
  void** found;
  void* in;
  const char* name;
};

struct MoveArguments {  // of copies in one piece and, with a value, of fills; not all have a stream
  uint64_t to;
  uint64_t from;  // fills: the value, in its first bytes
  size_t count;   // bytes; fills: elements
  CUstream stream;
};

}  // namespace accel_trace
