// Writes accesses from a signal handler: no allocation, no lock of the C library's.
#include "record.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "watch.h"

namespace accel_trace_cpu {
namespace {

constexpr int kBuffer = 4096, kFrames = 48, kText = 4096;
constexpr uint32_t kSlots = 1 << 16, kStacks = 4096;  // slots of the tables
constexpr uint64_t kMost = uint64_t{1} << 24;         // records of a process
constexpr uint64_t kPage = 4096;

struct Stack {
  uint64_t hash;
  int frames;
  void* frame[kFrames];
  char text[kText];  // Python's frames, as faulthandler prints them
};

struct Records {
  std::atomic_flag lock = ATOMIC_FLAG_INIT;
  Access buffer[kBuffer] = {};
  int filled = 0;
  uint64_t total = 0, lost = 0, unknown_stacks = 0;
  uint64_t codes[kSlots] = {};
  uint32_t numbers[kSlots] = {};  // of stacks, by hash; 0 none
  Stack* stacks = nullptr;
  uint32_t stacks_used = 0;
  int records = 0, code = 0, text = 0;
  char stem[512] = {};
  uint32_t threads[64] = {};
  int threads_used = 0;
};

Records state;  // all zeros, before any constructor

thread_local __attribute__((tls_model("initial-exec"))) struct {
  char* text;  // where write() puts what Python prints
  int length;
} capture;

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

void flush() {  // with the lock
  const auto size = static_cast<ssize_t>(sizeof(Access)) * state.filled;
  if (syscall(SYS_write, state.records, state.buffer, size) != size) {
    state.lost += static_cast<uint64_t>(state.filled);
  }
  state.filled = 0;
}

void learn(uint64_t address) {  // the bytes of an instruction, once; with the lock
  uint32_t slot = static_cast<uint32_t>((address * 0x9e3779b97f4a7c15ull) >> 48) % kSlots;
  for (uint32_t tried = 0; tried < 64; ++tried, slot = (slot + 1) % kSlots) {
    if (state.codes[slot] == address) return;
    if (state.codes[slot]) continue;
    state.codes[slot] = address;
    Code one{};
    one.address = address;
    const uint64_t left = kPage - address % kPage;  // the next page may not be there
    one.count = static_cast<uint8_t>(left < 15 ? left : 15);
    memcpy(one.bytes, reinterpret_cast<const void*>(address), one.count);
    syscall(SYS_write, state.code, &one, sizeof one);
    return;
  }
}

// What Python itself prints of a thread's frames after a crash: made for signal handlers.
int python_frames(char* text) {
  using Dump = void (*)(int, void*);
  static const auto dump = reinterpret_cast<Dump>(dlsym(RTLD_DEFAULT, "_Py_DumpTraceback"));
  static const auto current =
      reinterpret_cast<void* (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_GetThisThreadState"));
  static const auto ready = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "Py_IsInitialized"));
  if (!dump || !current || !ready || !ready()) return 0;
  void* thread = current();
  if (!thread) return 0;
  capture.text = text;
  capture.length = 0;
  dump(state.text, thread);
  capture.text = nullptr;
  if (capture.length) return capture.length;  // our own write() got it; else we came too late
  const off_t length = lseek(state.text, 0, SEEK_CUR);
  lseek(state.text, 0, SEEK_SET);
  const size_t most = length < kText ? static_cast<size_t>(length) : kText - 1;
  return static_cast<int>(syscall(SYS_pread64, state.text, text, most, 0));
}

// Frames of the program alone: those before the signal's own are of this library.
int native_frames(void** frames, uint64_t code) {
  void* all[kFrames + 8];
  const int count = backtrace(all, kFrames + 8);
  int first = 0;
  for (int i = 0; i < count; ++i) {
    if (reinterpret_cast<uint64_t>(all[i]) == code) first = i;
  }
  if (!first) {
    frames[0] = reinterpret_cast<void*>(code);
    return 1;
  }
  const int kept = count - first < kFrames ? count - first : kFrames;
  memcpy(frames, all + first, static_cast<size_t>(kept) * sizeof(void*));
  return kept;
}

uint32_t number_of(Stack& scratch, int length) {
  uint64_t hash = 1469598103934665603ull;
  const auto take = [&hash](const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i) {
      hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 1099511628211ull;
    }
  };
  take(scratch.frame, static_cast<size_t>(scratch.frames) * sizeof(void*));
  take(scratch.text, static_cast<size_t>(length));
  scratch.hash = hash;
  uint32_t slot = static_cast<uint32_t>(hash % kSlots);
  for (uint32_t tried = 0; tried < 64; ++tried, slot = (slot + 1) % kSlots) {
    const uint32_t number = state.numbers[slot];
    if (number && state.stacks[number - 1].hash == hash) return number;
    if (number) continue;
    if (state.stacks_used == kStacks) break;
    state.stacks[state.stacks_used] = scratch;
    return state.numbers[slot] = ++state.stacks_used;
  }
  ++state.unknown_stacks;
  return 0;
}

