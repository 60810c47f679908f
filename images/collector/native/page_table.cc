#include "page_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace accel_trace {
namespace {

constexpr size_t kWindowBytes = size_t{kWindowBlocks} * sizeof(uint32_t);
constexpr size_t kManyRanges = 512;  // then they are put together before more are added

uint32_t* map_window() {
  void* memory = mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return static_cast<uint32_t*>(memory);
}

void join(std::vector<Range>& ranges, uint64_t gap) {
  if (ranges.size() < 2) return;
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[kept].end + gap) {
      ranges[kept].end = std::max(ranges[kept].end, ranges[i].end);
    } else {
      ranges[++kept] = ranges[i];
    }
  }
  ranges.resize(kept + 1);
}

}  // namespace

void Changes::mark(Part part, uint64_t begin, uint64_t end) {
  std::vector<Range>& ranges = ranges_[static_cast<int>(part)];
  if (!ranges.empty() && begin <= ranges.back().end && end >= ranges.back().begin) {
    ranges.back().begin = std::min(ranges.back().begin, begin);
    ranges.back().end = std::max(ranges.back().end, end);
    return;
  }
  if (ranges.size() >= kManyRanges) {
    join(ranges, 64);
    // Many ranges far from each other: what is between them has not changed, and goes up too.
    if (ranges.size() > kManyRanges / 2) join(ranges, UINT64_MAX / 2);
  }
  ranges.push_back({begin, end});
}

std::vector<Range> Changes::take(Part part, uint64_t gap) {
  std::vector<Range>& ranges = ranges_[static_cast<int>(part)];
  if (ranges.empty()) return {};
  join(ranges, gap);
  std::vector<Range> out;
  out.swap(ranges);
  return out;
}

bool Changes::empty() const {
  for (const auto& ranges : ranges_) {
    if (!ranges.empty()) return false;
  }
  return true;
}

PageTable::PageTable() : fine_(1) {}  // number 0 ends a list

PageTable::~PageTable() {
  if (low_) munmap(low_, kWindowBytes);
  if (high_) munmap(high_, kWindowBytes);
}

void PageTable::detach(Changes* changes) {
  listeners_.erase(std::remove(listeners_.begin(), listeners_.end(), changes), listeners_.end());
}

Table PageTable::view() const {
  Table table{};
  table.base = base();
  table.high = high_;
  table.leaves = leaves_.data();
  table.rest = {fine_.data(), low_, low_ ? kWindowBlocks : 0u};
  return table;
}

const void* PageTable::data(Part part) const {
  switch (part) {
    case Part::low: return low_;
    case Part::high: return high_;
    case Part::leaves: return leaves_.data();
    default: return fine_.data();
  }
}

uint64_t PageTable::entries(Part part) const {
  switch (part) {
    case Part::low: return low_ ? kWindowBlocks : 0;
    case Part::high: return high_ ? kWindowBlocks : 0;
    case Part::leaves: return leaves_.size();
    default: return fine_.size();
  }
}

void PageTable::changed(Part part, uint64_t begin, uint64_t end) {
  Range& extent = extent_[static_cast<int>(part)];
  if (extent.begin == extent.end) {
    extent = {begin, end};
  } else {
    extent = {std::min(extent.begin, begin), std::max(extent.end, end)};
  }
  for (Changes* changes : listeners_) changes->mark(part, begin, end);
}

bool PageTable::window_of(uint64_t block, Window& window) {
  if (block < kWindowBlocks) {
    if (!low_) low_ = map_window();
    window = {low_, block, Part::low};
    return true;
  }
  if (!high_) {
    high_ = map_window();
    base_ = std::max<uint64_t>(block, kWindowBlocks / 2) - kWindowBlocks / 2;
    base_ = std::max<uint64_t>(base_, kWindowBlocks);  // the two windows do not overlap
  }
  if (block < base_ || block - base_ >= kWindowBlocks) return false;
  window = {high_, block - base_, Part::high};
  return true;
}

void PageTable::set(const Window& window, uint32_t value) {
  if (window.entries[window.index] == value) return;
  window.entries[window.index] = value;
  changed(window.part, window.index, window.index + 1);
}

uint32_t PageTable::take_leaf(uint32_t fill) {
  uint32_t leaf;
  if (!free_leaves_.empty()) {
    leaf = free_leaves_.back();
    free_leaves_.pop_back();
  } else {
    leaf = static_cast<uint32_t>(leaves_.size() >> kLeafBits);
    leaves_.resize(leaves_.size() + kLeafEntries);
  }
  const uint64_t first = uint64_t{leaf} << kLeafBits;
  std::fill_n(leaves_.begin() + static_cast<ptrdiff_t>(first), kLeafEntries, fill);
  changed(Part::leaves, first, first + kLeafEntries);
  return leaf;
}

