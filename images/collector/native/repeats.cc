#include "repeats.h"

#include <algorithm>

namespace accel_trace {

uint64_t Repeats::equal_back(uint64_t period) const {
  const uint64_t most = std::min({count_ - period, kKept - period, kEqual * period});
  uint64_t equal = 0;
  while (equal < most && at(count_ - 1 - equal) == at(count_ - 1 - equal - period)) ++equal;
  return equal;
}

// The distance to an earlier place of the last launch that most launches before it keep too.
void Repeats::choose() {
  period_ = equal_ = 0;
  uint64_t place = before_[(count_ - 1) % kKept];
  for (uint32_t i = 0; i < kCandidates && place != 0; ++i) {
    const uint64_t period = count_ - place;  // places are counted from 1
    if (period > kLongest) break;
    if (period > inner_) {
      const uint64_t equal = equal_back(period);
      if (equal > equal_) {
        period_ = period;
        equal_ = equal;
        if (equal >= period) break;
      }
    }
    place = before_[(place - 1) % kKept];
  }
}

bool Repeats::add(uint64_t launch) {
  uint64_t& last = last_[launch];
  launches_[count_ % kKept] = launch;
  before_[count_ % kKept] = count_ + 1 - last < kKept ? last : 0;
  last = ++count_;
  const bool goes_on = period_ != 0 && count_ > period_ && launch == at(count_ - 1 - period_);
  if (goes_on) {
    ++equal_;
  } else {
    // What repeated at least once and then ended is a part of an iteration, a layer say.
    if (equal_ >= period_) inner_ = std::max(inner_, std::min(equal_ + period_, kInner));
    lost_ += locked_;
    locked_ = false;
    choose();
  }
  const uint64_t enough = std::max((kEqual - 1) * period_, kLeast);
  if (!locked_ && period_ != 0 && equal_ >= enough && equal_ % period_ == 0) {
    locked_ = true;
    first_ = count_;
    return true;
  }
  return locked_ && (count_ - first_) % period_ == 0;
}

}  // namespace accel_trace
