// The Sanitizer's functions, found in libsanitizer-public.so when the library starts. It is opened
// rather than linked, so that a target runs as ever where it is missing.
#pragma once

#include <sanitizer.h>

#include <string>

namespace accel_trace {

#define ACCEL_TRACE_SANITIZER_FUNCTIONS(F) \
  F(Subscribe)                             \
  F(EnableDomain)                          \
  F(EnableCallback)                        \
  F(AddPatchesFromFile)                    \
  F(PatchInstructions)                     \
  F(PatchModule)                           \
  F(UnpatchModule)                         \
  F(SetLaunchCallbackData)                 \
  F(Alloc)                                 \
  F(AllocHost)                             \
  F(Free)                                  \
  F(FreeHost)                              \
  F(MemcpyHostToDeviceAsync)               \
  F(MemcpyDeviceToHost)                    \
  F(Memset)                                \
  F(StreamSynchronize)                     \
  F(GetFunctionPcAndSize)                  \
  F(GetResultString)

struct Sanitizer {
#define ACCEL_TRACE_MEMBER(name) decltype(&::sanitizer##name) name = nullptr;
  ACCEL_TRACE_SANITIZER_FUNCTIONS(ACCEL_TRACE_MEMBER)
#undef ACCEL_TRACE_MEMBER

  // Returns a sentence when it cannot be opened, else an empty string.
  std::string open(const std::string& path);
  std::string words(SanitizerResult result) const;  // what a result means
};

}  // namespace accel_trace
