// The host's copy of the page table (layout.h), and what of it has changed since it was last
// uploaded. Every stream that launches analysed kernels has its own copy on the GPU (context.h),
// so every such copy has its own list of changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout.h"

namespace accel_trace {

enum class Part { low, high, leaves, fine };
constexpr int kParts = 4;

struct Range {  // entries [begin, end) of a part
  uint64_t begin;
  uint64_t end;
};

// Changed ranges of the four parts.
class Changes {
 public:
  void mark(Part part, uint64_t begin, uint64_t end);
  // The ranges in order, those that are nearer than `gap` entries put together; then forgets them.
  std::vector<Range> take(Part part, uint64_t gap);
  bool empty() const;

 private:
  std::vector<Range> ranges_[kParts];
};

class PageTable {
 public:
  PageTable();
  ~PageTable();
  PageTable(const PageTable&) = delete;
  PageTable& operator=(const PageTable&) = delete;

  // Makes the bytes [begin, end) belong to `slot` (0: to none). Parts outside both windows are
  // left out and counted.
  void paint(uint64_t begin, uint64_t end, uint32_t slot);
  uint32_t find(uint64_t address) const { return find_slot(view(), address); }

  Table view() const;  // with the host's addresses
  uint64_t base() const { return high_ ? base_ << kBlockBits : kNowhere; }
  const void* data(Part part) const;
  uint64_t entries(Part part) const;  // used so far: what a copy must have room for
  static size_t entry_bytes(Part part) { return part == Part::fine ? sizeof(Fine) : 4; }
  Range extent(Part part) const { return extent_[static_cast<int>(part)]; }  // ever written
  uint64_t lost_bytes() const { return lost_; }  // painted outside both windows

  void attach(Changes* changes) { listeners_.push_back(changes); }
  void detach(Changes* changes);

 private:
  struct Window {
    uint32_t* entries;
    uint64_t index;
    Part part;
  };
  bool window_of(uint64_t block, Window& window);
  void paint_block(uint64_t begin, uint64_t end, uint32_t slot);
  void paint_granule(uint32_t* entry, uint64_t leaf_index, uint32_t begin, uint32_t end,
                     uint32_t slot);
  void set(const Window& window, uint32_t value);
  void changed(Part part, uint64_t begin, uint64_t end);
  uint32_t take_leaf(uint32_t fill);
  void free_leaf(uint32_t leaf);
  uint32_t take_fine(uint32_t begin, uint32_t end, uint32_t slot, uint32_t next);
  void free_fine(uint32_t entry);

  uint32_t* low_ = nullptr;   // kWindowBlocks entries, pages of zeros until they are written
  uint32_t* high_ = nullptr;
  uint64_t base_ = 0;  // block at which the high window begins
  std::vector<uint32_t> leaves_;
  std::vector<Fine> fine_;
  std::vector<uint32_t> free_leaves_;
  std::vector<uint32_t> free_fine_;
  Range extent_[kParts] = {};
  std::vector<Changes*> listeners_;
  uint64_t lost_ = 0;
};

}  // namespace accel_trace
