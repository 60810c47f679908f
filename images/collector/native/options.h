// What the environment asks for, and which launches are analysed.
#pragma once

#include <cstdint>
#include <string>

#include "pattern.h"

namespace accel_trace {

enum class Mode { events, sync, copies, empty, count, touch, hot, trace, values };
enum class Analysis { touch, count, hot };

// Classes of accesses that can be patched, as bits.
enum Class : uint32_t {
  kClassGlobal = 1,
  kClassShared = 2,
  kClassLocal = 4,
  kClassAsync = 8,  // cp.async
  kClassBulk = 16,  // bulk and TMA copies
};

const char* name_of(Mode mode);

struct Options {
  std::string folder;  // empty: the library does nothing
  Mode mode = Mode::events;
  Analysis analysis = Analysis::touch;
  uint32_t classes = 0;
  uint32_t workers = 1;
  bool drop = false;                // mode trace: drop records when the ring is full
  uint64_t buffer = 1 << 16;        // records in the ring, a power of two
  uint64_t first = 0, last = UINT64_MAX;  // launches [first, last)
  uint64_t sample = 1;
  uint64_t blocks = 1;  // mode values: one block of a launch in so many
  uint64_t snapshot = 0;  // mode copies: bytes of the GPU for copies of what kernels get
  uint64_t contexts = 1;  // of each calling context one launch in so many, the first of them
  bool distinct = false;  // arguments of all launches are told, to infer those not analysed
  bool watch_all = false;  // between samples too, for comparison
  uint64_t every = 0;  // one iteration in so many; 0: iterations are not told apart
  uint64_t within = 0;  // percent of the others' time that all may take; 0: no matter
  Pattern kernels;
  std::string region;
  std::string patches;
  std::string sanitizer;  // path of libsanitizer-public.so
  bool subscribe = true;  // the handler `sanitizer` is asked for
  bool stacks = false;
  uint64_t stack_launch = 0;
  bool all_stacks = false;

  bool patched() const { return mode >= Mode::empty; }
  bool analyses() const { return mode >= Mode::count; }
  bool synchronises() const { return mode == Mode::sync || mode >= Mode::trace; }
  bool ends() const { return analyses() || synchronises(); }  // of launches are watched
  // What the analysis reports, wherever it runs.
  Analysis reports() const;
};

// Reads ACCEL_TRACE_*; returns a sentence when a value cannot be used, else an empty string.
std::string read_options(Options& options);

// Names of a kernel for a person: demangled where that is possible.
std::string demangle(const char* name);

}  // namespace accel_trace
