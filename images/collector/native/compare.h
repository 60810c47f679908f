// What comparing memory with a copy of it says, and a hash of what it holds: the same arithmetic on the
// GPU (compare.cu) and on the CPU, bit for bit, in any order of the words.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define AT_SHARED __host__ __device__ inline
#else
#define AT_SHARED inline
#endif

namespace accel_trace {

struct Sums {
  uint64_t unchanged;  // bytes
  uint64_t others;     // words that are not zero
  uint64_t low, high;  // the hash; no cryptographic one
};

struct Found {  // by one block, without the hash
  uint64_t unchanged, others;
};

AT_SHARED uint64_t mixed(uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
  word = (word ^ word >> 27) * 0x94d049bb133111ebu;
  return word ^ word >> 31;
}

AT_SHARED uint64_t equal_bytes_of(uint64_t a, uint64_t b) {
  const uint64_t most = 0x7f7f7f7f7f7f7f7fu, other = a ^ b;
  const uint64_t tops = ~(((other & most) + most) | other | most);  // of bytes that are equal
#ifdef __CUDA_ARCH__
  return static_cast<uint64_t>(__popcll(tops));
#else
  return static_cast<uint64_t>(__builtin_popcountll(tops));
#endif
}

// Word `number` of memory of `bytes`; what lies beyond its end does not count.
template <bool hashed = true>
AT_SHARED void add_word(Sums& sums, uint64_t now, uint64_t before, uint64_t number, uint64_t bytes) {
  const uint64_t valid = bytes - 8 * number;
  if (valid < 8) {
    const uint64_t mask = (uint64_t{1} << 8 * valid) - 1;
    now &= mask;
    before &= mask;
    sums.unchanged -= 8 - valid;
  }
  sums.unchanged += equal_bytes_of(now, before);
  sums.others += now != 0;
  if (!hashed) return;
  sums.low += mixed(now + mixed(number + 1));
  sums.high += mixed(now ^ mixed(~number));
}

}  // namespace accel_trace
