// What accesses are written, with the instructions and the stacks that made them.
#pragma once

#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace accel_trace_cpu {

class Spin {  // the handler must not sleep, and it is entered with all signals blocked
 public:
  explicit Spin(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) {}
  }
  ~Spin() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag& flag_;
};

class Blocked {  // so that no handler of this thread waits for a lock that the thread holds
 public:
  Blocked() {
    sigset_t all;
    sigfillset(&all);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before_, 8);
  }
  ~Blocked() { syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before_, nullptr, 8); }

 private:
  sigset_t before_;
};

template <class Function>
Function next(const char* name) {  // the one that this library hides
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// Makes the files FOLDER/cpu-<pid>.*. `words` are lines of facts, of the records. 0, or an errno.
int open_records(const char* folder, const char* words);
void close_records(const char* words);
void forget_records();  // in a forked child
void record_fault(uint64_t ns, uint64_t address, uint64_t code, uint32_t thread);
void lose(uint64_t count);  // records that were lost elsewhere
void record(uint64_t address, uint64_t code, uint32_t size, uint32_t flags);
uint64_t recorded();
// While Python prints a stack: takes what it writes. False: somebody else's write.
bool captured(const void* data, size_t size);

// Opens memory for a system call, and records that as one access of each range; returns how many
// ranges. What it opened is closed by close_after.
constexpr int kOpen = 4;
int open_for(const void* data, size_t size, uint32_t flags, void* caller, int* ranges);
void close_after(const int* ranges, int count);

}  // namespace accel_trace_cpu
