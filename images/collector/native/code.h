// The code of recorded kernels, for types of elements: cubins beside the log, and where in memory their
// functions lie, so that the pc of an access can be found in them.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "tool.h"

namespace accel_trace {

class Code {
 public:
  explicit Code(Tool& tool) : tool_(tool) {}

  // Keeps the cubin in a file of its own; it is removed at the end where no kernel of it was recorded.
  void loaded(const Sanitizer_ResourceModuleData& data);
  // Says, once for each function, where the kernel of a recorded launch lies.
  void launched(Lock& lock, const Sanitizer_LaunchData& data);
  void close();

 private:
  std::string path(uint64_t file) const;
  bool write(const std::string& path, const void* data, size_t bytes);

  Tool& tool_;
  std::unordered_map<CUmodule, uint64_t> kept_;  // the file of a module
  std::set<std::pair<uint64_t, std::string>> told_;  // file and function
  std::set<uint64_t> unused_;
  uint64_t files_ = 0, bytes_ = 0;
};

}  // namespace accel_trace
