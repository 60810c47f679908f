// Finds the iterations of a program in the sequence of its launches: the longest stretch that repeats
// again and again. Launches are numbers that are equal where function, grid and block are.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace accel_trace {

class Repeats {
 public:
  // Takes in the next launch; true when one iteration ended with it and the next will begin.
  bool add(uint64_t launch);
  bool found() const { return locked_; }
  uint64_t length() const { return locked_ ? period_ : 0; }  // launches of an iteration
  uint64_t lost() const { return lost_; }  // how often what was found did not go on

 private:
  static constexpr uint64_t kEqual = 3;           // iterations that must be equal before one is found
  static constexpr uint64_t kLeast = 32;          // and launches: a few equal ones are no loop
  static constexpr uint64_t kLongest = 1 << 16;   // launches of an iteration
  static constexpr uint64_t kKept = kLongest * 4;
  static constexpr uint64_t kInner = 1 << 13;     // launches of repetitions within an iteration
  static constexpr uint32_t kCandidates = 512;    // that are looked at when one does not go on

  uint64_t equal_back(uint64_t period) const;  // launches, from the last one back
  void choose();
  uint64_t at(uint64_t number) const { return launches_[number % kKept]; }

  std::vector<uint64_t> launches_ = std::vector<uint64_t>(kKept);
  std::vector<uint64_t> before_ = std::vector<uint64_t>(kKept);  // the same launch's last place, +1
  std::unordered_map<uint64_t, uint64_t> last_;                  // its place, +1
  uint64_t count_ = 0;
  uint64_t period_ = 0;  // 0: no candidate
  uint64_t equal_ = 0;   // launches that were as one period before
  uint64_t inner_ = 0;   // periods up to this one were repetitions within an iteration
  uint64_t first_ = 0;   // place at which the first iteration begins
  bool locked_ = false;
  uint64_t lost_ = 0;
};

}  // namespace accel_trace
