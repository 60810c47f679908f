// Tensor maps: the descriptors by which kernels copy whole boxes of a tensor (TMA), which no patch
// sees. Known by the bytes that the hardware reads, among the parameters of a launch: libraries of
// NVIDIA make theirs without a call of the driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace accel_trace {

constexpr uint32_t kMostRank = 5;
constexpr size_t kTensorMapBytes = 64;  // of the driver's 128, the rest is its own
constexpr size_t kTensorMapStep = 16;   // where they may begin in a parameter

struct TensorMap {
  uint64_t address = 0;
  uint64_t span = 0;   // bytes from the first to the end of the last element
  uint64_t bytes = 0;  // of all its elements; more than span where they overlap
  uint32_t type = 0;   // CUtensorMapDataType
  uint32_t rank = 0;
  std::array<uint64_t, kMostRank> extent{};      // elements, innermost first
  std::array<uint64_t, kMostRank - 1> stride{};  // bytes; the innermost's is an element

  bool operator==(const TensorMap& other) const {
    return address == other.address && type == other.type && rank == other.rank &&
           extent == other.extent && stride == other.stride;
  }
};

// Reads the image of a map as GPUs of compute capability 9.0 and later do: where the compiler writes
// each field for PTX's `tensormap.replace`. False for bytes that can be none.
bool read_tensor_map(const void* image, TensorMap& out);

}  // namespace accel_trace
