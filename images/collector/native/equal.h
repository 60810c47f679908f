// How many bytes of two pieces of the host's memory are equal. Large pieces are cut, and a few threads
// that wait for such work take their parts: one core reads slower than a GPU sends.
#pragma once

#include <cstdint>

namespace accel_trace {

struct Equal {
  uint64_t bytes = 0;
  bool zeros = true;  // all of the first piece
};
Equal equal_bytes(const uint8_t* first, const uint8_t* second, uint64_t size);

}  // namespace accel_trace
