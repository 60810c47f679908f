#include "sanitizer_api.h"

#include <dlfcn.h>

namespace accel_trace {

std::string Sanitizer::open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    return "cannot open the Compute Sanitizer library: " + std::string(why ? why : path) +
           "; install nvidia-cuda-sanitizer-api, or name it in ACCEL_TRACE_SANITIZER";
  }
#define ACCEL_TRACE_FIND(name)                                                             \
  name = reinterpret_cast<decltype(name)>(dlsym(library, "sanitizer" #name));              \
  if (!name) return path + " has no function sanitizer" #name "; it is too old";
  ACCEL_TRACE_SANITIZER_FUNCTIONS(ACCEL_TRACE_FIND)
#undef ACCEL_TRACE_FIND
  return "";
}

std::string Sanitizer::words(SanitizerResult result) const {
  const char* text = nullptr;
  if (GetResultString && GetResultString(result, &text) == SANITIZER_SUCCESS && text) {
    return std::string(text) + " (" + std::to_string(static_cast<int>(result)) + ")";
  }
  return "result " + std::to_string(static_cast<int>(result));
}

}  // namespace accel_trace
