// Mode values: every access of an analysed launch with its value, and the contents of copies, written
// to files beside the log. A launch is waited for; one is analysed at a time in a context.
#pragma once

#include <unordered_map>

#include "values_files.h"

namespace accel_trace {

class Values {
 public:
  explicit Values(Tool& tool) : tool_(tool), files_(tool) {}

  // The buffer for a launch, cleared in the order of its stream, or null where it cannot be analysed.
  // `grid`: its blocks. Waits for the files where they are behind.
  void* bind(Lock& lock, CUcontext context, uint64_t launch, uint64_t grid,
             Sanitizer_StreamHandle stream);
  void cancel(CUcontext context);  // the launch was refused
  // After the stream was synchronised: has the records of its launch written, and their number.
  void collect(Lock& lock, CUcontext context, uint64_t launch, Sanitizer_StreamHandle stream);
  void copied(const Sanitizer_MemcpyData& data);  // with the mutex, before the copy is made
  void forget(Lock& lock, CUcontext context);     // it ends, and its memory with it
  ValueFiles& files() { return files_; }
  void close();  // facts about what was not seen

 private:
  struct Buffer {
    char* memory = nullptr;  // room for payload, a ValueBuffer, room for records
    char* stage = nullptr;   // page-locked: launches lie in it one behind another, in a ring
    uint64_t next = 0;       // where the next one goes
    bool busy = false;
  };
  uint64_t room() const;  // bytes
  uint64_t before() const, behind() const;  // the head: what is fetched with it
  Bytes next(const Buffer& buffer, uint64_t bytes) const;
  bool ended(CUcontext context, const Buffer& buffer) const;  // it, or all: no stage is left
  bool make(Lock& lock, CUcontext context);
  SanitizerResult fetch(Lock& lock, CUcontext context, Sanitizer_StreamHandle stream,
                        ValueBuffer& head, Fetched& out);
  void unseen(const char* what, uint64_t count, const char* words);

  Tool& tool_;
  std::unordered_map<CUcontext, Buffer> buffers_;
  ValueFiles files_;
  uint64_t written_ = 0;  // bytes of records and payload
  uint64_t kept_ = 0;     // bytes of copies
  uint64_t lost_ = 0, copies_ = 0, bulk_ = 0, tensor_ = 0;
};

}  // namespace accel_trace
