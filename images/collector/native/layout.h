// What host and patches share: the page table, the state of a launch, the counters, the ring.
#pragma once

#include "device.h"

namespace accel_trace {

// ---- the page table: address -> slot -------------------------------------------------------
// The first level has one entry per 2 MiB block: the slot of the one piece that fills it, or the
// number of a leaf. A leaf has one entry per 256 B granule: a slot, or the first of a list of
// byte ranges where several pieces, or a piece's end, share the granule. Slot 0: no piece.

constexpr uint32_t kBlockBits = 21;
constexpr uint32_t kGranuleBits = 8;
constexpr uint32_t kLeafBits = kBlockBits - kGranuleBits;
constexpr uint32_t kLeafEntries = 1u << kLeafBits;
constexpr uint32_t kGranule = 1u << kGranuleBits;
constexpr uint64_t kBlock = 1ull << kBlockBits;
constexpr uint32_t kWindowBlocks = 1u << 21;  // a window of 4 TiB
constexpr uint32_t kLeaf = 0x80000000u;       // in a first-level entry
constexpr uint32_t kFine = 0x40000000u;       // in a leaf's entry
constexpr uint32_t kMaxSlots = 1u << 20;

struct Fine {          // a byte range within a granule
  uint32_t range;      // begin | end << 16, end exclusive, at most 256
  uint32_t slot;
  uint32_t next;       // 0: the last; entry 0 of the array is never used
};

constexpr uint64_t kWindow = uint64_t{kWindowBlocks} << kBlockBits;  // bytes
constexpr uint64_t kNowhere = 1ull << 63;  // the base of no window: no address is within it

struct Seldom {          // what few accesses need
  const Fine* fine;
  const uint32_t* low;   // addresses below 4 TiB
  uint64_t low_blocks;   // 0 while there is no such window
};

struct alignas(16) Table {  // patches load the first four words two at a time
  uint64_t base;            // first byte of the high window, or kNowhere
  const uint32_t* high;     // around the first allocation above 4 TiB: kWindowBlocks entries
  const uint32_t* leaves;
  void* data;               // of the launch: its flags or counters
  Seldom rest;
  AT_BOTH_MEMBER const Seldom& seldom() const { return rest; }
};

AT_BOTH uint32_t find_fine(const Fine* fine, uint32_t entry, uint32_t byte) {
  for (uint32_t i = entry & ~kFine; i != 0; i = global(fine)[i].next) {
    const Fine& one = global(fine)[i];
    if (byte >= (one.range & 0xffff) && byte < one.range >> 16) return one.slot;
  }
  return 0;
}

// The entry of the first level for an address; 0 outside both windows. `table`: a Table, or what a
// patch has of one.
template <class AnyTable>
AT_BOTH uint32_t block_entry(const AnyTable& table, uint64_t address) {
  const uint64_t offset = address - table.base;
  if (offset < kWindow) return load_fixed(table.high + static_cast<uint32_t>(offset >> kBlockBits));
  const Seldom& rest = table.seldom();
  const uint64_t block = address >> kBlockBits;
  return block < rest.low_blocks ? load_fixed(rest.low + block) : 0;
}

template <class AnyTable>
AT_BOTH uint32_t leaf_entry(const AnyTable& table, uint32_t entry, uint64_t address) {
  const uint32_t granule = static_cast<uint32_t>(address >> kGranuleBits) & (kLeafEntries - 1);
  return load_fixed(table.leaves + (entry << kLeafBits | granule));  // kLeaf is shifted out
}

template <class AnyTable>
AT_BOTH uint32_t find_slot(const AnyTable& table, uint64_t address) {
  uint32_t entry = block_entry(table, address);
  if (entry & kLeaf) {
    entry = leaf_entry(table, entry, address);
    if (entry & kFine) {
      entry = find_fine(table.seldom().fine, entry, static_cast<uint32_t>(address) & 255u);
    }
  }
  return entry;
}

// ---- counters of mode count -----------------------------------------------------------------
// Accesses by kind and by the logarithm of their size, so that one atomic serves count and bytes.

enum Kind : uint32_t {
  kGlobalRead, kGlobalWrite, kGlobalAtomic, kSharedRead, kSharedWrite, kLocalRead, kLocalWrite,
  kSized,  // how many kinds are kept by size
};
constexpr uint32_t kSizes = 8;
enum Counter : uint32_t {
  kAsyncCopies = kSized * kSizes, kAsyncBytes, kBulkCopies, kBulkBytes, kOutside, kTensorCopies,
  kCountersUsed,
};
constexpr uint32_t kCounters = 64;  // of one copy
constexpr uint32_t kCopies = 8;     // copies of the counters, against contention
static_assert(kCountersUsed <= kCounters, "the counters have room");

// ---- the ring of mode trace -------------------------------------------------------------------

enum RecordClass : uint32_t {
  kRecordGlobal, kRecordShared, kRecordLocal, kRecordAsync, kRecordBulkRead, kRecordBulkWrite,
  kRecordTensorCopy,  // of a tensor map: no address, no size
};

struct Record {          // one instruction of one warp; 280 bytes
  uint64_t address[32];
  uint64_t sequence;     // number of the record + 1, written last
  uint32_t mask;         // lanes whose address counts
  uint32_t size;         // bytes per lane
  uint32_t flags;        // as the Sanitizer gives them | class << 24
  uint32_t row;          // of the launch
};

struct RingControl {     // in device memory
  uint64_t head;         // records reserved so far
  int64_t room;          // records that may still be reserved
  uint64_t tail_seen;    // how far of `tail` has been added to `room`
  uint64_t dropped;      // accesses (lanes) that found no room
  uint64_t dead;         // 1: the consumer did not move for limit_ns, nothing is written any more
  uint64_t capacity;     // a power of two
  uint64_t limit_ns;     // 0: do not wait, drop
  Record* records;       // in pinned host memory
  const uint64_t* tail;  // records consumed so far, in pinned host memory
};

// ---- the state of a launch: the patches' userdata ----------------------------------------------

struct State {
  // Its data: in mode touch one byte per slot, entry 0 for accesses to no piece; count: kCopies x
  // kCounters numbers; hot: a number per slot.
  Table table;
  RingControl* ring;   // trace
  uint32_t row;
  uint32_t slots;      // entry `slots` of the data: copies by tensor map were seen
};

}  // namespace accel_trace
