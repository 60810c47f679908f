// Sees accesses of the CPU by taking the memory's permissions away: an access faults, the handler
// records it, and either steps that one instruction with memory open (x86-64), or opens its page.
// In a forked child nothing is watched.
#include "watch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <initializer_list>

#include "perf.h"
#include "record.h"
#include "signals.h"

namespace accel_trace_cpu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kRanges = 4096;
#ifdef __x86_64__
constexpr uint64_t kTrap = 0x100;  // the trap flag
#endif

struct Range {
  uint64_t first;                 // byte that is watched
  uint64_t page, page_end;        // the pages that hold all of them
  int stepping;                   // threads that have it open
  bool live;
};

struct State {
  std::atomic<int> mode{kOff};
  std::atomic<bool> asked{false};    // whether the environment was looked at
  std::atomic<bool> paused{false};
  bool opens = false;                // for the GPU's work
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  Range ranges[kRanges] = {};
  std::atomic<int> used{0};
  std::atomic<uint64_t> left{0};     // times that memory was opened for good, before it is not live
  uint64_t failed = 0;
  int why = 0;                       // recording did not start
  pid_t owner = 0;
};

State state;  // all zeros, before any constructor

thread_local __attribute__((tls_model("initial-exec"))) struct {
  int open[kOpen];  // ranges that this thread steps through
  int opened;
  bool stepping, trap_before;
  uint64_t mask;    // of signals, before the step
  uint64_t left;    // as of the state, when an access was made again
} own;

int find(uint64_t address) {
  const int used = state.used;
  for (int i = 0; i < used; ++i) {
    const Range& range = state.ranges[i];
    if (range.live && address >= range.page && address < range.page_end) return i;
  }
  return -1;
}

int set(const Range& range, int protection) {
  return mprotect(reinterpret_cast<void*>(range.page), range.page_end - range.page, protection);
}

void open(int number) {
  const Spin spin(state.lock);
  Range& range = state.ranges[number];
  ++range.stepping;
  if (set(range, PROT_READ | PROT_WRITE)) ++state.failed;
}

void close(int number) {
  const Spin spin(state.lock);
  Range& range = state.ranges[number];
  if (--range.stepping == 0 && range.live && !state.paused && set(range, PROT_NONE)) ++state.failed;
}

void close_all() {
  while (own.opened) close(own.open[--own.opened]);
}

// Those that were left while this thread steps through them.
void close_left() {
  for (int i = own.opened; i-- > 0;) {
    if (state.ranges[own.open[i]].live) continue;
    close(own.open[i]);
    own.open[i] = own.open[--own.opened];
  }
}

void protect_all(int protection) {
  if (state.mode == kFaults) return;
  const Spin spin(state.lock);
  for (int i = 0; i < state.used; ++i) {
    if (state.ranges[i].live) set(state.ranges[i], protection);
  }
}

#ifdef __x86_64__

bool is_write(const ucontext_t* context) { return context->uc_mcontext.gregs[REG_ERR] & 2; }
uint64_t code_of(const ucontext_t* context) {
  return static_cast<uint64_t>(context->uc_mcontext.gregs[REG_RIP]);
}

// An instruction of two memory operands, whose other one does not fault once the range is open.
void other_operand(const ucontext_t* context, const Range& range, uint64_t address) {
  const auto* code = reinterpret_cast<const uint8_t*>(code_of(context));
  const auto within = [&](uint64_t at) { return at >= range.page && at < range.page_end; };
  for (int i = 0; i < 4; ++i) {
    const uint8_t byte = code[i];
    if (byte == 0xf2 || byte == 0xf3 || byte == 0x66 || (byte & 0xf0) == 0x40) continue;
    const bool moves = byte == 0xa4 || byte == 0xa5, compares = byte == 0xa6 || byte == 0xa7;
    const auto to = static_cast<uint64_t>(context->uc_mcontext.gregs[REG_RDI]);
    if ((moves || compares) && to != address && within(to)) {
      record(to, code_of(context), 0, moves ? 2 : 1);
    }
    return;
  }
}

void step(ucontext_t* context) {
  auto& flags = context->uc_mcontext.gregs[REG_EFL];
  if (!own.stepping) {
    own.stepping = true;
    own.trap_before = flags & kTrap;
    memcpy(&own.mask, &context->uc_sigmask, 8);
    uint64_t mask = ~uint64_t{0};  // no other handler between this fault and its trap
    for (int number : {SIGSEGV, SIGTRAP, SIGBUS, SIGFPE, SIGILL}) {
      mask &= ~(uint64_t{1} << (number - 1));
    }
    memcpy(&context->uc_sigmask, &mask, 8);
  }
  flags |= kTrap;
}

