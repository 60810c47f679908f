// Mode copies: no kernel is patched. What a copy or fill brings is compared with what its destination
// held.
//
// Where the driver's function that makes it is reported by itself, the destination is copied on the GPU
// before it and compared with that copy after it, in its stream, and nothing goes over the bus; a copy
// within the GPU's memory is compared before it, where both lie; what comes to the host is fetched
// before it, into page-locked memory. Else (functions that we do not read,
// another thread's copy under way, no memory for the copy) both sides are fetched before it by the
// Sanitizer's functions, from within its callback.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <string>
#include <vector>

#include "compare.h"
#include "equal.h"
#include "tool.h"

namespace accel_trace {

class Copies {
 public:
  explicit Copies(Tool& tool) : tool_(tool) {}

  static void add_calls(std::vector<Sanitizer_CallbackId>& calls);  // that are followed
  static bool follows(Sanitizer_CallbackId id);
  // From the beginning to the end of one of them; without the mutex.
  void begin(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data);
  void end(bool succeeded);

  // A copy or fill is made; with the mutex. True: its event is written when the driver's function ends.
  bool made(Lock& lock, const Sanitizer_MemcpyData& data);
  bool made(Lock& lock, const Sanitizer_MemsetData& data);
  void forget(CUcontext context);  // it ends, and its memory with it; with the mutex
  void write_last();

 private:
  struct Device {  // what we have of a context, for its own copies alone: it goes with it
    CUfunction compare = nullptr;
    Found* found = nullptr;  // page-locked, that of each block
    CUdeviceptr copy = 0;
    uint64_t capacity = 0;     // of it
    uint8_t* stage = nullptr;  // page-locked, two pieces
  };

  Device& device(CUcontext context);
  bool compares(Device& device);
  bool room(Device& device, uint64_t size);
  uint8_t* keep(Device& device, void* stage);
  bool works(CUresult result, const char* what);
  bool copy_before(Device& device, CUstream stream);
  bool fetch_before(Device& device, CUstream stream);
  bool compare_on_gpu(Device& device, CUstream stream, uint64_t comes, uint64_t held);
  void tell(uint64_t size, uint64_t unchanged, bool zeros);
  template <class Get>
  void compare_now(Lock& lock, uint64_t size, CUcontext context, Get get);
  void release();

  Tool& tool_;
  std::map<CUcontext, Device> devices_;  // emptied when a context ends, not erased
  std::atomic<bool> busy_{false};        // one copy at a time has our memory
  bool broken_ = false;                  // the driver's functions failed us
  uint64_t by_gpu_ = 0, by_bus_ = 0, by_sanitizer_ = 0;
};

}  // namespace accel_trace
