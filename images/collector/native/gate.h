// Keeps launches of kernels and changes of patches apart: a kernel that another thread launches while
// modules are patched runs into code that is half changed.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace accel_trace {

class Gate {
 public:
  // Around a launch; waits while patches are changed, and says so.
  void enter();
  void leave();
  // Whether launches are watched from here on. Those under way are forgotten: of where they are not
  // watched, the end is not told.
  void watch(bool watched);

  // Around a change. False when other threads' launches did not end within a second.
  bool close();
  void open();
  // Whether a thread had to be waited for, or had to wait, since the last call.
  bool disturbed();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint32_t launching_ = 0;
  uint64_t time_ = 0;  // times of watching and not watching are counted
  bool watched_ = true;
  bool closed_ = false;
  bool disturbed_ = false;
};

}  // namespace accel_trace
