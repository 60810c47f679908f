// Analyses one iteration in N: modules are patched where a sampled one begins and unpatched where it
// ends. Of the others nothing is watched but memory, modules and, where iterations are found in the
// sequence of launches rather than told by the program (regions, or steps of a loop), that sequence.
// All is watched again one iteration before a sampled one, so that what is under way when modules are
// patched is known.
#pragma once

#include <set>
#include <thread>

#include "gate.h"
#include "repeats.h"
#include "tool.h"

namespace accel_trace {

class Sampler {
 public:
  explicit Sampler(Tool& tool) : tool_(tool) {}

  // Whether launches are analysed now, and modules are patched when they are loaded.
  bool on() const { return on_; }
  bool patches() const { return on_ || !instantiating_.empty(); }

  // All that follow are called with the mutex, and release it meanwhile. The first three come from
  // the program's own code.
  void step(Lock& lock);
  void region_begins(Lock& lock);
  void region_ends(Lock& lock);
  void launched(Lock& lock, uint64_t what);  // a kernel, or a whole graph: within the driver
  void about_to_launch(Lock& lock);  // on the way into the driver
  // A graph must be instantiated with patched modules, or its kernels cannot be analysed later.
  void graph_begins(Lock& lock);
  void graph_ends(Lock& lock);
  void capture_begins(Lock& lock);  // its launches are watched: nobody tells of them later
  void write_last();

  Gate gate;

 private:
  enum class Source { none, regions, steps, launches };
  void begin(Lock& lock);
  void end(Lock& lock);
  void next(Lock& lock);
  void turn(Lock& lock, bool on);
  void refuse();
  void write(bool began, bool analysed);
  bool wanted(uint64_t iteration) const;
  bool affordable() const;
  Watching::Level level() const;
  void watch(Lock& lock, Watching::Level level);
  void follow(Lock& lock, bool on);

  Tool& tool_;
  Source source_ = Source::none;
  Repeats repeats_;
  bool due_ = false;     // an iteration begins with the next launch
  bool inside_ = false;  // of an iteration
  bool on_ = false;
  std::set<std::thread::id> instantiating_;  // threads, each a graph
  bool refused_ = false;
  bool followed_ = true;  // the framework tells of its blocks of memory
  uint64_t iterations_ = 0, analysed_ = 0, unwatched_ = 0;
  uint64_t began_ = 0;  // ns, when this iteration did, before modules were patched for it
  uint64_t plain_ = 0, plain_ns_ = 0;  // iterations that were not analysed, but the first
  uint64_t analysed_ns_ = 0, last_ns_ = 0;  // of all that were, with patching; of the last one
};

// Patches all modules that are not, or unpatches those that are (modules.cc).
void patch_all(Lock& lock);
void unpatch_all(Lock& lock);

}  // namespace accel_trace