uint32_t stack_of(uint64_t code) {
  static Stack scratch;  // with the lock
  scratch.frames = native_frames(scratch.frame, code);
  const int length = python_frames(scratch.text);
  scratch.text[length] = 0;
  return number_of(scratch, length);
}

// Adds a record, with the lock; false where there is no room left.
bool add(const Access& one) {
  if (state.total >= kMost) {
    ++state.lost;
    return false;
  }
  ++state.total;
  state.buffer[state.filled++] = one;
  bool known = state.threads_used == 64;
  for (int i = 0; i < state.threads_used; ++i) known = known || state.threads[i] == one.thread;
  if (!known) state.threads[state.threads_used++] = one.thread;
  if (state.filled == kBuffer) flush();
  return true;
}

int made(const char* ending) {
  char path[600];
  snprintf(path, sizeof path, "%s.%s", state.stem, ending);
  return ::open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
}

void write_stacks() {
  char path[600];
  snprintf(path, sizeof path, "%s.stacks", state.stem);
  FILE* file = fopen(path, "w");
  if (!file) return;
  for (uint32_t i = 0; i < state.stacks_used; ++i) {
    const Stack& stack = state.stacks[i];
    char** names = backtrace_symbols(stack.frame, stack.frames);
    fprintf(file, "stack %u\n", i + 1);
    for (int k = 0; names && k < stack.frames; ++k) fprintf(file, "%s\n", names[k]);
    free(names);
    fputs(stack.text, file);
  }
  fclose(file);
}

void write_facts(const char* words, bool over) {
  char path[600];
  snprintf(path, sizeof path, "%s.facts", state.stem);
  FILE* file = fopen(path, "w");
  if (!file) return;
  fputs(words, file);
  if (over) fprintf(file, "accesses %llu\nlost %llu\nunknown_stacks %llu\nthreads %d\n",
          (unsigned long long)state.total, (unsigned long long)state.lost,
          (unsigned long long)state.unknown_stacks, state.threads_used);
  fclose(file);
}

}  // namespace

int open_records(const char* folder, const char* words) {
  if (!state.stacks) {
    void* memory = mmap(nullptr, sizeof(Stack) * kStacks, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return errno;
    state.stacks = static_cast<Stack*>(memory);
    void* frame[4];
    backtrace(frame, 4);  // loads the unwinder now, not in a handler
  }
  snprintf(state.stem, sizeof state.stem, "%s/cpu-%d", folder, static_cast<int>(getpid()));
  state.records = made("records");
  state.code = made("code");
  state.text = static_cast<int>(syscall(SYS_memfd_create, "frames", MFD_CLOEXEC));
  if (state.records < 0 || state.code < 0) return errno;
  state.total = state.lost = state.unknown_stacks = 0;
  state.filled = state.threads_used = 0;
  state.stacks_used = 0;
  memset(state.codes, 0, sizeof state.codes);
  memset(state.numbers, 0, sizeof state.numbers);
  write_facts(words, false);
  return 0;
}

void close_records(const char* words) {
  {
    const Blocked blocked;
    const Spin spin(state.lock);
    flush();
  }
  write_stacks();
  write_facts(words, true);
  forget_records();
}

void forget_records() {
  state.lock.clear();
  close(state.records);
  close(state.code);
  close(state.text);
}

uint64_t recorded() { return state.total; }

bool captured(const void* data, size_t size) {
  if (!capture.text) return false;
  const auto room = static_cast<size_t>(kText - 1 - capture.length);
  const size_t kept = size < room ? size : room;
  memcpy(capture.text + capture.length, data, kept);
  capture.length += static_cast<int>(kept);
  return true;
}

void record(uint64_t address, uint64_t code, uint32_t size, uint32_t flags) {
  const Spin spin(state.lock);
  const auto thread = static_cast<uint32_t>(syscall(SYS_gettid));
  const bool kept = add({now(), address, code, size, stack_of(code), thread, flags});
  if (kept && !size && code) learn(code);
}

void record_fault(uint64_t ns, uint64_t address, uint64_t code, uint32_t thread) {
  const Spin spin(state.lock);
  static Stack scratch;  // with the lock
  scratch.frames = 1;
  scratch.frame[0] = reinterpret_cast<void*>(code);
  scratch.text[0] = 0;
  add({ns, address, code, 1, number_of(scratch, 0), thread, 3});
}

void lose(uint64_t count) {
  const Spin spin(state.lock);
  state.lost += count;
}

}  // namespace accel_trace_cpu