void stop_stepping(ucontext_t* context) {
  if (!own.stepping) return;
  own.stepping = false;
  memcpy(&context->uc_sigmask, &own.mask, 8);
  if (!own.trap_before) context->uc_mcontext.gregs[REG_EFL] &= ~static_cast<greg_t>(kTrap);
  close_all();
}

#else  // other machines cannot step themselves: pages are opened

bool is_write(const ucontext_t*) { return true; }
uint64_t code_of(const ucontext_t*) { return 0; }
void other_operand(const ucontext_t*, const Range&, uint64_t) {}
void step(ucontext_t*) {}
void stop_stepping(ucontext_t*) {}

#endif

void on_fault(int number, siginfo_t* info, void* data) {
  const int before = errno;
  auto* context = static_cast<ucontext_t*>(data);
  const auto address = reinterpret_cast<uint64_t>(info->si_addr);
  const int found = info->si_code == SEGV_ACCERR ? find(address) : -1;
  if (found < 0 && info->si_code == SEGV_ACCERR && own.left != state.left) {
    own.left = state.left;  // opened for good between the access and here, maybe: it is made again
    return;
  }
  if (own.opened == kOpen) close_left();
  if (found < 0 || own.opened == kOpen) {
    stop_stepping(context);
    pass_on(number, info, data);
    errno = before;
    return;
  }
  const Range& range = state.ranges[found];
  const bool write = is_write(context);
  if (!state.paused) record(address, code_of(context), 0, write ? 2 : 1);
  if (state.paused) {
    const Spin spin(state.lock);
    set(range, PROT_READ | PROT_WRITE);
  } else if (state.mode == kPages) {
    const int protection = write ? PROT_READ | PROT_WRITE : PROT_READ;
    mprotect(reinterpret_cast<void*>(address / kPage * kPage), kPage, protection);
  } else {
    other_operand(context, range, address);
    own.open[own.opened++] = found;
    open(found);
    step(context);
  }
  errno = before;
}

void on_trap(int number, siginfo_t* info, void* data) {
  const int before = errno;
  if (own.stepping) stop_stepping(static_cast<ucontext_t*>(data));
  else pass_on(number, info, data);
  errno = before;
}

void in_child() {
  if (state.mode == kOff) return;
  state.lock.clear();
  own.opened = 0;
  own.stepping = false;
  protect_all(PROT_READ | PROT_WRITE);
  forget_faults();
  state.mode = kOff;
  forget_records();
  leave_signals();
}

const char* const kNames[] = {"off", "pages", "bytes", "faults"};

// What the kernel counted since the last time, on memory that is watched.
void take_all_faults() {
  const Spin spin(state.lock);
  lose(take_faults([](uint64_t ns, uint64_t address, uint64_t code, uint32_t thread) {
    if (find(address) >= 0) record_fault(ns, address, code, thread);
  }));
}

const char* words_of(int mode) {
  static char words[80];
  snprintf(words, sizeof words, "mode %s\nopens %d\nfailed %llu\n",
           kNames[mode], state.opens, (unsigned long long)state.failed);
  return words;
}

// As the environment says, at the first memory: a process without any leaves no files.
void start_once() {
  if (state.asked.exchange(true)) return;
  const char* folder = getenv("ACCEL_TRACE_OUT");
  const char* mode = getenv("ACCEL_TRACE_CPU");
  if (!folder || !mode) return;
  int number = kBytes;
  for (int k : {kPages, kFaults}) {
    if (strcmp(mode, kNames[k]) == 0) number = k;
  }
  state.why = accel_trace_cpu_start(folder, number);
}

__attribute__((destructor)) void end() { accel_trace_cpu_finish(); }

}  // namespace

int open_for(const void* data, size_t size, uint32_t flags, void* caller, int* ranges) {
  if (state.mode == kOff || state.mode == kFaults || state.paused || !size) return 0;
  const auto first = reinterpret_cast<uint64_t>(data), end = first + size;
  const Blocked blocked;
  int count = 0;
  for (int i = 0; i < state.used && count < kOpen; ++i) {
    const Range& range = state.ranges[i];
    if (!range.live || end <= range.page || first >= range.page_end) continue;
    const uint64_t from = first > range.page ? first : range.page;
    const uint64_t to = end < range.page_end ? end : range.page_end;
    record(from, reinterpret_cast<uint64_t>(caller), static_cast<uint32_t>(to - from), flags);
    open(i);
    ranges[count++] = i;
  }
  return count;
}

