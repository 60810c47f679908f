#include "code.h"

#include <unistd.h>

#include <cstdio>

namespace accel_trace {
namespace {

constexpr uint64_t kMostBytes = 2ull << 30;  // of cubins in files

}  // namespace

std::string Code::path(uint64_t file) const {
  return tool_.options.folder + "/code-" + std::to_string(tool_.process) + "-" +
         std::to_string(file) + ".cubin";
}

bool Code::write(const std::string& path, const void* data, size_t bytes) {
  FILE* const file = fopen(path.c_str(), "wbe");
  if (!file) return false;
  const bool whole = fwrite(data, 1, bytes, file) == bytes;
  return fclose(file) == 0 && whole;
}

void Code::loaded(const Sanitizer_ResourceModuleData& data) {
  kept_.erase(data.module);
  if (!data.pCubin || !data.cubinSize || bytes_ + data.cubinSize > kMostBytes) return;
  const uint64_t file = files_++;
  if (!write(path(file), data.pCubin, data.cubinSize)) {
    unlink(path(file).c_str());
    return tool_.note_once("code file", 1, "the code of a module cannot be written: types of its "
                                           "accesses are not told");
  }
  bytes_ += data.cubinSize;
  unused_.insert(file);
  kept_[data.module] = file;
}

void Code::launched(Lock& lock, const Sanitizer_LaunchData& data) {
  const auto found = kept_.find(data.module);
  if (found == kept_.end() || !data.functionName) return;
  const uint64_t file = found->second;
  const std::string name = data.functionName;
  if (!told_.emplace(file, name).second) return;
  event::Code event{};
  const SanitizerResult result = unlocked(lock, [&] {
    return tool_.api.GetFunctionPcAndSize(data.module, name.c_str(), &event.address, &event.size);
  });
  if (result != SANITIZER_SUCCESS) {
    return tool_.note_once("code place", 1, "where the code of a kernel lies is not known, so types "
                                            "of its accesses are not told: " +
                                                tool_.api.words(result));
  }
  unused_.erase(file);
  event.file = file;
  event.function = tool_.log.text(name);
  tool_.log.add(event);
}

void Code::close() {
  for (const uint64_t file : unused_) unlink(path(file).c_str());
  unused_.clear();
}

}  // namespace accel_trace
