// What host and patches share in mode values: a buffer of one launch's accesses with their values.
// Patches never wait for room: what finds none is counted.
#pragma once

#include <cstdint>

namespace accel_trace {

struct Value {         // one access of one lane; src/accel_trace/values/raw.py has the same
  uint64_t pc;
  uint64_t address;
  uint64_t low, high;  // the value's bytes
  uint32_t block;      // flat, in the grid
  uint32_t thread;     // flat, in the block
  uint32_t launch;
  uint8_t size;
  uint8_t flags;       // 1 read, 2 write, 3 atomic
  uint8_t known;       // 0: nobody told the value
  uint8_t used;        // of a widened load: 1, only some of its bytes are used
};
static_assert(sizeof(Value) == 48, "a record has no padding");

struct ValueBuffer {   // in device memory: the patches' userdata
  uint64_t head;       // records asked for so far; beyond `capacity` they are lost
  uint64_t copies;     // cp.async: seen, without values
  uint64_t bulk;       // bulk copies
  uint64_t writes;     // of them, those that write global memory
  uint64_t tensor;     // copies by tensor map
  uint64_t capacity;
  Value* values;       // in device memory
  uint32_t launch;
  uint32_t blocks;     // one block in so many is recorded
  uint32_t phase;      // those whose number leaves this
  uint32_t padding;
};

}  // namespace accel_trace
