// Mode values: every access of an analysed launch with its value, and the contents of copies, written
// to files beside the log. A launch is waited for; one is analysed at a time in a context.
#pragma once

#include <cstdio>
#include <memory>
#include <unordered_map>

#include "tool.h"
#include "values_layout.h"

namespace accel_trace {

class Values {
 public:
  explicit Values(Tool& tool) : tool_(tool) {}

  // The buffer for a launch, cleared in the order of its stream, or null where it cannot be analysed.
  // `grid`: its blocks.
  void* bind(Lock& lock, CUcontext context, uint64_t launch, uint64_t grid,
             Sanitizer_StreamHandle stream);
  void cancel(CUcontext context);  // the launch was refused
  // After the stream was synchronised: writes the records of its launch, and how many they are.
  void collect(Lock& lock, CUcontext context, uint64_t launch, Sanitizer_StreamHandle stream);
  void copied(const Sanitizer_MemcpyData& data);  // with the mutex, before the copy is made
  void forget(CUcontext context) { buffers_.erase(context); }
  void close();  // facts about what was not seen

 private:
  struct Buffer {
    char* memory = nullptr;  // a ValueBuffer, then its room
    char* stage = nullptr;   // page-locked
    bool busy = false;
  };
  struct Fetched {  // of a launch
    ValueBuffer head{};
    WarpAccess* records = nullptr;  // payload follows them
    uint64_t count = 0, units = 0;
    std::unique_ptr<char[]> own;  // memory for it, where the stage is too small
  };
  SanitizerResult fetch(const Buffer& buffer, Sanitizer_StreamHandle stream, Fetched& out) const;
  uint64_t keep(Fetched& got);
  bool write(FILE*& file, const char* name, const void* data, size_t bytes);
  void unseen(const char* what, uint64_t count, const char* words);

  Tool& tool_;
  std::unordered_map<CUcontext, Buffer> buffers_;
  FILE *records_ = nullptr, *payload_ = nullptr, *contents_ = nullptr, *ends_ = nullptr;
  bool failed_ = false;
  uint64_t written_ = 0;  // bytes of records and payload
  uint64_t units_ = 0;    // of payload
  uint64_t kept_ = 0;     // bytes of copies
  uint64_t lost_ = 0, copies_ = 0, bulk_ = 0, tensor_ = 0;
};

}  // namespace accel_trace
