// Which of the Sanitizer's callbacks are enabled: every one costs each call that it is about.
#pragma once

#include <sanitizer.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace accel_trace {

struct Sanitizer;
struct DriverCalls {  // of the driver's functions that are reported
  std::vector<Sanitizer_CallbackId> seldom;     // at every level
  std::vector<Sanitizer_CallbackId> launching;  // kernels and graphs
};

class Watching {
 public:
  // The least first: memory, modules and instances of graphs, which cannot be known later; also the
  // beginning of each launch of a kernel or graph; everything.
  enum class Level { memory, launches, all };

  // Enables everything, the ends of launches where they are asked for; returns a sentence when that
  // cannot be.
  std::string begin(const Sanitizer& api, Sanitizer_SubscriberHandle handle, DriverCalls calls,
                    bool ends);
  void inherit(const Watching& parent, const Sanitizer& api);  // in the child of a fork
  bool lacks_driver_calls() const { return lacks_; }  // this Sanitizer does not report one of them

  // Not with the tool's mutex: the Sanitizer may wait for a callback that wants it.
  void set(Level level);
  Level level() const { return level_.load(std::memory_order_relaxed); }
  // Goes up with each change: what a thread has noted of a call before may lack its end.
  uint64_t changes() const { return changes_.load(std::memory_order_relaxed); }

 private:
  bool domain(Sanitizer_CallbackDomain domain, bool on);
  bool call(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, bool on);

  const Sanitizer* api_ = nullptr;
  Sanitizer_SubscriberHandle handle_ = nullptr;
  DriverCalls calls_;
  bool lacks_ = false;
  std::mutex changing_;
  std::atomic<Level> level_{Level::all};
  std::atomic<uint64_t> changes_{0};
};

}  // namespace accel_trace
