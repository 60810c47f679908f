// Mode values: part of patches.cu. Flags say whether an access reads or writes, never the pointer:
// a read may come with a pointer to the mask of the bytes that are used.
#pragma once

#include "values_layout.h"

namespace accel_trace {

#ifdef __CUDACC__
AT_DEVICE uint32_t flat_block() {
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
AT_DEVICE uint32_t flat_thread() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
#else
inline uint32_t flat_block() { return 0; }
inline uint32_t flat_thread() { return 0; }
#endif

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

AT_DEVICE void note_value(void* userdata, uint64_t pc, void* ptr, uint32_t size, uint32_t flags,
                          const void* data) {
  ValueBuffer* buffer = values_of(userdata);
  const uint32_t block = flat_block();  // the same for all lanes
  if (buffer->blocks > 1 && block % buffer->blocks != buffer->phase) return;
  const uint32_t mask = lanes::active(), leader = lanes::first(mask), own = lanes::own();
  uint64_t base = 0;
  if (own == leader) base = atomic_add(&buffer->head, lanes::count(mask));
  base = lanes::take(mask, base, leader);
  const uint64_t at = base + bits_of(mask & ((1u << own) - 1));
  if (at >= buffer->capacity) return;
  Value value;
  value.pc = pc;
  value.address = reinterpret_cast<uint64_t>(ptr);
  value.low = value.high = 0;
  value.block = block;
  value.thread = flat_thread();
  value.launch = buffer->launch;
  value.size = static_cast<uint8_t>(size);
  value.used = 0;
  const bool writes = (flags & kWrites) != 0;
  if (is_atomic(flags)) {
    value.flags = kReads | kWrites;
    value.known = 0;  // neither the operand nor the result is told
  } else if (writes) {
    value.flags = kWrites;
    value.known = data != nullptr;
    if (data) read_value(data, size, value.low, value.high);
  } else {
    value.flags = kReads;
    value.known = 1;
    if (data) value.used = bits_of(*static_cast<const volatile uint32_t*>(data)) < size;
    read_value(ptr, size, value.low, value.high);
  }
  buffer->values[at] = value;
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
