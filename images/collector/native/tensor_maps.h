// Tensor maps: the descriptors by which kernels copy whole boxes of a tensor (TMA), which no patch
// sees. Known by their 128 bytes from the calls that made them, and found again by those bytes among
// the parameters of a launch.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cubin.h"

namespace accel_trace {

constexpr uint32_t kMostRank = 5;
constexpr uint32_t kUnknownType = UINT32_MAX;  // of a map whose address alone is known

struct TensorMap {
  uint64_t address = 0;
  uint64_t span = 0;   // bytes from the first to the end of the last element
  uint64_t bytes = 0;  // of all its elements; more than span where they overlap
  uint32_t type = 0;   // CUtensorMapDataType
  uint32_t rank = 0;
  std::array<uint64_t, kMostRank> extent{};      // elements, innermost first
  std::array<uint64_t, kMostRank - 1> stride{};  // bytes; the innermost's is an element
};

uint32_t bits_of_type(uint32_t type);  // of an element; 0 for a type that is not known

// From the arguments that the driver's functions for encoding share; false where they make no sense.
bool describe(uint32_t type, uint32_t rank, uint64_t address, const uint64_t* extents,
              const uint64_t* strides, TensorMap& out);

class TensorMaps {
 public:
  void add(const void* image, const TensorMap& map);
  const TensorMap* find(const void* image) const;
  // Those that lie in a parameter, at `step` bytes from each other, each once.
  void search(const void* parameter, size_t bytes, size_t step,
              std::vector<TensorMap>& found) const;
  uint64_t made() const { return made_; }

 private:
  static constexpr size_t kMost = 1 << 16;  // then the oldest are forgotten
  std::unordered_map<std::string_view, TensorMap> maps_;
  std::deque<std::string> images_;
  uint64_t made_ = 0;
};

}  // namespace accel_trace
