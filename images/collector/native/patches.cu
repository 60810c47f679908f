// The device functions that the Sanitizer inserts before instructions. Named at_<mode>_<what>.
// Compiled to a fatbin as a tool's patches, and by the tests' driver for the host. Whether an access
// reads or writes is told by its flags alone. Patches return at once when the launch has no state.
// Most of a patch's cost is the call; so no mode does more than it must.
#include <sanitizer_patching.h>

#include <type_traits>

#include "ring.h"
#include "state.h"

namespace accel_trace {

constexpr uint32_t kReads = SANITIZER_MEMORY_DEVICE_FLAG_READ;
constexpr uint32_t kWrites = SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
#ifdef AT_ATOMIC_WRITE_ONLY
constexpr uint32_t kAtomics =
    SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS | SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY;
#else
constexpr uint32_t kAtomics = SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS;
#endif
constexpr uint32_t kAccess = kReads | kWrites | kAtomics;  // anything but a prefetch

AT_DEVICE bool is_atomic(uint32_t flags) {
  return (flags & (kReads | kWrites)) == (kReads | kWrites) || (flags & kAtomics) != 0;
}

// Bytes of a bulk copy: `data` holds the number of 16-byte blocks in its low half.
AT_DEVICE uint32_t bulk_bytes(uint32_t data) { return (data & 0xffffu) * 16u; }

// ---- touch ------------------------------------------------------------------------------------

AT_DEVICE void touch_slot(void* data, uint32_t slot) {
  uint8_t* flag = global(static_cast<uint8_t*>(data)) + slot;
  if (*flag == 0) *flag = 1;  // idempotent: no atomic is needed
}

AT_DEVICE void touch(void* userdata, uint64_t address) {
  const Head head = head_of(userdata);
  touch_slot(head.data, find_slot(head, address));
}

AT_DEVICE void touch_leaf(const Table& table, uint32_t entry, uint64_t begin, uint64_t end) {
  while (begin < end) {
    const uint64_t next = (begin | (kGranule - 1)) + 1;
    const uint32_t slot = leaf_entry(table, entry, begin);
    if (slot & kFine) {
      for (uint64_t byte = begin; byte < next && byte < end; ++byte) {
        touch_slot(table.data, find_fine(table.rest.fine, slot, static_cast<uint32_t>(byte) & 255u));
      }
    } else {
      touch_slot(table.data, slot);
    }
    begin = next;
  }
}

AT_DEVICE void touch_range(void* userdata, uint64_t begin, uint32_t bytes) {
  const Table& table = table_of(userdata);
  const uint64_t end = begin + bytes;
  while (begin < end) {
    const uint64_t next = (begin | (kBlock - 1)) + 1;
    const uint32_t entry = block_entry(table, begin);
    if (entry & kLeaf) {
      touch_leaf(table, entry, begin, next < end ? next : end);
    } else {
      touch_slot(table.data, entry);
    }
    begin = next;
  }
}

// ---- count ------------------------------------------------------------------------------------

AT_DEVICE uint64_t* numbers_of(void* userdata) {
  return static_cast<uint64_t*>(table_of(userdata).data);
}

AT_DEVICE uint64_t* counters_of(void* userdata) {
  return numbers_of(userdata) + (lanes::spread() & (kCopies - 1)) * kCounters;
}

// Adds for all lanes of `mask`, whose index is the same.
AT_DEVICE void add_lanes(uint64_t* counters, uint32_t mask, uint32_t index) {
  if (lanes::own() == lanes::first(mask)) atomic_add(counters + index, lanes::count(mask));
}

AT_DEVICE void add_outside(void* userdata, uint32_t mask, uint64_t address) {
  const uint32_t outside = lanes::vote(mask, find_slot(table_of(userdata), address) == 0);
  if (outside != 0 && lanes::own() == lanes::first(mask)) {
    atomic_add(counters_of(userdata) + kOutside, lanes::count(outside));
  }
}

AT_DEVICE void count_sized(void* userdata, uint32_t mask, uint32_t kind, uint32_t size) {
  uint64_t* counters = counters_of(userdata);
  add_lanes(counters, mask, kind * kSizes + (log2_of(size) & (kSizes - 1)));
}

// A bulk copy is one operation of its warp: all active lanes have the same arguments.
AT_DEVICE void count_bulk(void* userdata, uint64_t address, uint32_t bytes) {
  uint64_t* counters = counters_of(userdata);
  if (lanes::own() != lanes::first(lanes::active())) return;
  atomic_add(counters + kBulkCopies, 1);
  atomic_add(counters + kBulkBytes, bytes);
  if (find_slot(table_of(userdata), address) == 0) atomic_add(counters + kOutside, 1);
}

// ---- hot --------------------------------------------------------------------------------------

// Lanes of a warp mostly fall into one block: one atomic for each block that they fall into.
AT_DEVICE void heat(void* userdata, uint64_t address) {
  const uint32_t slot = find_slot(head_of(userdata), address);
  uint32_t left = lanes::active();
  while (left != 0) {
    const uint32_t leader = lanes::first(left);
    const uint32_t common = lanes::take(left, slot, leader);
    const uint32_t same = lanes::vote(left, slot == common);
    if (slot == common) {
      if (lanes::own() == leader) atomic_add(numbers_of(userdata) + slot, lanes::count(same));
      return;
    }
    left &= ~same;
  }
}

AT_DEVICE void heat_bulk(void* userdata, uint64_t address) {
  if (lanes::own() != lanes::first(lanes::active())) return;
  atomic_add(numbers_of(userdata) + find_slot(table_of(userdata), address), 1);
}

AT_DEVICE void record_access(void* userdata, uint64_t address, uint32_t size, uint32_t flags,
                             uint32_t type) {
  write_record(state_of(userdata), address, size, flags | type << 24, lanes::active());
}

AT_DEVICE void record_bulk(void* userdata, uint64_t address, uint32_t bytes, uint32_t type) {
  const uint32_t mask = lanes::active();
  const uint32_t leader = lanes::first(mask);
  if (lanes::own() == leader) {
    write_record(state_of(userdata), address, bytes, type << 24, 1u << leader);
  }
}

}  // namespace accel_trace

