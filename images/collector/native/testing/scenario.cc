// Reads a scenario from standard input, a command a line, and plays it on the synthetic driver.
// Numbers may be hexadecimal. See the functions below for the commands.
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "crowds.h"
#include "driver.h"

namespace {

using Words = std::vector<std::string>;
using synthetic::exported;

uint64_t value(const std::string& word) { return strtoull(word.c_str(), nullptr, 0); }
int whole(const std::string& word) { return static_cast<int>(value(word)); }

synthetic::Type type_of(const std::string& word) {
  static const std::map<std::string, synthetic::Type> types = {
      {"global", synthetic::Type::global},       {"shared", synthetic::Type::shared},
      {"remote", synthetic::Type::remote},
      {"local", synthetic::Type::local},         {"async", synthetic::Type::async},
      {"bulk_load", synthetic::Type::bulk_load}, {"bulk_store", synthetic::Type::bulk_store},
      {"bulk_reduce", synthetic::Type::bulk_reduce},
      {"tensor_load", synthetic::Type::tensor_load},
      {"tensor_store", synthetic::Type::tensor_store}};
  return types.at(word);
}

struct Player {
  std::vector<synthetic::Kernel> kernels;
  int stream = 0;
  bool graph = false;
  std::string how;  // it is launched
  std::map<uint64_t, uint64_t> tensors;
  uint64_t allocated = 0;

  void tensor(bool alloc, uint64_t address, uint64_t size) {
    auto* function = exported<void (*)(int, uint64_t, uint64_t, uint64_t, uint64_t, int, uint64_t)>(
        "accel_trace_tensor");
    if (alloc) {
      tensors[address] = size;
      allocated += size;
    } else {
      size = tensors[address];
      tensors.erase(address);
      allocated -= size;
    }
    if (function) function(alloc, address, size, allocated, allocated, 0, 0);
  }

  void named(const char* function, bool start, const char* name) {
    auto* call = exported<void (*)(int, const char*)>(function);
    if (call) call(start, name);
  }

  void go() {
    if (graph) {
      synthetic::launch_graph(stream, kernels, how);
    } else {
      synthetic::launch(stream, kernels.at(0), how == "refused");
    }
  }

  // Launches that are drained while another thread is in callbacks for other things.
  void flushes(int rounds) {
    auto* flush = exported<void (*)()>("accel_trace_flush");
    std::atomic<bool> over{false};
    std::thread other([&over] {
      while (!over) {
        synthetic::allocate(1, {0x7e0000000000, 512}, "device");
        synthetic::release(1, {0x7e0000000000, 512}, "device");
      }
    });
    for (int round = 0; round < rounds; ++round) {
      go();
      flush();
    }
    over = true;
    other.join();
  }

  // A second thread launches on its own stream while this one steps from iteration to iteration.
  void steps_beside(int steps) {
    std::atomic<bool> over{false};
    std::thread other([&over] {
      synthetic::make_stream(900, 1);
      synthetic::Kernel kernel{1, "beside", {}, {}};
      while (!over) synthetic::call_launch(900, kernel, "");
    });
    auto* step = exported<void (*)()>("accel_trace_step");
    for (int i = 0; i < steps; ++i) {
      if (step) step();
      synthetic::call_launch(stream, kernels.at(0), "");
      usleep(500);
    }
    over = true;
    other.join();
  }

