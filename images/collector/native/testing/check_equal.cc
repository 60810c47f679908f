// check_equal MIB TURNS: compares two pieces of so much memory, and prints how many bytes are equal and
// whether the first holds zeros alone. The second is a file's. The program closes and cuts it again and
// again meanwhile: its handler lets in who touches it, and that is the main thread alone.
#include "../equal.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

size_t size;
uint8_t* second;
int file;
volatile sig_atomic_t faults[2];

void let_in(int signal, siginfo_t*, void*) {
  if (gettid() != getpid()) _exit(4);  // a thread that is not the program's
  if (ftruncate(file, static_cast<off_t>(size)) || mprotect(second, size, PROT_READ)) _exit(3);
  faults[signal == SIGBUS] = 1;
}

}  // namespace

int main(int, char** words) {
  size = strtoull(words[1], nullptr, 10) << 20;
  file = memfd_create("second", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size))) return 2;
  const auto map = [](int flags, int of) {
    void* const found = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, of, 0);
    if (found == MAP_FAILED) exit(2);
    return static_cast<uint8_t*>(found);
  };
  const uint8_t* const first = map(MAP_PRIVATE | MAP_ANONYMOUS, -1);
  second = map(MAP_SHARED, file);
  struct sigaction action{};
  action.sa_sigaction = let_in;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
  std::atomic<bool> over{false};
  std::thread closes([&over] {
    for (int turn = 0; !over; ++turn) {
      if (turn % 2 ? mprotect(second, size, PROT_NONE) : ftruncate(file, 0)) _exit(3);
      usleep(1000);
    }
  });
  accel_trace::Equal found;
  const int turns = atoi(words[2]);
  for (int turn = 0; turn < turns || !faults[0] || !faults[1]; ++turn) {
    found = accel_trace::equal_to_programs(first, second, size);
    if (found.bytes != size || !found.zeros) break;
  }
  over = true;
  closes.join();
  printf("%llu %d\n", static_cast<unsigned long long>(found.bytes), found.zeros);
}
