// What watch.cc writes and offers; recorded.py and watch.py have the same.
#pragma once

#include <cstdint>

#define ACCEL_TRACE_CPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace accel_trace_cpu {

struct Access {      // cpu-<pid>.records
  uint64_t ns;       // monotonic clock
  uint64_t address;
  uint64_t code;     // address of the instruction
  uint32_t size;     // bytes; 0: as the instruction says
  uint32_t stack;    // number in cpu-<pid>.stacks
  uint32_t thread;
  uint32_t flags;    // 1 read, 2 write; 3: a page fault, of which nobody tells
};
static_assert(sizeof(Access) == 40, "records have no padding");

struct Code {        // cpu-<pid>.code
  uint64_t address;
  uint8_t count;
  uint8_t bytes[15];
};
static_assert(sizeof(Code) == 24, "records have no padding");

enum Mode {
  kOff,
  kPages,  // a page is opened at its first access and closed at the next window
  kBytes,  // every access is stepped, and the page closed again after it
  kFaults,  // nothing is closed: page faults, as the kernel counts them
};

}  // namespace accel_trace_cpu

extern "C" {
// Records go to files FOLDER/cpu-<pid>.*. 0, or an errno.
int accel_trace_cpu_start(const char* folder, int mode);
// Accesses to these bytes are recorded from now on. 0, or why the memory cannot be protected: an
// errno, and the memory is as it was.
int accel_trace_cpu_watch(uint64_t address, uint64_t size);
void accel_trace_cpu_unwatch(uint64_t address);
// The GPU begins to work. With ACCEL_TRACE_CPU_OPEN=1 memory is open, and nothing is seen, until...
void accel_trace_cpu_work();
// ...the program has waited for it. Mode pages: pages that were opened are closed again.
void accel_trace_cpu_window();
// Nothing is seen in between; for work that no handler can follow.
void accel_trace_cpu_pause();
void accel_trace_cpu_resume();
uint64_t accel_trace_cpu_count();
void accel_trace_cpu_finish();
}
