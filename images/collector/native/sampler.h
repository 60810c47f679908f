// Analyses one iteration in N: modules are patched where a sampled one begins and unpatched where it
// ends, so that all others run at native speed. Iterations are told by the program (regions, or steps
// of a loop), or found in the sequence of its launches.
#pragma once

#include "gate.h"
#include "repeats.h"
#include "tool.h"

namespace accel_trace {

class Sampler {
 public:
  explicit Sampler(Tool& tool) : tool_(tool) {}

  // Whether launches are analysed now, and modules are patched when they are loaded.
  bool on() const { return on_; }
  bool patches() const { return on_ || for_graph_; }

  // All that follow are called with the mutex, and release it meanwhile. The first three come from
  // the program's own code.
  void step(Lock& lock);
  void region_begins(Lock& lock);
  void region_ends(Lock& lock);
  void launched(uint64_t what);   // a kernel, or a whole graph: within the driver
  void about_to_launch(Lock& lock);  // on the way into the driver
  // A graph must be instantiated with patched modules, or its kernels cannot be analysed later.
  void graph_begins(Lock& lock);
  void graph_ends(Lock& lock);
  void write_last();

  Gate gate;

 private:
  enum class Source { none, regions, steps, launches };
  void begin(Lock& lock);
  void end(Lock& lock);
  void turn(Lock& lock, bool on);
  void write(bool began, bool analysed);
  bool wanted() const;

  Tool& tool_;
  Source source_ = Source::none;
  Repeats repeats_;
  bool due_ = false;     // an iteration begins with the next launch
  bool inside_ = false;  // of an iteration
  bool on_ = false;
  bool for_graph_ = false;
  bool refused_ = false;
  uint64_t iterations_ = 0, analysed_ = 0;
};

// Patches all modules that are not, or unpatches those that are (modules.cc).
void patch_all(Lock& lock);
void unpatch_all(Lock& lock);

}  // namespace accel_trace