void PageTable::free_leaf(uint32_t leaf) {
  const uint64_t first = uint64_t{leaf} << kLeafBits;
  for (uint64_t i = first; i < first + kLeafEntries; ++i) {
    if (leaves_[i] & kFine) free_fine(leaves_[i]);
  }
  free_leaves_.push_back(leaf);
}

uint32_t PageTable::take_fine(uint32_t begin, uint32_t end, uint32_t slot, uint32_t next) {
  uint32_t number;
  if (!free_fine_.empty()) {
    number = free_fine_.back();
    free_fine_.pop_back();
  } else {
    number = static_cast<uint32_t>(fine_.size());
    fine_.emplace_back();
  }
  fine_[number] = {begin | end << 16, slot, next};
  changed(Part::fine, number, number + 1);
  return number;
}

void PageTable::free_fine(uint32_t entry) {
  for (uint32_t i = entry & ~kFine; i != 0; i = fine_[i].next) free_fine_.push_back(i);
}

void PageTable::paint(uint64_t begin, uint64_t end, uint32_t slot) {
  while (begin < end) {
    const uint64_t next = std::min((begin | (kBlock - 1)) + 1, end);
    paint_block(begin, next, slot);
    begin = next;
  }
}

// One block, or a part of one.
void PageTable::paint_block(uint64_t begin, uint64_t end, uint32_t slot) {
  Window window;
  if (!window_of(begin >> kBlockBits, window)) {
    lost_ += end - begin;
    return;
  }
  const uint32_t old = window.entries[window.index];
  if (old == slot) return;
  if (end - begin == kBlock) {
    set(window, slot);
    if (old & kLeaf) free_leaf(old & ~kLeaf);
    return;
  }
  const uint32_t leaf = old & kLeaf ? old & ~kLeaf : take_leaf(old);
  set(window, leaf | kLeaf);
  const uint64_t first = uint64_t{leaf} << kLeafBits;
  uint64_t at = begin;
  while (at < end) {
    const uint64_t index = first | (at >> kGranuleBits & (kLeafEntries - 1));
    const uint64_t next = std::min((at | (kGranule - 1)) + 1, end);
    if (next - at < kGranule) {
      const uint32_t byte = static_cast<uint32_t>(at & (kGranule - 1));
      paint_granule(&leaves_[index], index, byte, byte + static_cast<uint32_t>(next - at), slot);
      at = next;
      continue;
    }
    const uint64_t granules = (end - at) >> kGranuleBits;
    for (uint64_t i = index; i < index + granules; ++i) {
      if (leaves_[i] & kFine) free_fine(leaves_[i]);
      leaves_[i] = slot;
    }
    changed(Part::leaves, index, index + granules);
    at += granules << kGranuleBits;
  }
  // A leaf of one slot is no leaf.
  const uint32_t* entries = &leaves_[first];
  if (!(entries[0] & kFine) && entries[0] == entries[kLeafEntries - 1] &&
      memcmp(entries, entries + 1, (kLeafEntries - 1) * sizeof *entries) == 0) {
    set(window, entries[0]);
    free_leaf(leaf);
  }
}

// Bytes [begin, end) of a granule: its list is made anew.
void PageTable::paint_granule(uint32_t* entry, uint64_t leaf_index, uint32_t begin, uint32_t end,
                              uint32_t slot) {
  struct Piece {
    uint32_t begin, end, slot;
  };
  std::vector<Piece> pieces;
  if (*entry & kFine) {
    for (uint32_t i = *entry & ~kFine; i != 0; i = fine_[i].next) {
      pieces.push_back({fine_[i].range & 0xffff, fine_[i].range >> 16, fine_[i].slot});
    }
    free_fine(*entry);
  } else if (*entry != 0) {
    pieces.push_back({0, kGranule, *entry});
  }
  std::vector<Piece> kept;
  for (const Piece& piece : pieces) {
    if (piece.begin < begin) kept.push_back({piece.begin, std::min(piece.end, begin), piece.slot});
    if (piece.end > end) kept.push_back({std::max(piece.begin, end), piece.end, piece.slot});
  }
  if (slot != 0) kept.push_back({begin, end, slot});
  std::sort(kept.begin(), kept.end(),
            [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  pieces.clear();
  for (const Piece& piece : kept) {
    if (!pieces.empty() && pieces.back().end == piece.begin && pieces.back().slot == piece.slot) {
      pieces.back().end = piece.end;
    } else {
      pieces.push_back(piece);
    }
  }
  if (pieces.empty()) {
    *entry = 0;
  } else if (pieces.size() == 1 && pieces[0].begin == 0 && pieces[0].end == kGranule) {
    *entry = pieces[0].slot;
  } else {
    uint32_t next = 0;
    for (size_t i = pieces.size(); i-- > 0;) {
      next = take_fine(pieces[i].begin, pieces[i].end, pieces[i].slot, next);
    }
    *entry = next | kFine;
  }
  changed(Part::leaves, leaf_index, leaf_index + 1);
}

}  // namespace accel_trace
