// A ring of samples for each processor, inherited by threads: page faults of user code, each with its
// time, address and instruction. Nothing tells whether it was a read or a write.
#include "perf.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

namespace accel_trace_cpu {
namespace {

constexpr int kProcessors = 1024;
constexpr uint64_t kPage = 4096;

struct Ring {
  int file;
  uint64_t pages;  // of data, after the first page; a power of two
  char* memory;
};

Ring rings[kProcessors];
int used = 0;

struct Sample {
  uint64_t code;
  uint32_t process, thread;
  uint64_t ns, address;
};

int open_one(int processor) {
  perf_event_attr attr{};
  attr.type = PERF_TYPE_SOFTWARE;
  attr.size = sizeof attr;
  attr.config = PERF_COUNT_SW_PAGE_FAULTS;
  attr.sample_period = 1;
  attr.sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_ADDR;
  attr.exclude_kernel = attr.exclude_hv = 1;
  attr.inherit = 1;
  attr.use_clockid = 1;
  attr.clockid = CLOCK_MONOTONIC;
  const auto flags = PERF_FLAG_FD_CLOEXEC;
  const int file = static_cast<int>(syscall(SYS_perf_event_open, &attr, 0, processor, -1, flags));
  if (file < 0) return errno;
  for (uint64_t pages : {64, 8, 1}) {  // what may be locked is limited
    void* memory = mmap(nullptr, (pages + 1) * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) continue;
    rings[used++] = {file, pages, static_cast<char*>(memory)};
    return 0;
  }
  const int why = errno;
  close(file);
  return why;
}

void copy(const Ring& ring, uint64_t from, void* to, uint64_t size) {
  const uint64_t whole = ring.pages * kPage, at = from % whole;
  const uint64_t first = size < whole - at ? size : whole - at;
  memcpy(to, ring.memory + kPage + at, first);
  memcpy(static_cast<char*>(to) + first, ring.memory + kPage, size - first);
}

}  // namespace

int open_faults() {
  const long processors = sysconf(_SC_NPROCESSORS_CONF);
  int why = 0;
  for (int k = 0; k < processors && k < kProcessors; ++k) {
    const int said = open_one(k);
    if (said && said != ENODEV) why = said;  // one that is switched off has no device
  }
  if (why) close_faults();
  return why;
}

uint64_t take_faults(void (*take)(uint64_t, uint64_t, uint64_t, uint32_t)) {
  uint64_t lost = 0;
  for (int k = 0; k < used; ++k) {
    const Ring& ring = rings[k];
    auto* const head = reinterpret_cast<perf_event_mmap_page*>(ring.memory);
    const uint64_t end = __atomic_load_n(&head->data_head, __ATOMIC_ACQUIRE);
    uint64_t at = head->data_tail;
    while (at < end) {
      perf_event_header what;
      copy(ring, at, &what, sizeof what);
      if (what.type == PERF_RECORD_SAMPLE) {
        Sample one;
        copy(ring, at + sizeof what, &one, sizeof one);
        if (one.process == static_cast<uint32_t>(getpid())) {
          take(one.ns, one.address, one.code, one.thread);
        }
      } else if (what.type == PERF_RECORD_LOST) {
        uint64_t said[2];
        copy(ring, at + sizeof what, said, sizeof said);
        lost += said[1];
      }
      at += what.size;
    }
    __atomic_store_n(&head->data_tail, end, __ATOMIC_RELEASE);
  }
  return lost;
}

void forget_faults() {
  while (used) close(rings[--used].file);
}

void close_faults() {
  while (used) {
    const Ring& ring = rings[--used];
    munmap(ring.memory, (ring.pages + 1) * kPage);
    close(ring.file);
  }
}

}  // namespace accel_trace_cpu
