// Reads commands, a line each, and does them on its memory (64 KiB at a fixed place, told first).
//   r SIZE AT, w SIZE AT, add SIZE AT   one instruction of 1, 2, 4, 8 or 16 bytes
//   copy TO FROM COUNT                  rep movsb
//   gather STRIDE                       one instruction loads eight integers (AVX2); says their sum
//   file CALL AT COUNT                  write, read, fwrite, fread
//   thread SIZE AT TIMES                so many stores by another thread
//   threads COUNT TIMES                 at once: each adds one so often to a number of its own
//   churn TIMES                         one thread stores, another watches and unwatches
//   watch AT COUNT, unwatch AT, window, pause, resume
//   handler KIND                        the program's own: jump (SIGSEGV), trap (SIGTRAP), alarm
//   null, trap                          what those are for
//   fork AT                             a child stores there, and says what it reads
//   block                               blocks all signals
#include <dlfcn.h>
#include <emmintrin.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

static char* memory;
static sigjmp_buf back;
static std::atomic<int> traps{0}, alarms{0};

template <class Function>
static Function tool(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

template <class T>
static void access(const std::string& what, char* at) {
  auto* place = reinterpret_cast<volatile T*>(at);
  if (what == "r") (void)*place;
  else if (what == "w") *place = 7;
  else if (sizeof(T) == 8) asm volatile("addq $1, %0" : "+m"(*place));
  else if (sizeof(T) == 4) asm volatile("addl $1, %0" : "+m"(*place));
  else asm volatile("addb $1, %0" : "+m"(*place));
}

static void access(const std::string& what, int size, char* at) {
  switch (size) {
    case 1: return access<uint8_t>(what, at);
    case 2: return access<uint16_t>(what, at);
    case 4: return access<uint32_t>(what, at);
    case 8: return access<uint64_t>(what, at);
  }
  __m128i value = _mm_set1_epi8(7);
  if (what == "r") asm volatile("movdqu %1, %0" : "=x"(value) : "m"(*(__m128i_u*)at));
  else asm volatile("movdqu %1, %0" : "=m"(*(__m128i_u*)at) : "x"(value));
}

static void gather(int stride) {
  int offsets[8], found[8], sum = 0;
  for (int k = 0; k < 8; ++k) offsets[k] = k * stride;
  asm volatile("vmovdqu (%1), %%ymm1\n\tvpcmpeqd %%ymm2, %%ymm2, %%ymm2\n\t"
               "vpgatherdd %%ymm2, (%0,%%ymm1,1), %%ymm0\n\tvmovdqu %%ymm0, (%2)\n\tvzeroupper"
               : : "r"(memory), "r"(offsets), "r"(found) : "xmm0", "xmm1", "xmm2", "memory");
  for (const int one : found) sum += one;
  printf("sum %d\n", sum);
}

static void file(const std::string& call, char* at, size_t count) {
  FILE* one = tmpfile();
  const int number = fileno(one);
  static char some[65536];
  if (call == "read" || call == "fread") {
    if (write(number, some, count) < 0) exit(3);
    rewind(one);
  }
  const auto wanted = static_cast<ssize_t>(count);
  ssize_t done = 0;
  if (call == "write") done = write(number, at, count);
  if (call == "read") done = read(number, at, count);
  if (call == "fwrite") done = static_cast<ssize_t>(fwrite(at, 1, count, one));
  if (call == "fread") done = static_cast<ssize_t>(fread(at, 1, count, one));
  if (done != wanted) printf("%s gave %zd\n", call.c_str(), done);
  fclose(one);
}

static void handle(const std::string& kind) {
  struct sigaction mine{};
  if (kind == "jump") {
    mine.sa_sigaction = [](int, siginfo_t*, void*) { siglongjmp(back, 1); };
    mine.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &mine, nullptr);
  } else if (kind == "trap") {
    signal(SIGTRAP, [](int) { ++traps; });
  } else {  // a timer whose handler uses the memory too
    signal(SIGALRM, [](int) { ++alarms; *(volatile char*)(memory + 65535) = 1; });
    itimerval often{{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, nullptr);
  }
}

int main() {
  memory = static_cast<char*>(mmap(reinterpret_cast<void*>(0x200000000000), 65536,
                                   PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string what, name;
    uint64_t a = 0, b = 0, c = 0;
    words >> what;
    if (what == "file" || what == "handler") words >> name;
    words >> a >> b >> c;
    if (what == "r" || what == "w" || what == "add") access(what, static_cast<int>(a), memory + b);
    if (what == "copy") {
      char *to = memory + a, *from = memory + b;
      asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(c) : : "memory");
    }
    if (what == "gather") gather(static_cast<int>(a));
    if (what == "file") file(name, memory + a, b);
    if (what == "handler") handle(name);
    if (what == "thread") {
      std::thread([=] { for (uint64_t i = 0; i < c; ++i) access("w", static_cast<int>(a), memory + b); }).join();
    }
    if (what == "threads") {
      std::vector<std::thread> all;
      for (uint64_t t = 0; t < a; ++t) {
        all.emplace_back([=] {
          for (uint64_t i = 0; i < b; ++i) access("add", 4, memory + 8 * t);
        });
      }
      for (std::thread& one : all) one.join();
      for (uint64_t t = 0; t < a; ++t) {
        if (*reinterpret_cast<uint32_t*>(memory + 8 * t) != b) puts("a sum is wrong");
      }
    }
    if (what == "churn") {
      const auto watch = tool<int (*)(uint64_t, uint64_t)>("accel_trace_cpu_watch");
      const auto leave = tool<void (*)(uint64_t)>("accel_trace_cpu_unwatch");
      std::atomic<bool> over{false};
      std::thread other([&] { while (!over) access("add", 4, memory); });
      for (uint64_t i = 0; i < a; ++i) {
        watch(reinterpret_cast<uint64_t>(memory), 4096);
        leave(reinterpret_cast<uint64_t>(memory));
      }
      over = true;
      other.join();
    }
    const uint64_t at = reinterpret_cast<uint64_t>(memory) + a;
    if (what == "watch") {
      const auto call = tool<int (*)(uint64_t, uint64_t)>("accel_trace_cpu_watch");
      if (call && call(at, b)) puts("not watched");
    }
    if (what == "unwatch") {
      if (auto* call = tool<void (*)(uint64_t)>("accel_trace_cpu_unwatch")) call(at);
    }
    if (what == "window" || what == "pause" || what == "resume") {
      if (auto* call = tool<void (*)()>(("accel_trace_cpu_" + what).c_str())) call();
    }
    if (what == "null") {
      if (!sigsetjmp(back, 1)) *reinterpret_cast<volatile int*>(8) = 1;
      else puts("jumped");
    }
    if (what == "trap") asm volatile("int3");
    if (what == "block") {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
    }
    if (what == "fork") {
      fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        *(volatile char*)(memory + a) = 9;
        printf("child %d\n", memory[a]);
        fflush(stdout);
        _exit(5);
      }
      int status = 0;
      waitpid(child, &status, 0);
      printf("parent %d %d\n", memory[a], WEXITSTATUS(status));
    }
  }
  if (traps) printf("traps %d\n", traps.load());
  if (alarms) puts("alarms");
  puts("done");
  return 7;
}
