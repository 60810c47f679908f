// What the page table names: slots, and the pieces of memory for which they stand.
// A slot stands for a stretch of addresses in one object, or in none, that belongs to one tensor at a
// time: which one is known by moments, so that a table does not change where a framework hands out the
// same addresses again, in other sizes too. In mode hot a slot stands for a 2 MiB block. A slot is used
// again only when no undrained launch can have seen it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace accel_trace {

struct Piece {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t id = 0;  // 0: none
  uint32_t device = 0;
  uint32_t flags = 0;     // as the driver's allocation has them
  uint64_t context = 0;
  bool peer = false;      // seen only as another device's memory
  uint64_t end() const { return address + size; }
};

struct Slot {
  struct Owner {
    uint64_t moment;  // from which on
    Piece tensor;     // or none
  };
  Piece object;
  uint64_t block = 0;  // mode hot
  std::vector<Owner> owners{};
  const Piece& tensor_at(uint64_t moment) const;
};

class Slots {
 public:
  Slots() : slots_(1) {}  // slot 0: no piece
  uint32_t take(const Slot& slot);  // 0 when there are too many
  void retire(uint32_t slot);
  // Slots retired at or before `epoch` may be used again, and nobody asks for what was before `moment`.
  void reclaim(uint64_t epoch, uint64_t moment);
  uint64_t epoch() const { return epoch_; }
  void own(uint32_t slot, const Piece& tensor);  // from this moment on
  uint64_t owner(uint32_t slot) const {          // its number, 0 for none
    const auto& owners = slots_[slot].owners;
    return owners.empty() ? 0 : owners.back().tensor.id;
  }
  void pass() { ++moment_; }
  uint64_t moment() const { return moment_; }
  uint32_t high() const { return static_cast<uint32_t>(slots_.size()); }
  const Slot& operator[](uint32_t slot) const { return slots_[slot]; }
  uint64_t refused() const { return refused_; }

 private:
  struct Retired {
    uint32_t slot;
    uint64_t epoch;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::deque<Retired> retired_;
  uint64_t epoch_ = 0;
  uint64_t moment_ = 0;
  uint64_t asked_ = 0;  // moments before it are not asked for any more
  uint64_t refused_ = 0;
};

}  // namespace accel_trace
