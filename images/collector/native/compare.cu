// The kernels that compare memory with a copy of it where both lie (compare.h).
#include "compare.h"

using accel_trace::Found;
using accel_trace::Sums;

namespace {

constexpr int kNumbers = 4, kMostWarps = 32;

// In the first threads of a block, a thread a number: its sum over the block. `first`: the number of the
// first word.
template <bool hashed>
__device__ unsigned long long compare(const uint64_t* now, const uint64_t* before, uint64_t first,
                                      uint64_t bytes) {
  Sums sums{};
  const uint64_t words = bytes / 8, step = uint64_t{gridDim.x} * blockDim.x, end = 8 * first + bytes;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    accel_trace::add_word<hashed>(sums, now[i], before[i], first + i, end);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && bytes % 8 != 0) {
    uint64_t last = 0, old = 0;
    for (uint64_t i = 0; i < bytes % 8; ++i) {
      last |= uint64_t{reinterpret_cast<const uint8_t*>(now + words)[i]} << 8 * i;
      old |= uint64_t{reinterpret_cast<const uint8_t*>(before + words)[i]} << 8 * i;
    }
    accel_trace::add_word<hashed>(sums, last, old, first + words, end);
  }
  __shared__ unsigned long long of_warps[kNumbers][kMostWarps];
  const uint64_t numbers[kNumbers] = {sums.unchanged, sums.others, sums.low, sums.high};
  constexpr int used = hashed ? kNumbers : 2;
  for (int n = 0; n < used; ++n) {
    unsigned long long sum = numbers[n];
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) of_warps[n][threadIdx.x / 32] = sum;
  }
  __syncthreads();
  unsigned long long sum = 0;
  if (threadIdx.x < used) {
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += of_warps[threadIdx.x][warp];
  }
  return sum;
}

}  // namespace

// A part of a piece, from its word `first` on; all parts of a piece add to the same sums.
extern "C" __global__ void at_compare(const uint64_t* now, const uint64_t* before, uint64_t first,
                                      uint64_t bytes, Sums* out) {
  const unsigned long long sum = compare<true>(now, before, first, bytes);
  if (threadIdx.x >= kNumbers) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(out) + threadIdx.x, sum);
}

// Without the hash, whose arithmetic takes longer than the memory. Each block has a place of its own in
// `out`, which the host reads: nothing has to be cleared before, or fetched after it.
extern "C" __global__ void at_equal(const uint64_t* now, const uint64_t* before, uint64_t bytes,
                                    Found* out) {
  const unsigned long long sum = compare<false>(now, before, 0, bytes);
  if (threadIdx.x == 0) out[blockIdx.x].unchanged = sum;
  if (threadIdx.x == 1) out[blockIdx.x].others = sum;
}
