// Mode values: the files beside the log. What was fetched of launches goes into them on one thread
// of ours, in the order in which it was fetched, while the program goes on. All of it is guarded by
// the tool's mutex, which is not held while a launch is written.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <thread>

#include "tool.h"
#include "values_layout.h"

namespace accel_trace {

struct Bytes {
  char* data = nullptr;
  uint64_t size = 0;
};

struct Fetched {  // of one launch, each in two parts of which one may be empty
  Bytes records[2], payload[2];
  std::unique_ptr<char[]> own;  // memory for what is too large for a stage
  event::Recorded event{};      // for the log, when the files hold the rest
};

class ValueFiles {
 public:
  explicit ValueFiles(Tool& tool) : tool_(tool) {}

  void add(Fetched launch);
  // Looks again and again. No condition variable: one does not let go where a signal's handler ends
  // the process from here.
  template <class Is>
  void wait(Lock& lock, Is is) const {
    while (!is()) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      lock.lock();
    }
  }
  bool writes(const Bytes& part) const;  // whether some of it is still to be written
  bool writes_own() const;              // or what has memory of its own
  bool idle() const { return waiting_.empty(); }
  void settle(Lock& lock);              // waits until all that was added so far is written
  bool told();  // whether the log was told of launches since this was asked last
  // Of a copy, at once: its contents, then where they end.
  bool add_contents(const void* data, uint64_t bytes) { return put_now(kContents, data, bytes); }
  bool add_end(uint64_t end) { return put_now(kEnds, &end, sizeof end); }
  bool failed() const { return failed_; }

 private:
  enum File { kPayload, kRecords, kContents, kEnds, kFiles };
  void work();
  File write(Fetched& launch);  // the file that could not be written, or kFiles; without the mutex
  bool put(File file, const void* data, uint64_t bytes);
  bool put_now(File file, const void* data, uint64_t bytes);
  void fail(File file);

  Tool& tool_;
  int files_[kFiles] = {-1, -1, -1, -1};
  uint64_t units_ = 0;           // of payload; the thread's
  std::deque<Fetched> waiting_;  // the first one is being written
  uint64_t added_ = 0, done_ = 0;
  bool told_ = false, failed_ = false, started_ = false;
  std::condition_variable more_;  // of them
};

}  // namespace accel_trace
