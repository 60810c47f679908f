#include "report.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace accel_trace {
namespace {

// Pieces touched by one launch: an object counts when it, or a tensor in it, was touched.
class TouchedPieces {
 public:
  void add(const Piece& object, const Piece& tensor) {
    if (object.id) objects_.push_back(object);
    if (tensor.id) {
      tensors_.push_back(tensor);
      tensors_.back().flags = object.id ? object.flags : tensor.flags;
    }
  }
  void outside() { outside_ = true; }
  void write(Log& log, uint64_t launch) {
    write_all(log, launch, objects_, 0);
    write_all(log, launch, tensors_, 1);
    if (outside_) write_one(log, launch, Piece{}, 0);
  }

 private:
  static void write_one(Log& log, uint64_t launch, const Piece& piece, uint32_t what) {
    event::Touched touched{};
    touched.launch = launch;
    touched.address = piece.address;
    touched.size = piece.size;
    touched.what = what;
    touched.flags = piece.flags;
    log.add(touched);
  }
  static void write_all(Log& log, uint64_t launch, std::vector<Piece>& pieces, uint32_t what) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
      return a.address != b.address ? a.address < b.address : a.id < b.id;
    });
    uint64_t last = 0;
    for (const Piece& piece : pieces) {
      if (piece.id != last) write_one(log, launch, piece, what);
      last = piece.id;
    }
  }

  std::vector<Piece> objects_, tensors_;
  bool outside_ = false;
};

uint64_t accesses(const uint64_t* counters, uint32_t kind) {
  uint64_t sum = 0;
  for (uint32_t size = 0; size < kSizes; ++size) sum += counters[kind * kSizes + size];
  return sum;
}

uint64_t bytes(const uint64_t* counters, uint32_t kind) {
  uint64_t sum = 0;
  for (uint32_t size = 0; size < kSizes; ++size) sum += counters[kind * kSizes + size] << size;
  return sum;
}

void write_counts(Log& log, uint64_t launch, const uint64_t* counters) {
  event::Counts counts{};
  counts.launch = launch;
  counts.global_reads = accesses(counters, kGlobalRead);
  counts.global_writes = accesses(counters, kGlobalWrite);
  counts.global_atomics = accesses(counters, kGlobalAtomic);
  counts.global_bytes_read = bytes(counters, kGlobalRead);
  counts.global_bytes_written = bytes(counters, kGlobalWrite);
  counts.shared_reads = accesses(counters, kSharedRead);
  counts.shared_writes = accesses(counters, kSharedWrite);
  counts.local_reads = accesses(counters, kLocalRead);
  counts.local_writes = accesses(counters, kLocalWrite);
  counts.async_copies = counters[kAsyncCopies];
  counts.async_bytes = counters[kAsyncBytes];
  counts.bulk_copies = counters[kBulkCopies];
  counts.bulk_bytes = counters[kBulkBytes];
  counts.outside = counters[kOutside];
  log.add(counts);
}

void write_hot(Log& log, uint64_t launch, std::vector<std::pair<uint64_t, uint64_t>>& blocks) {
  std::sort(blocks.begin(), blocks.end());
  for (const auto& [block, count] : blocks) {
    event::Hot hot{};
    hot.launch = launch;
    hot.block = block;
    hot.count = count;
    log.add(hot);
  }
}

}  // namespace

bool report_touched(Log& log, uint64_t launch, const Slots& slots, uint64_t moment,
                    const uint8_t* flags, uint32_t row_slots) {
  TouchedPieces touched;
  const uint32_t known = std::min(row_slots, slots.high());
  if (flags[0]) touched.outside();
  for (uint32_t i = 0; i < known; i += 8) {
    uint64_t eight;
    memcpy(&eight, flags + i, sizeof eight);  // rows are longer than their slots by 64 bytes
    if (eight == 0) continue;
    for (uint32_t slot = std::max(i, 1u); slot < i + 8 && slot < known; ++slot) {
      if (!flags[slot]) continue;
      touched.add(slots[slot].object, slots[slot].tensor_at(moment));
    }
  }
  touched.write(log, launch);
  return flags[row_slots] != 0;
}

bool report_counts(Log& log, uint64_t launch, const uint64_t* counters) {
  uint64_t sum[kCounters] = {};
  for (uint32_t i = 0; i < kCopies * kCounters; ++i) sum[i % kCounters] += counters[i];
  write_counts(log, launch, sum);
  return sum[kTensorCopies] != 0;
}

bool report_hot(Log& log, uint64_t launch, const Slots& slots, const uint64_t* counts,
                uint32_t row_slots) {
  std::vector<std::pair<uint64_t, uint64_t>> blocks;
  const uint32_t known = std::min(row_slots, slots.high());
  for (uint32_t slot = 0; slot < known; ++slot) {
    if (counts[slot]) blocks.emplace_back(slot ? slots[slot].block : 0, counts[slot]);
  }
  write_hot(log, launch, blocks);
  return counts[row_slots] != 0;
}

bool report_tally(Log& log, uint64_t launch, const Tally& tally, const Index& index,
                  Analysis analysis) {
  if (analysis == Analysis::touch) {
    TouchedPieces touched;
    for (size_t i = 0; i < tally.spans.size(); ++i) {
      if (tally.spans[i]) touched.add(index.spans[i].object, index.spans[i].tensor);
    }
    if (tally.outside_touched) touched.outside();
    touched.write(log, launch);
  } else if (analysis == Analysis::count) {
    write_counts(log, launch, tally.counters);
  } else {
    std::vector<std::pair<uint64_t, uint64_t>> blocks(tally.blocks.begin(), tally.blocks.end());
    write_hot(log, launch, blocks);
  }
  return tally.tensor_copies;
}

}  // namespace accel_trace
