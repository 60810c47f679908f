#include "tensor_maps.h"

#include <cuda.h>

#include <cstring>

namespace accel_trace {
namespace {

struct Image {
  uint64_t address;
  uint32_t format;      // rank - 1 from bit 4 on, type from bit 7 on, at bit 16 whether it is TF32
  uint32_t strides[4];  // in 16 bytes, their low words
  uint32_t high;        // four more bits of each stride
  uint32_t extents[5];  // less one
  uint32_t steps;       // and the innermost extent of the box, less one, in the highest byte
  uint32_t boxes[2];
};
static_assert(sizeof(Image) == kTensorMapBytes);

struct Type {
  uint32_t type;  // CUtensorMapDataType
  uint32_t bits;  // of an element
};
// By the number that the hardware has for it.
constexpr Type kTypes[] = {
    {CU_TENSOR_MAP_DATA_TYPE_UINT8, 8},        {CU_TENSOR_MAP_DATA_TYPE_UINT16, 16},
    {CU_TENSOR_MAP_DATA_TYPE_UINT32, 32},      {CU_TENSOR_MAP_DATA_TYPE_INT32, 32},
    {CU_TENSOR_MAP_DATA_TYPE_UINT64, 64},      {CU_TENSOR_MAP_DATA_TYPE_INT64, 64},
    {CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 16},     {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 32},
    {CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ, 32}, {CU_TENSOR_MAP_DATA_TYPE_FLOAT64, 64},
    {CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 16},    {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 32},
    {CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, 32},
    {13, 4}, {14, 4}, {15, 6},  // 16U4_ALIGN8B, 16U4_ALIGN16B, 16U6_ALIGN16B, in newer headers
};

}  // namespace

bool read_tensor_map(const void* image, TensorMap& out) {
  Image map;
  memcpy(&map, image, sizeof map);
  const uint32_t rank = (map.format >> 4 & 7) + 1;
  const Type type = kTypes[((map.format >> 7) + (map.format >> 14 & 4)) & 15];
  if (rank > kMostRank || map.address == 0 || map.address % 16 != 0) return false;
  if (map.steps >> 24 == 0) return false;  // a row of a box has 16 bytes, so more than one element
  for (uint32_t i = rank; i < kMostRank; ++i) {
    if (map.extents[i] != 0) return false;
  }
  out = TensorMap{};
  out.address = map.address;
  out.type = type.type;
  out.rank = rank;
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    out.extent[i] = uint64_t{map.extents[i]} + 1;
    elements *= out.extent[i];
    if (i == 0) continue;
    const uint64_t high = map.high >> 4 * (i - 1) & 15;
    out.stride[i - 1] = (high << 32 | map.strides[i - 1]) << 4;
    out.span += (out.extent[i] - 1) * out.stride[i - 1];
  }
  out.span += (out.extent[0] * type.bits + 7) / 8;
  out.bytes = (elements * type.bits + 7) / 8;
  return true;
}

}  // namespace accel_trace
