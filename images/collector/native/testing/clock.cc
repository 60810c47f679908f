// The clock that the tool reads, in place of the C library's: what takes long in a scenario need not.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

static uint64_t skipped = 0;  // ns that it is ahead

void synthetic::skip(uint64_t ms) {
  __atomic_fetch_add(&skipped, ms * 1'000'000, __ATOMIC_RELAXED);
}

// A sanitizer's runtime reads it, too, so that it must not call that runtime.
extern "C" SYNTHETIC __attribute__((no_sanitize("thread", "address"))) int clock_gettime(
    clockid_t clock, timespec* time) noexcept {
  if (syscall(SYS_clock_gettime, clock, time) != 0) return -1;
  if (clock != CLOCK_MONOTONIC) return 0;
  const uint64_t ns =
      static_cast<uint64_t>(time->tv_nsec) + __atomic_load_n(&skipped, __ATOMIC_RELAXED);
  time->tv_sec += static_cast<time_t>(ns / 1'000'000'000);
  time->tv_nsec = static_cast<long>(ns % 1'000'000'000);
  return 0;
}
