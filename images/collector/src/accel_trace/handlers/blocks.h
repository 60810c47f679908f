// Blocks of PyTorch's caching allocator, followed from its trace.
//
// A trace entry names the bytes that were asked for, not the block's. The paper's tensor is the
// block (512 B granularity, a remainder that was not split off included), so the allocator's free
// ranges are followed here and its splitting rule is applied to them. No PyTorch header is needed.
// blocks.py is the same in Python; a test holds the two against each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <unordered_map>

namespace accel_trace {

constexpr uint64_t kGranule = 512;         // all blocks are multiples of it
constexpr uint64_t kSmallBlock = 1 << 20;  // up to here a block lies in the pool of small blocks

// The blocks of one device. Not thread-safe: PyTorch calls with the device's lock held.
class Blocks {
 public:
  // Memory that came from the driver; `mapped` for a piece of an expandable segment.
  void add(uint64_t address, uint64_t size, bool mapped) {
    if (size == 0) return;
    reserved += size;
    uint64_t start = address;
    uint64_t end = address + size;
    if (mapped) {  // pieces of one expandable segment that touch are one range
      auto after = segments_.find(end);
      if (after != segments_.end() && after->second.mapped) {
        end = after->second.end;
        segments_.erase(after);
      }
      auto before = segments_.lower_bound(start);
      if (before != segments_.begin()) {
        --before;
        if (before->second.mapped && before->second.end == start) {
          start = before->first;
          segments_.erase(before);
        }
      }
    }
    segments_[start] = Segment{end, mapped};
    release(address, address + size);
  }

  // Memory that went back to the driver.
  void remove(uint64_t address, uint64_t size) {
    reserved -= size < reserved ? size : reserved;
    const uint64_t end = address + size;
    cut(address, end);
    for (auto it = below(segments_, address); it != segments_.end() && it->first < end;) {
      const uint64_t start = it->first;
      const Segment whole = it->second;
      if (whole.end <= address) {
        ++it;
        continue;
      }
      it = segments_.erase(it);
      if (start < address) segments_[start] = Segment{address, whole.mapped};
      if (whole.end > end) segments_[end] = Segment{whole.end, whole.mapped};
    }
  }

  // A block was handed out for `requested` bytes; returns the block's size.
  uint64_t take(uint64_t address, uint64_t requested) {
    uint64_t size = rounded(requested);
    auto hole = holes_.find(address);
    if (hole == holes_.end() || hole->second - address < size) {
      ++surprises;  // an allocator setting that is not followed here
      cut(address, address + size);
    } else {
      const uint64_t end = hole->second;
      const uint64_t rest = end - address - size;
      const bool mapped = segment_at(address).mapped;
      const bool split = size <= kSmallBlock || mapped ? rest >= kGranule : rest > kSmallBlock;
      holes_.erase(hole);
      if (split) {
        holes_[address + size] = end;
      } else {
        size += rest;
      }
    }
    keep(address, size);
    return size;
  }

  // A block that is handed out, of known size.
  void keep(uint64_t address, uint64_t size) {
    cut(address, address + size);
    uint64_t& block = live_[address];
    if (block != 0) ++surprises;  // its free was not seen
    allocated += size - block;
    block = size;
  }

  // A block may be handed out again; returns its size, 0 when it was never seen.
  uint64_t give(uint64_t address) {
    auto block = live_.find(address);
    if (block == live_.end()) {
      ++surprises;
      return 0;
    }
    const uint64_t size = block->second;
    live_.erase(block);
    allocated -= size;
    release(address, address + size);
    return size;
  }

  // Bytes of the block that is handed out there, 0 for none.
  uint64_t handed_out(uint64_t address) const {
    const auto block = live_.find(address);
    return block == live_.end() ? 0 : block->second;
  }
  const std::unordered_map<uint64_t, uint64_t>& handed_out() const { return live_; }

  uint64_t allocated = 0;  // bytes of blocks that are handed out or not yet free for others
  uint64_t reserved = 0;   // bytes that came from the driver
  uint64_t surprises = 0;  // entries that did not fit what is known

  static uint64_t rounded(uint64_t size) {
    return size <= kGranule ? kGranule : (size + kGranule - 1) / kGranule * kGranule;
  }

 private:
  struct Segment {
    uint64_t end;
    bool mapped;
  };

  template <typename Map>
  static typename Map::iterator below(Map& map, uint64_t address) {
    auto it = map.upper_bound(address);
    return it == map.begin() ? it : std::prev(it);
  }

  Segment segment_at(uint64_t address) {
    auto it = below(segments_, address);
    if (it == segments_.end() || it->first > address || it->second.end <= address) {
      return Segment{0, false};
    }
    return it->second;
  }

  // Take [start, end) out of the holes.
  void cut(uint64_t start, uint64_t end) {
    for (auto it = below(holes_, start); it != holes_.end() && it->first < end;) {
      const uint64_t from = it->first;
      const uint64_t to = it->second;
      if (to <= start) {
        ++it;
        continue;
      }
      it = holes_.erase(it);
      if (from < start) holes_[from] = start;
      if (to > end) holes_[end] = to;
    }
  }

  // Make [start, end) a hole, joined with the holes beside it in the same segment.
  void release(uint64_t start, uint64_t end) {
    cut(start, end);  // nothing to cut, unless an entry was lost
    auto segment = below(segments_, start);
    const bool known = segment != segments_.end() && segment->first <= start &&
                       segment->second.end >= end;
    if (known) {
      auto after = holes_.find(end);
      if (after != holes_.end() && end < segment->second.end) {
        end = after->second;
        holes_.erase(after);
      }
      auto before = holes_.lower_bound(start);
      if (before != holes_.begin()) {
        --before;
        if (before->second == start && before->first >= segment->first) {
          start = before->first;
          holes_.erase(before);
        }
      }
    }
    holes_[start] = end;
  }

  std::map<uint64_t, Segment> segments_;  // by start
  std::map<uint64_t, uint64_t> holes_;    // start to end
  std::unordered_map<uint64_t, uint64_t> live_;
};

}  // namespace accel_trace