  void play(const Words& w) {
    const std::string& command = w[0];
    const auto word = [&](size_t i) { return i < w.size() ? w[i] : std::string(); };
    if (command == "context") synthetic::make_context(whole(w[1]), whole(w[2]));
    else if (command == "destroy") synthetic::destroy_context(whole(w[1]));
    else if (command == "break") synthetic::break_context(whole(w[1]));
    else if (command == "module") synthetic::load_module(whole(w[1]), whole(w[2]), word(3) == "refuse", word(4));
    else if (command == "unload") synthetic::unload_module(whole(w[1]));
    else if (command == "lazy") synthetic::load_lazily(whole(w[1]), whole(w[2]));
    else if (command == "stream") synthetic::make_stream(whole(w[1]), whole(w[2]));
    else if (command == "stream_destroy") synthetic::destroy_stream(whole(w[1]));
    else if (command == "alloc" || command == "free") {
      // alloc CONTEXT ADDRESS SIZE [FLAGS [device|host|async|async_done]]
      const synthetic::Memory memory{value(w[2]), value(word(3)),
                                     static_cast<uint32_t>(value(word(4)))};
      const std::string how = word(5).empty() ? "device" : word(5);
      if (command == "alloc") synthetic::allocate(whole(w[1]), memory, how.c_str());
      else synthetic::release(whole(w[1]), memory, how.c_str());
    }
    else if (command == "memory") {  // real memory at an address, all bytes of a value
      void* const at = reinterpret_cast<void*>(value(w[1]));
      mmap(at, value(w[2]), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
      if (w[3] != "fresh") memset(at, whole(w[3]), value(w[2]));
    }
    else if (command == "cpu") {  // cpu r|w SIZE ADDRESS: an access of the host's, 4 or 8 bytes
      auto* const four = reinterpret_cast<volatile uint32_t*>(value(w[3]));
      auto* const eight = reinterpret_cast<volatile uint64_t*>(value(w[3]));
      if (w[1] == "w") whole(w[2]) == 8 ? *eight = 1 : *four = 1;
      else whole(w[2]) == 8 ? *eight : *four;
    }
    else if (command == "tensor") tensor(true, value(w[1]), value(w[2]));
    else if (command == "untensor") tensor(false, value(w[1]), 0);
    else if (command == "launch" || command == "graph") {
      // launch STREAM MODULE NAME [refused]; graph STREAM [refuses|upload|fails], then node MODULE NAME
      kernels.clear();
      stream = whole(w[1]);
      graph = command == "graph";
      how = word(graph ? 2 : 4);
      if (!graph) kernels.push_back({whole(w[2]), w[3], {}, {}});
    }
    else if (command == "node") kernels.push_back({whole(w[1]), w[2], {}, {}});
    else if (command == "access") {
      // access TYPE FLAGS SIZE BASE STRIDE COUNT
      kernels.back().accesses.push_back({type_of(w[1]), static_cast<uint32_t>(value(w[2])),
                                         static_cast<uint32_t>(value(w[3])), value(w[4]),
                                         value(w[5]), value(w[6])});
    }
    else if (command == "warp") {
      // warp FLAGS SIZE BLOCK FIRST_THREAD, then of each lane NUMBER PC ADDRESS LOW HIGH|- MASK|-
      // (of a store without its value, of a read that uses all bytes)
      synthetic::Accesses one{synthetic::Type::warp, static_cast<uint32_t>(value(w[1])),
                              static_cast<uint32_t>(value(w[2])), 0, 0, 1};
      one.block = static_cast<uint32_t>(value(w[3]));
      one.first_thread = static_cast<uint32_t>(value(w[4]));
      for (size_t i = 5; i + 5 < w.size(); i += 6) {
        one.lanes.push_back({static_cast<uint32_t>(value(w[i])), value(w[i + 1]), value(w[i + 2]),
                             w[i + 4] != "-", {value(w[i + 3]), value(w[i + 4])}, w[i + 5] != "-",
                             static_cast<uint32_t>(value(w[i + 5]))});
      }
      kernels.back().accesses.push_back(one);
    }
    else if (command == "tensor_map") {
      // tensor_map NUMBER WORD...: of its image
      std::vector<uint64_t> image;
      for (size_t i = 2; i < w.size(); ++i) image.push_back(value(w[i]));
      synthetic::make_map(whole(w[1]), image);
    }
    else if (command == "argument") {
      // argument SIZE [BYTE MAP]...: the next one of the last kernel
      synthetic::Argument argument{value(w[1]), {}, 0};
      for (size_t i = 2; i + 1 < w.size(); i += 2) argument.maps.emplace_back(value(w[i]), whole(w[i + 1]));
      kernels.back().arguments.push_back(argument);
    }
    else if (command == "pointer") kernels.back().arguments.push_back({value(w[1]), {}, value(w[2])});
    else if (command == "call") {
      // call [buffer|capture|module|module-capture|refused|fails]: as `go`, but through the
      // driver's function, the kernel that of a library or of its module; call lazily CUBIN
      synthetic::call_launch(stream, kernels.at(0), word(1), word(1) == "lazily" ? word(2) : "");
    }
    else if (command == "end_capture") synthetic::end_capture(whole(w[1]));
    else if (command == "instantiate") synthetic::instantiate(whole(w[1]));
    else if (command == "go") go();
    else if (command == "again") { for (int i = 0; i < whole(w[1]); ++i) go(); }
    else if (command == "copy") synthetic::copy(whole(w[1]), value(w[2]), value(w[3]), value(w[4]), whole(w[5]), whole(w[6]));
    else if (command == "set") synthetic::set(whole(w[1]), value(w[2]), value(w[3]), value(w[4]), static_cast<uint32_t>(value(w[5])), static_cast<uint32_t>(value(w[6])));
    else if (command == "move") {  // move STREAM TO FROM SIZE DIRECTION [called|refused|fails]
      synthetic::move(whole(w[1]), value(w[2]), value(w[3]), value(w[4]), whole(w[5]), word(6));
    }
    else if (command == "fill") {  // fill STREAM ADDRESS WIDTH ELEMENT VALUE [called]
      synthetic::fill(whole(w[1]), value(w[2]), value(w[3]), static_cast<uint32_t>(value(w[4])),
                      static_cast<uint32_t>(value(w[5])), word(6) == "called");
    }
    else if (command == "sync") synthetic::wait_for_stream(whole(w[1]));
    else if (command == "sync_context") synthetic::wait_for_context(whole(w[1]));
    else if (command == "run") synthetic::run(whole(w[1]), w.size() > 2 ? whole(w[2]) : -1);
    else if (command == "operator") named("accel_trace_operator", w[1] == "start", word(2).c_str());
    else if (command == "region") named("accel_trace_region", w[1] == "start", word(2).c_str());
    else if (command == "steps_beside") steps_beside(whole(w[1]));
    else if (command == "step") { if (auto* f = exported<void (*)()>("accel_trace_step")) f(); }
    else if (command == "flush") { if (auto* f = exported<void (*)()>("accel_trace_flush")) f(); }
    else if (command == "fact") {
      if (auto* f = exported<void (*)(const char*, const char*)>("accel_trace_fact")) f(w[1].c_str(), w[2].c_str());
    }
    else if (command == "callback") {
      auto* f = exported<void (*)(void (*)(uint64_t))>("accel_trace_set_stack_callback");
      if (f) f([](uint64_t launch) {
        auto* stack = exported<void (*)(uint64_t, const char*)>("accel_trace_stack");
        stack(launch, "python:train.py:7 step");
      });
    }
    else if (command == "ready") {
      auto* f = exported<int (*)()>("accel_trace_ready");
      auto* n = exported<uint64_t (*)()>("accel_trace_launches");
      printf("ready %d launches %d\n", f ? f() : -1, n ? static_cast<int>(n()) : -1);
    }
    else if (command == "told") {  // callbacks since the last time
      static uint64_t before = 0;
      const uint64_t now = synthetic::told();
      printf("told %d\n", static_cast<int>(now - before));
      before = now;
    }
    else if (command == "begin_capture") synthetic::begin_capture(whole(w[1]), whole(w[2]));
    else if (command == "taken") printf("taken %d\n", synthetic::taken());
    else if (command == "own") printf("own callbacks %d\n", synthetic::own_callbacks() > 0);
    else if (command == "waits") printf("waits in nodes %d\n", synthetic::waits_in_nodes());
    else if (command == "flushes") flushes(whole(w[1]));
    else if (synthetic::crowds().count(command)) {  // THREADS ROUNDS [CONTEXTS]
      synthetic::crowds().at(command)(whole(w[1]), whole(w[2]), w.size() > 3 ? whole(w[3]) : 1);
    }
    else if (command == "print") { printf("%s\n", w[1].c_str()); fflush(stdout); }
    else if (command == "pause") usleep(static_cast<useconds_t>(whole(w[1])) * 1000);
    else if (command == "skip") synthetic::skip(value(w[1]));
    else if (command == "exit") exit(whole(w[1]));
    else if (command == "leave") _exit(whole(w[1]));
    else if (command == "abort") abort();
    else if (command == "quick_exit") quick_exit(whole(w[1]));
    else if (command == "kill") raise(w.size() > 1 ? whole(w[1]) : SIGKILL);
    else if (command == "alarm") {  // alarm SECONDS exit|leave: a handler ends the process with 3
      signal(SIGALRM, w[2] == "exit" ? +[](int) { exit(3); } : +[](int) { _exit(3); });
      alarm(static_cast<unsigned>(whole(w[1])));
    }
    else { fprintf(stderr, "scenario: no command %s\n", command.c_str()); exit(99); }
  }
};

}  // namespace

int main() {
  std::vector<Words> lines;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    Words words;
    for (std::string word; in >> word;) words.push_back(word);
    if (!words.empty()) lines.push_back(words);
  }
  Player player;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i][0] == "meanwhile") {  // meanwhile PLACE, then lines up to `over` (driver.h)
      std::vector<Words> inner;
      while (lines[++i][0] != "over") inner.push_back(lines[i]);
      synthetic::meanwhile(lines[i - inner.size() - 1][1], [inner] {
        Player other;
        for (const Words& line : inner) other.play(line);
      });
      continue;
    }
    if (lines[i][0] != "fork" && lines[i][0] != "vfork") {
      player.play(lines[i]);
      continue;
    }
    // The child plays the lines up to `joined` and ends; the parent waits and goes on after them.
    size_t joined = i;
    while (lines[joined][0] != "joined") ++joined;
    fflush(stdout);
    const pid_t child = lines[i][0] == "vfork" ? vfork() : fork();
    if (child == 0) {
      if (lines[i][0] == "vfork") _exit(5);  // as after an exec that failed
      for (size_t j = i + 1; j < joined; ++j) player.play(lines[j]);
      exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    i = joined;
  }
  synthetic::join();
  return 0;
}
