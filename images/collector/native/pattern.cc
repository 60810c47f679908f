#include "pattern.h"

#include <regex>

namespace accel_trace {

struct Pattern::Inside {
  std::regex regex;
};

bool Pattern::set(const std::string& expression) {
  try {
    auto inside = std::make_shared<Inside>();
    inside->regex.assign(expression, std::regex::ECMAScript | std::regex::optimize);
    inside_ = inside;
    return true;
  } catch (const std::regex_error&) {
    return false;
  }
}

bool Pattern::found_in(const std::string& text) const {
  return inside_ && std::regex_search(text, inside_->regex);
}

}  // namespace accel_trace
