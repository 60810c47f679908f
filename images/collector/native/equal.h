// How many bytes of two pieces of the host's memory are equal.
#pragma once

#include <cstdint>

namespace accel_trace {

struct Equal {
  uint64_t bytes = 0;
  bool zeros = true;  // all of the first piece
};
Equal equal_bytes(const uint8_t* first, const uint8_t* second, uint64_t size);

// Large pieces are cut, and a few threads that wait for such work take their parts: one core reads
// slower than a GPU sends. The program's memory is touched by the calling thread alone, as the driver
// would: a fault there is for the program's handlers. The others have the kernel read it.
Equal equal_to_programs(const uint8_t* ours, const uint8_t* programs, uint64_t size);

}  // namespace accel_trace
