#include "tensor_maps.h"

#include <algorithm>

namespace accel_trace {
namespace {

std::string_view image_at(const void* image) {
  return {static_cast<const char*>(image), kTensorMapBytes};
}

bool same(const TensorMap& a, const TensorMap& b) {
  return a.address == b.address && a.type == b.type && a.rank == b.rank && a.extent == b.extent &&
         a.stride == b.stride;
}

}  // namespace

uint32_t bits_of_type(uint32_t type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return 32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 64;
    case 13:              // 16U4_ALIGN8B; numbers, since older headers lack the names
    case 14: return 4;    // 16U4_ALIGN16B
    case 15: return 6;    // 16U6_ALIGN16B
    default: return 0;
  }
}

bool describe(uint32_t type, uint32_t rank, uint64_t address, const uint64_t* extents,
              const uint64_t* strides, TensorMap& out) {
  const uint64_t bits = bits_of_type(type);
  if (bits == 0 || rank < 1 || rank > kMostRank || !extents || (rank > 1 && !strides)) return false;
  out = TensorMap{};
  out.address = address;
  out.type = type;
  out.rank = rank;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    if (extents[i] == 0) return false;
    out.extent[i] = extents[i];
    elements *= extents[i];
    if (i > 0) {
      out.stride[i - 1] = strides[i - 1];
      out.span += (extents[i] - 1) * strides[i - 1];
    }
  }
  out.span += (extents[0] * bits + 7) / 8;
  out.bytes = (elements * bits + 7) / 8;
  return true;
}

void TensorMaps::add(const void* image, const TensorMap& map) {
  ++made_;
  const auto known = maps_.find(image_at(image));
  if (known != maps_.end()) {
    known->second = map;
    return;
  }
  if (images_.size() >= kMost) {
    maps_.erase(images_.front());
    images_.pop_front();
  }
  images_.emplace_back(image_at(image));
  maps_.emplace(images_.back(), map);
}

const TensorMap* TensorMaps::find(const void* image) const {
  const auto found = maps_.find(image_at(image));
  return found == maps_.end() ? nullptr : &found->second;
}

void TensorMaps::search(const void* parameter, size_t bytes, size_t step,
                        std::vector<TensorMap>& found) const {
  if (maps_.empty() || !parameter) return;
  const char* const first = static_cast<const char*>(parameter);
  for (size_t at = 0; at + kTensorMapBytes <= bytes; at += step) {
    const TensorMap* const map = find(first + at);
    if (!map) continue;
    const bool known = std::any_of(found.begin(), found.end(),
                                   [&](const TensorMap& other) { return same(other, *map); });
    if (!known) found.push_back(*map);
  }
}

}  // namespace accel_trace
