// The kernel that compares memory with a copy of it where both lie (compare.h).
#include "compare.h"

using accel_trace::Sums;

extern "C" __global__ void at_compare(const uint64_t* now, const uint64_t* before, uint64_t bytes,
                                      Sums* out) {
  Sums sums{};
  const uint64_t words = bytes / 8, step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    accel_trace::add_word(sums, now[i], before[i], i, bytes);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && bytes % 8 != 0) {
    uint64_t last = 0, old = 0;
    for (uint64_t i = 0; i < bytes % 8; ++i) {
      last |= uint64_t{reinterpret_cast<const uint8_t*>(now + words)[i]} << 8 * i;
      old |= uint64_t{reinterpret_cast<const uint8_t*>(before + words)[i]} << 8 * i;
    }
    accel_trace::add_word(sums, last, old, words, bytes);
  }
  for (uint64_t* one : {&sums.unchanged, &sums.others, &sums.low, &sums.high}) {
    unsigned long long sum = *one;
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) {
      auto* total = reinterpret_cast<uint64_t*>(out) + (one - &sums.unchanged);
      atomicAdd(reinterpret_cast<unsigned long long*>(total), sum);
    }
  }
}