void close_after(const int* ranges, int count) {
  const Blocked blocked;
  while (count) close(ranges[--count]);
}

}  // namespace accel_trace_cpu

using namespace accel_trace_cpu;

ACCEL_TRACE_CPU_EXPORT int accel_trace_cpu_start(const char* folder, int mode) {
  if (state.mode != kOff) return EBUSY;
#ifndef __x86_64__
  if (mode == kBytes) mode = kPages;
#endif
  if (mode == kFaults) {
    if (const int why = open_faults()) return why;
  }
  const char* opens = getenv("ACCEL_TRACE_CPU_OPEN");
  state.opens = opens && *opens == '1';
  state.failed = 0;
  if (const int why = open_records(folder, words_of(mode))) return why;
  if (!state.owner) pthread_atfork(nullptr, nullptr, in_child);
  state.owner = getpid();
  state.used = 0;
  state.paused = false;
  state.mode = mode;
  return 0;
}

ACCEL_TRACE_CPU_EXPORT int accel_trace_cpu_watch(uint64_t address, uint64_t size) {
  if (state.mode == kOff) start_once();
  if (state.mode == kOff || !size) return state.why ? state.why : EINVAL;
  const Blocked blocked;
  if (state.mode != kFaults) take_signals(on_fault, on_trap);
  const Spin spin(state.lock);
  int free_one = -1;
  for (int i = 0; i < state.used && free_one < 0; ++i) {
    if (!state.ranges[i].live && !state.ranges[i].stepping) free_one = i;
  }
  if (free_one < 0) {
    if (state.used == kRanges) return ENOMEM;
    free_one = state.used;
  }
  Range& range = state.ranges[free_one];
  range.first = address;
  range.page = address / kPage * kPage;
  range.page_end = (address + size + kPage - 1) / kPage * kPage;
  range.stepping = 0;
  range.live = true;  // before anybody can fault on it
  if (free_one == state.used) ++state.used;
  if (state.paused || state.mode == kFaults || set(range, PROT_NONE) == 0) return 0;
  const int why = errno;
  set(range, PROT_READ | PROT_WRITE);  // a part may have been taken
  ++state.left;
  range.live = false;
  return why;
}

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_unwatch(uint64_t address) {
  if (state.mode == kOff) return;
  const Blocked blocked;
  if (state.mode == kFaults) take_all_faults();
  const Spin spin(state.lock);
  for (int i = 0; i < state.used; ++i) {
    Range& gone = state.ranges[i];
    if (!gone.live || gone.first != address) continue;
    if (state.mode != kFaults) set(gone, PROT_READ | PROT_WRITE);
    ++state.left;
    gone.live = false;
    for (int k = 0; k < state.used && !state.paused && state.mode != kFaults; ++k) {  // neighbours on its pages stay
      const Range& other = state.ranges[k];
      if (other.live && other.page < gone.page_end && gone.page < other.page_end) {
        set(other, PROT_NONE);
      }
    }
    return;
  }
}

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_window() {
  if (state.opens) accel_trace_cpu_resume();
  if (state.mode == kFaults) {
    const Blocked blocked;
    take_all_faults();
  }
  if (state.mode != kPages || state.paused) return;
  const Blocked blocked;
  protect_all(PROT_NONE);
}

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_work() {
  if (state.opens && state.mode != kFaults) accel_trace_cpu_pause();
}

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_pause() {
  if (state.mode == kOff || state.paused.exchange(true)) return;
  const Blocked blocked;
  protect_all(PROT_READ | PROT_WRITE);
}

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_resume() {
  if (state.mode == kOff || !state.paused.exchange(false)) return;
  const Blocked blocked;
  protect_all(PROT_NONE);
}

ACCEL_TRACE_CPU_EXPORT uint64_t accel_trace_cpu_count() { return recorded(); }

ACCEL_TRACE_CPU_EXPORT void accel_trace_cpu_finish() {
  if (state.mode == kOff || state.owner != getpid()) return;
  if (state.mode == kFaults) {
    const Blocked blocked;
    take_all_faults();
    close_faults();
  }
  const char* const words = words_of(state.mode);
  {
    const Blocked blocked;
    protect_all(PROT_READ | PROT_WRITE);
    const Spin spin(state.lock);
    for (int i = 0; i < state.used; ++i) state.ranges[i].live = false;
    state.mode = kOff;
  }
  close_records(words);
  leave_signals();
}
