#include "slots.h"

#include <algorithm>

#include "layout.h"

namespace accel_trace {

uint32_t Slots::take(const Slot& slot) {
  if (!free_.empty()) {
    const uint32_t number = free_.back();
    free_.pop_back();
    slots_[number] = slot;
    return number;
  }
  if (slots_.size() >= kMaxSlots) {
    ++refused_;
    return 0;
  }
  slots_.push_back(slot);
  return static_cast<uint32_t>(slots_.size() - 1);
}

void Slots::retire(uint32_t slot) {
  if (slot != 0) retired_.push_back({slot, ++epoch_});
}

const Piece& Slot::tensor_at(uint64_t moment) const {
  static const Piece none{};
  const auto after = std::upper_bound(owners.begin(), owners.end(), moment,
                                      [](uint64_t m, const Owner& o) { return m < o.moment; });
  return after == owners.begin() ? none : std::prev(after)->tensor;
}

void Slots::own(uint32_t slot, const Piece& tensor) {
  if (slot == 0) return;
  std::vector<Slot::Owner>& owners = slots_[slot].owners;
  size_t old = 0;  // that nobody asks for
  while (old + 1 < owners.size() && owners[old + 1].moment <= asked_) ++old;
  owners.erase(owners.begin(), owners.begin() + static_cast<ptrdiff_t>(old));
  owners.push_back({moment_, tensor});
}

void Slots::reclaim(uint64_t epoch, uint64_t moment) {
  asked_ = std::max(asked_, std::min(moment, moment_));
  while (!retired_.empty() && retired_.front().epoch <= epoch) {
    free_.push_back(retired_.front().slot);
    retired_.pop_front();
  }
}

}  // namespace accel_trace
