// An ECMAScript regular expression; on its own, since it takes longer to compile than all else.
#pragma once

#include <memory>
#include <string>

namespace accel_trace {

class Pattern {
 public:
  bool set(const std::string& expression);  // false when it is none
  bool is_set() const { return static_cast<bool>(inside_); }
  bool found_in(const std::string& text) const;

 private:
  struct Inside;
  std::shared_ptr<const Inside> inside_;
};

}  // namespace accel_trace
