// What host and patches share in mode values: a buffer of one launch's accesses with their values.
// A record is one access of one warp; what its lanes do not have in common is its payload. Patches
// never wait for room: what finds none is counted.
#pragma once

#include "device.h"

namespace accel_trace {

constexpr uint32_t kUnit = 8;  // bytes: payload is counted in units

// The addresses of a record's lanes, by what is added to that of the first one. Payload holds that
// of each lane in turn, in whole units; then come the values.
enum Addresses : uint32_t {
  kInTurn,      // `size` for each lane that lies between
  kOneAddress,  // nothing
  kNear,        // an int32_t of payload
  kFar,         // a uint64_t of payload
};
enum Told : uint32_t { kNothing, kOneValue, kEachValue };  // values in payload, of `size` bytes
enum Flag : uint32_t { kRead = 1, kWrite = 2, kUsedInPart = 4 };  // both: an atomic

struct WarpAccess {   // src/accel_trace/values/raw.py has the same
  uint64_t pc;
  uint64_t address;   // of the first lane
  uint32_t payload;   // its first unit in the file; on the GPU, how many units before the end
  uint32_t lanes;     // a bit each
  uint32_t block;     // flat, in the grid
  uint32_t thread;    // of lane 0, flat in the block; lane i is the i-th after it
  uint32_t launch;
  uint32_t what;      // bytes: size, flags (of a widened load also kUsedInPart), addresses, values
};
static_assert(sizeof(WarpAccess) == 40, "a record has no padding");

// In device memory: the patches' userdata. Records follow it, payload lies before it: `room` bytes
// of both together.
struct ValueBuffer {
  // Records asked for so far << 32 | units asked for. No half flows over: `room` has less than 2^31
  // units, and a warp that found none asks no more, but for some 100 units once.
  uint64_t cursor;
  uint64_t full;      // what it was before the first record without room; all bits: there is none
  uint64_t lost;      // accesses, by lanes, that found no room
  uint64_t copies;    // cp.async: seen, without values
  uint64_t bulk;      // bulk copies
  uint64_t writes;    // of them, those that write global memory
  uint64_t tensor;    // copies by tensor map
  uint64_t room;
  uint64_t* end;      // of the payload, which grows down from here
  uint32_t launch;
  uint32_t blocks;    // one block in so many is recorded
  uint32_t phase;     // those whose number leaves this
  uint32_t padding;
};

AT_BOTH uint64_t records_of(uint64_t cursor) { return cursor >> 32; }
AT_BOTH uint64_t units_of(uint64_t cursor) { return cursor & 0xffffffffu; }
AT_BOTH uint64_t room_of(uint64_t cursor) {
  return records_of(cursor) * sizeof(WarpAccess) + units_of(cursor) * kUnit;
}

}  // namespace accel_trace
