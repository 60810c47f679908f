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

struct Table {
  uint64_t base;         // first block of the high window
  const uint32_t* high;  // around the first allocation above 4 TiB
  const uint32_t* low;   // addresses below 4 TiB
  const uint32_t* leaves;
  const Fine* fine;
  uint32_t high_blocks;  // 0 while there is no such window
  uint32_t low_blocks;
};

AT_BOTH uint32_t find_fine(const Table& table, uint32_t entry, uint32_t byte) {
  for (uint32_t i = entry & ~kFine; i != 0; i = global(table.fine)[i].next) {
    const Fine& fine = global(table.fine)[i];
    if (byte >= (fine.range & 0xffff) && byte < fine.range >> 16) return fine.slot;
  }
  return 0;
}

// The entry of the first level for an address; 0 outside both windows.
AT_BOTH uint32_t block_entry(const Table& table, uint64_t address) {
  const uint64_t block = address >> kBlockBits;
  const uint64_t index = block - table.base;
  if (index < table.high_blocks) return global(table.high)[index];
  return block < table.low_blocks ? global(table.low)[block] : 0;
}

AT_BOTH uint32_t leaf_entry(const Table& table, uint32_t entry, uint64_t address) {
  const uint64_t leaf = static_cast<uint64_t>(entry & ~kLeaf) << kLeafBits;
  return global(table.leaves)[leaf | (address >> kGranuleBits & (kLeafEntries - 1))];
}

AT_BOTH uint32_t find_slot(const Table& table, uint64_t address) {
  uint32_t entry = block_entry(table, address);
  if (entry & kLeaf) {
    entry = leaf_entry(table, entry, address);
    if (entry & kFine) entry = find_fine(table, entry, static_cast<uint32_t>(address) & 255u);
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
  Table table;
  uint8_t* flags;      // touch: one byte per slot, entry 0 for accesses to no piece
  uint64_t* counts;    // count: kCopies x kCounters; hot: one per slot
  RingControl* ring;   // trace
  uint32_t row;
  uint32_t slots;      // entry `slots` of flags or counts: copies by tensor map were seen
};

}  // namespace accel_trace
