// What a cubin says of its kernels that no patch tells: which copy by tensor map or read textures, and
// where their parameters lie. Read from the file's bytes, so that no CUDA function has to be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensor_maps.h"

namespace accel_trace {

// Instructions in a kernel's code whose accesses are not patched, as bits; Uses::what in a log.
enum Use : uint32_t {
  kTensorMapLoad = 1,
  kTensorMapStore = 2,
  kTensorMapReduce = 4,  // reads and writes
  kTextureRead = 8,
  kSurfaceAccess = 16,
};
constexpr uint32_t kTensorMapUses = kTensorMapLoad | kTensorMapStore | kTensorMapReduce;

struct KernelCode {
  struct Parameter {
    uint32_t ordinal;
    uint32_t size;
    bool operator==(const Parameter& other) const {
      return ordinal == other.ordinal && size == other.size;
    }
  };
  uint32_t uses = 0;
  std::vector<Parameter> parameters;  // those that have room for what is looked for
};
using CubinCode = std::unordered_map<std::string, KernelCode>;  // by mangled name

// Adds the kernels of a cubin that use something of the above, or may get a tensor map. False for what
// is no cubin, or is cut off. Code is read as that of compute capability 7.0 and later.
// With `all`, every kernel, with all parameters that can hold an address.
bool read_cubin(const void* cubin, size_t bytes, bool all, CubinCode& out);

}  // namespace accel_trace
