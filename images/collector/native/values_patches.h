// Mode values: part of patches.cu. Flags say whether an access reads or writes, never the pointer:
// a read may come with a pointer to the mask of the bytes that are used.
#pragma once

#include "values_layout.h"

namespace accel_trace {

// Byte by byte only where it must be: sizes are 1, 2, 4, 8 and 16, and aligned to themselves.
AT_DEVICE void read_value(const void* from, uint32_t size, uint64_t& low, uint64_t& high) {
  low = high = 0;
  if (size == 4) {
    low = *static_cast<const volatile uint32_t*>(from);
  } else if (size == 8 || size == 16) {
    low = static_cast<const volatile uint64_t*>(from)[0];
    if (size == 16) high = static_cast<const volatile uint64_t*>(from)[1];
  } else if (size == 2) {
    low = *static_cast<const volatile uint16_t*>(from);
  } else if (size == 1) {
    low = *static_cast<const volatile uint8_t*>(from);
  }
}

AT_DEVICE ValueBuffer* values_of(void* userdata) {
  return global(static_cast<ValueBuffer*>(userdata));
}

// Index `at` of an array of values.
AT_DEVICE void write_value(void* to, uint32_t at, uint32_t size, uint64_t low, uint64_t high) {
  if (size == 4) {
    static_cast<uint32_t*>(to)[at] = static_cast<uint32_t>(low);
  } else if (size == 8) {
    static_cast<uint64_t*>(to)[at] = low;
  } else if (size == 16) {
    static_cast<uint64_t*>(to)[2 * at] = low;
    static_cast<uint64_t*>(to)[2 * at + 1] = high;
  } else if (size == 2) {
    static_cast<uint16_t*>(to)[at] = static_cast<uint16_t>(low);
  } else if (size == 1) {
    static_cast<uint8_t*>(to)[at] = static_cast<uint8_t>(low);
  }
}

AT_DEVICE uint32_t units_for(uint32_t bytes) { return (bytes + kUnit - 1) / kUnit; }

// What the cursor is behind a record; kNoRoom: there is none for it.
constexpr uint64_t kNoRoom = ~uint64_t{0};
AT_DEVICE uint64_t reserve(ValueBuffer* buffer, uint32_t units, uint32_t count) {
  if (load(&buffer->lost) == 0) {
    const uint64_t own = uint64_t{1} << 32 | units;
    const uint64_t before = atomic_add(&buffer->cursor, own);
    if (room_of(before + own) <= buffer->room) return before + own;
    if (room_of(before) <= buffer->room) store(&buffer->full, before);  // the first that is lost
  }
  atomic_add(&buffer->lost, count);
  return kNoRoom;
}

constexpr uint32_t kKnown = 1u << 16;  // beside the size and the flags of a WarpAccess

// The lanes of `mask` have `pc` and `what` in common. `from`: where the value lies.
AT_DEVICE void write_access(ValueBuffer* buffer, uint32_t mask, uint64_t pc, uint32_t what,
                            uint64_t address, const void* from) {
  const uint32_t own = lanes::own(), leader = lanes::first(mask), size = what & 0xffu;
  uint64_t apart = 0;
  uint32_t addresses = kInTurn, bytes = 0;
  if (!lanes::same(mask, address - uint64_t{own} * size)) {
    addresses = kOneAddress;
    if (!lanes::same(mask, address)) {
      apart = address - lanes::take(mask, address, leader);
      const bool near = lanes::vote(mask, apart + 0x80000000u <= 0xffffffffu) == mask;
      addresses = near ? kNear : kFar;
      bytes = near ? 4 : 8;
    }
  }
  uint64_t low = 0, high = 0;
  uint32_t told = kNothing;
  if (what & kKnown) {
    read_value(from, size, low, high);
    const bool one = lanes::same(mask, low) && (size < 16 || lanes::same(mask, high));
    told = one ? kOneValue : kEachValue;
  }
  const uint32_t count = lanes::count(mask);
  const uint32_t before = units_for(bytes * count);
  const uint32_t values = told == kEachValue ? count : told == kOneValue ? 1 : 0;
  uint64_t behind = 0;
  if (own == leader) behind = reserve(buffer, before + units_for(values * size), count);
  behind = lanes::take(mask, behind, leader);
  if (behind == kNoRoom) return;
  if (own == leader) {
    WarpAccess* const record = reinterpret_cast<WarpAccess*>(buffer + 1) + records_of(behind) - 1;
    record->pc = pc;
    record->address = address;
    record->payload = static_cast<uint32_t>(units_of(behind));
    record->lanes = mask;
    record->block = lanes::block();
    record->thread = lanes::thread() - own;
    record->launch = buffer->launch;
    record->what = (what & 0xffffu) | addresses << 16 | told << 24;
  }
  const uint32_t index = bits_of(mask & ((1u << own) - 1));
  uint64_t* const payload = global(buffer->end) - units_of(behind);
  if (addresses == kNear) {
    reinterpret_cast<uint32_t*>(payload)[index] = static_cast<uint32_t>(apart);
  }
  if (addresses == kFar) payload[index] = apart;
  if (index < values) write_value(payload + before, index, size, low, high);
}

// Lanes that differ in more than addresses and values go into records of their own: that of this.
AT_DEVICE uint32_t alike(uint32_t left, uint64_t pc, uint32_t what) {
  for (;;) {
    const uint32_t leader = lanes::first(left);
    const uint64_t its_pc = lanes::take(left, pc, leader);
    const uint32_t its_own = lanes::take(left, what, leader);
    const bool is = pc == its_pc && what == its_own;
    const uint32_t mask = lanes::vote(left, is);
    if (is) return mask;
    left &= ~mask;
  }
}

AT_DEVICE void note_value(void* userdata, uint64_t pc, void* ptr, uint32_t size, uint32_t flags,
                          const void* data) {
  ValueBuffer* buffer = values_of(userdata);
  // The block is the same for all lanes.
  if (buffer->blocks > 1 && lanes::block() % buffer->blocks != buffer->phase) return;
  const uint32_t all = lanes::active();
  uint32_t what = size & 0xffu;
  const void* from = nullptr;
  if (is_atomic(flags)) {
    what |= (kRead | kWrite) << 8;  // neither the operand nor the result is told
  } else if (flags & kWrites) {
    what |= kWrite << 8;
    from = data;
  } else {
    what |= kRead << 8;
    from = ptr;
    if (data && bits_of(*static_cast<const volatile uint32_t*>(data)) < size) {
      what |= kUsedInPart << 8;
    }
  }
  if (from) what |= kKnown;
  uint32_t mask = all;
  if (!lanes::same(all, pc) || !lanes::same(all, what)) mask = alike(all, pc, what);
  write_access(buffer, mask, pc, what, reinterpret_cast<uint64_t>(ptr), from);
}

AT_DEVICE void count_unseen(uint64_t* counter) {
  const uint32_t mask = lanes::active();
  if (lanes::own() == lanes::first(mask)) atomic_add(counter, lanes::count(mask));
}

AT_DEVICE void count_bulk_write(void* userdata) {
  count_unseen(&values_of(userdata)->bulk);
  count_unseen(&values_of(userdata)->writes);
}

}  // namespace accel_trace

AT_PATCH SanitizerPatchResult at_values_global(void* userdata, uint64_t pc, void* ptr,
                                               uint32_t size, uint32_t flags, const void* data) {
  if (userdata && (flags & kAccess)) note_value(userdata, pc, ptr, size, flags, data);
  AT_DONE;
}
AT_IS(at_values_global, SanitizerCallbackMemoryAccess);
AT_PATCH SanitizerPatchResult at_values_async(AT_ASYNC_ARGUMENTS) {
  (void)src;
  (void)size;
#ifdef AT_ASYNC_ZERO_FILL
  (void)zeros;
#endif
  if (userdata) count_unseen(&values_of(userdata)->copies);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_values_bulk_load(void* userdata, uint64_t) {
  if (userdata) count_unseen(&values_of(userdata)->bulk);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_values_bulk_store(void* userdata, uint64_t) {
  if (userdata) count_bulk_write(userdata);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_values_bulk_reduce(void* userdata, uint64_t) {
  if (userdata) count_bulk_write(userdata);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_values_tensor(void* userdata, uint64_t) {
  if (userdata) count_unseen(&values_of(userdata)->tensor);
  AT_DONE;
}
