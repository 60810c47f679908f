// check_equal MIB: compares two pieces of so much memory, and prints how many bytes are equal and whether
// the first holds zeros alone. Nobody may read the second: the program's handler lets in who tries.
#include "../equal.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr size_t kStep = 64 << 10;  // that the handler lets in at once

void let_in(int, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uint64_t>(info->si_addr) / kStep * kStep;
  if (mprotect(reinterpret_cast<void*>(at), kStep, PROT_READ)) _exit(3);
}

uint8_t* memory(size_t size) {
  void* const found = mmap(nullptr, size + kStep, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (found == MAP_FAILED) exit(2);
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(found) + kStep - 1) / kStep * kStep);
}

}  // namespace

int main(int, char** words) {
  const size_t size = strtoull(words[1], nullptr, 10) << 20;
  uint8_t *const first = memory(size), *const second = memory(size);
  second[size - 1] = 1;
  struct sigaction action{};
  action.sa_sigaction = let_in;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  mprotect(second, size, PROT_NONE);
  const accel_trace::Equal found = accel_trace::equal_bytes(first, second, size);
  printf("%llu %d\n", static_cast<unsigned long long>(found.bytes), found.zeros);
}