using namespace accel_trace;

// The headers' own types hold the arguments: another version that differs does not compile.
#define AT_IS(function, Type) \
  static_assert(std::is_same<decltype(&function), Type>::value, #function " has another type")
#define AT_DONE return SANITIZER_PATCH_SUCCESS
#define AT_ACCESS_ARGUMENTS \
  void *userdata, uint64_t, void *ptr, uint32_t size, uint32_t flags, const void *
#ifdef AT_ASYNC_ZERO_FILL
#define AT_ASYNC_ARGUMENTS \
  void *userdata, uint64_t, void *src, uint32_t, uint32_t size, uint32_t zeros
#else
#define AT_ASYNC_ARGUMENTS void *userdata, uint64_t, void *src, uint32_t, uint32_t size
#endif
#define AT_LOAD_ARGUMENTS \
  void *userdata, uint64_t, uint64_t src, uint32_t, uint32_t, uint32_t data, uint32_t
#ifdef AT_BULK_BYTE_MASK
#define AT_STORE_ARGUMENTS \
  void *userdata, uint64_t, uint64_t dst, uint32_t, uint32_t data, uint32_t masked
#else
#define AT_STORE_ARGUMENTS void *userdata, uint64_t, uint64_t dst, uint32_t, uint32_t data
#endif
#define AT_REDUCE_ARGUMENTS void *userdata, uint64_t, uint64_t dst, uint32_t, uint32_t data

#ifdef AT_ASYNC_ZERO_FILL
#define AT_COPIED (size - zeros)
#else
#define AT_COPIED size
#endif
#ifdef AT_BULK_BYTE_MASK
#define AT_STORED (masked ? (data & 0xffffu) * bits_of(data >> 16) : bulk_bytes(data))
#else
#define AT_STORED bulk_bytes(data)
#endif
#define AT_ADDRESS reinterpret_cast<uint64_t>(ptr)
#define AT_SOURCE reinterpret_cast<uint64_t>(src)

// ---- mode empty: the floor of the interface ---------------------------------------------------

// Names are not used, so these take what comes.
AT_PATCH SanitizerPatchResult at_empty_access(void*, uint64_t, void*, uint32_t, uint32_t,
                                              const void*) {
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_empty_copy(void*, uint64_t) { AT_DONE; }

// ---- mode touch -------------------------------------------------------------------------------

AT_PATCH SanitizerPatchResult at_touch_global(AT_ACCESS_ARGUMENTS) {
  (void)size;
  if (userdata && (flags & kAccess)) touch(userdata, AT_ADDRESS);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_touch_async(AT_ASYNC_ARGUMENTS) {
  if (userdata && src && AT_COPIED != 0) touch(userdata, AT_SOURCE);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_touch_bulk_load(AT_LOAD_ARGUMENTS) {
  if (userdata) touch_range(userdata, src, bulk_bytes(data));
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_touch_bulk_store(AT_STORE_ARGUMENTS) {
  if (userdata && AT_STORED != 0) touch_range(userdata, dst, bulk_bytes(data));
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_touch_bulk_reduce(AT_REDUCE_ARGUMENTS) {
  if (userdata) touch_range(userdata, dst, bulk_bytes(data));
  AT_DONE;
}
#ifdef AT_TENSOR
// The first word of a map is the address of its tensor.
AT_PATCH SanitizerPatchResult at_touch_tensor_load(
    void* userdata, uint64_t, uint64_t map, uint32_t, uint32_t, int32_t, int32_t, int32_t, int32_t,
    int32_t, uint32_t, uint32_t, uint32_t, uint32_t) {
  if (userdata) touch(userdata, load(reinterpret_cast<const uint64_t*>(map)));
  AT_DONE;
}
AT_IS(at_touch_tensor_load, SanitizerCallbackTensorMemoryLoad);
#endif
// Other copies by tensor map: of stores the headers do not say what the interface tells.
AT_PATCH SanitizerPatchResult at_touch_tensor(void* userdata, uint64_t) {
  if (userdata) touch_slot(table_of(userdata).data, state_of(userdata)->slots);
  AT_DONE;
}

// ---- mode count -------------------------------------------------------------------------------

AT_PATCH SanitizerPatchResult at_count_global(AT_ACCESS_ARGUMENTS) {
  if (userdata && (flags & kAccess)) {
    const uint32_t mask = lanes::active();
    const uint32_t kind =
        is_atomic(flags) ? kGlobalAtomic : flags & kWrites ? kGlobalWrite : kGlobalRead;
    count_sized(userdata, mask, kind, size);
    add_outside(userdata, mask, AT_ADDRESS);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_shared(AT_ACCESS_ARGUMENTS) {
  (void)ptr;
  if (userdata) {
    const uint32_t mask = lanes::active();
    if (flags & kReads) count_sized(userdata, mask, kSharedRead, size);
    if (flags & kWrites) count_sized(userdata, mask, kSharedWrite, size);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_local(AT_ACCESS_ARGUMENTS) {
  (void)ptr;
  if (userdata) {
    const uint32_t mask = lanes::active();
    if (flags & kReads) count_sized(userdata, mask, kLocalRead, size);
    if (flags & kWrites) count_sized(userdata, mask, kLocalWrite, size);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_async(AT_ASYNC_ARGUMENTS) {
  if (userdata) {
    uint64_t* counters = counters_of(userdata);
    const uint32_t mask = lanes::active();
    add_lanes(counters, mask, kAsyncCopies);
    // How much is copied may differ between lanes: where it does, every lane adds its own.
    const uint32_t bytes = src ? AT_COPIED : 0u;
    const uint32_t leader = lanes::first(mask);
    const bool same = lanes::vote(mask, bytes == lanes::take(mask, bytes, leader)) == mask;
    if (!same) {
      atomic_add(counters + kAsyncBytes, bytes);
    } else if (lanes::own() == leader) {
      atomic_add(counters + kAsyncBytes, static_cast<uint64_t>(bytes) * lanes::count(mask));
    }
    const uint32_t reading = lanes::vote(mask, bytes != 0);
    if (bytes != 0) add_outside(userdata, reading, AT_SOURCE);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_bulk_load(AT_LOAD_ARGUMENTS) {
  if (userdata) count_bulk(userdata, src, bulk_bytes(data));
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_bulk_store(AT_STORE_ARGUMENTS) {
  if (userdata) count_bulk(userdata, dst, AT_STORED);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_bulk_reduce(AT_REDUCE_ARGUMENTS) {
  if (userdata) count_bulk(userdata, dst, bulk_bytes(data));
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_count_tensor(void* userdata, uint64_t) {
  if (userdata && lanes::own() == lanes::first(lanes::active())) {
    uint64_t* counters = counters_of(userdata);
    atomic_add(counters + kBulkCopies, 1);
    atomic_add(counters + kTensorCopies, 1);
  }
  AT_DONE;
}

// ---- mode hot ---------------------------------------------------------------------------------

AT_PATCH SanitizerPatchResult at_hot_global(AT_ACCESS_ARGUMENTS) {
  (void)size;
  if (userdata && (flags & kAccess)) heat(userdata, AT_ADDRESS);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_hot_async(AT_ASYNC_ARGUMENTS) {
  if (userdata && src && AT_COPIED != 0) heat(userdata, AT_SOURCE);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_hot_bulk_load(AT_LOAD_ARGUMENTS) {
  (void)data;
  if (userdata) heat_bulk(userdata, src);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_hot_bulk_store(AT_STORE_ARGUMENTS) {
  if (userdata && AT_STORED != 0) heat_bulk(userdata, dst);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_hot_bulk_reduce(AT_REDUCE_ARGUMENTS) {
  (void)data;
  if (userdata) heat_bulk(userdata, dst);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_hot_tensor(void* userdata, uint64_t) {
  if (userdata) store(numbers_of(userdata) + state_of(userdata)->slots, uint64_t{1});
  AT_DONE;
}

// ---- mode trace -------------------------------------------------------------------------------

AT_PATCH SanitizerPatchResult at_trace_global(AT_ACCESS_ARGUMENTS) {
  if (userdata && (flags & kAccess)) {
    const uint32_t kind = is_atomic(flags) ? kReads | kWrites : flags & (kReads | kWrites);
    record_access(userdata, AT_ADDRESS, size, kind, kRecordGlobal);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_shared(AT_ACCESS_ARGUMENTS) {
  if (userdata && (flags & (kReads | kWrites))) {
    record_access(userdata, AT_ADDRESS, size, flags & (kReads | kWrites), kRecordShared);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_local(AT_ACCESS_ARGUMENTS) {
  if (userdata && (flags & (kReads | kWrites))) {
    record_access(userdata, AT_ADDRESS, size, flags & (kReads | kWrites), kRecordLocal);
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_async(AT_ASYNC_ARGUMENTS) {
  if (userdata) {
    // Lanes that copy different amounts go into records of their own.
    const uint32_t bytes = src ? AT_COPIED : 0u;
    uint32_t left = lanes::active();
    while (left != 0) {
      const uint32_t common = lanes::take(left, bytes, lanes::first(left));
      const uint32_t same = lanes::vote(left, bytes == common);
      if (bytes == common) {
        write_record(state_of(userdata), AT_SOURCE, bytes,
                     kReads | kRecordAsync << 24, same);
        break;
      }
      left &= ~same;
    }
  }
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_bulk_load(AT_LOAD_ARGUMENTS) {
  if (userdata) record_bulk(userdata, src, bulk_bytes(data), kRecordBulkRead);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_bulk_store(AT_STORE_ARGUMENTS) {
  if (userdata) record_bulk(userdata, dst, AT_STORED, kRecordBulkWrite);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_bulk_reduce(AT_REDUCE_ARGUMENTS) {
  if (userdata) record_bulk(userdata, dst, bulk_bytes(data), kRecordBulkWrite);
  AT_DONE;
}
AT_PATCH SanitizerPatchResult at_trace_tensor(void* userdata, uint64_t) {
  if (userdata) record_bulk(userdata, 0, 0, kRecordTensorCopy);
  AT_DONE;
}

// ---- mode values -----------------------------------------------------------------------------

#include "values_patches.h"

AT_IS(at_empty_access, SanitizerCallbackMemoryAccess);
AT_IS(at_touch_global, SanitizerCallbackMemoryAccess);
AT_IS(at_touch_async, SanitizerCallbackMemcpyAsync);
#ifdef AT_BULK
AT_IS(at_touch_bulk_load, SanitizerCallbackBulkCopyGlobalToShared);
AT_IS(at_touch_bulk_store, SanitizerCallbackBulkCopySharedToGlobal);
AT_IS(at_touch_bulk_reduce, SanitizerCallbackBulkReductionSharedToGlobal);
#endif
