// The stack of a launch: the native frames here, the Python ones by whoever set the callback.
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdio>
#include <cstring>

#include "tool.h"

namespace accel_trace {
namespace {

constexpr int kFrames = 128;

const char* file_of(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

std::string frame_text(void* address, const void* own) {
  Dl_info info;
  char offset[32];
  if (!dladdr(address, &info) || !info.dli_fname) {
    snprintf(offset, sizeof offset, "native:%p", address);
    return offset;
  }
  if (info.dli_fbase == own) return "";  // this library
  const char* base = static_cast<const char*>(info.dli_saddr ? info.dli_saddr : info.dli_fbase);
  snprintf(offset, sizeof offset, "+%#lx",
           static_cast<unsigned long>(static_cast<const char*>(address) - base));
  std::string text = "native:";
  text += info.dli_sname ? demangle(info.dli_sname) : file_of(info.dli_fname);
  return text + offset + " in " + file_of(info.dli_fname);
}

}  // namespace

void write_stack(uint64_t launch) {
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  Dl_info own{};
  dladdr(reinterpret_cast<void*>(&write_stack), &own);
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string frame = frame_text(frames[i], own.dli_fbase);
    if (frame.empty()) continue;
    if (!text.empty()) text += '\n';
    text += frame;
  }
  void (*callback)(uint64_t) = nullptr;
  {
    Lock lock(tool->mutex);
    callback = tool->stack_callback;
    if (!callback) {
      event::Stack event{};
      event.launch = launch;
      event.text = tool->log.text(text);
      tool->log.add(event);
    }
  }
  // It writes the stack itself, with its own frames before the native ones. Without the mutex: it
  // may wait for Python, and calls us back.
  if (callback) callback(launch);
}

}  // namespace accel_trace
