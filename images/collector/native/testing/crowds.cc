#include "crowds.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "driver.h"

namespace synthetic {
namespace {

constexpr uint64_t kFirst = 0x7f0000000000;

uint64_t place(int thread, int number) {
  return kFirst + static_cast<uint64_t>(thread) * 0x1000000 + static_cast<uint64_t>(number) * 0x100000;
}

// Each thread has a number and a context, and the streams 1000 + 2 * number and the next one.
template <class Work>
void together(int count, int contexts, Work work) {
  std::vector<std::thread> all;
  for (int t = 0; t < count; ++t) {
    const int context = 1 + t % contexts;
    for (const int stream : {1000 + 2 * t, 1001 + 2 * t}) make_stream(stream, context);
    all.emplace_back([=] { work(t, context, 1000 + 2 * t); });
  }
  for (std::thread& thread : all) thread.join();
}

// Memory that is really there, told of as an object.
void object(int context, uint64_t address, uint64_t size, int value) {
  mmap(reinterpret_cast<void*>(address), size, PROT_READ | PROT_WRITE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  memset(reinterpret_cast<void*>(address), value, size);
  allocate(context, {address, size}, "device");
}

// They each allocate, launch and free, again and again.
void threads(int count, int rounds, int contexts) {
  auto* const name = exported<void (*)(int, const char*)>("accel_trace_operator");
  together(count, contexts, [=](int t, int context, int stream) {
    for (int i = 0; i < rounds; ++i) {
      const uint64_t base = place(t, i % 3);
      allocate(context, {base, 65536}, "device");
      if (name) name(true, "op");
      Kernel kernel{context, "kernel" + std::to_string(t), {}, {}};
      kernel.accesses.push_back({Type::global, 1, 4, base, 4, 100});
      launch(stream, kernel, false);
      if (name) name(false, nullptr);
      if (i % 7 == 0) wait_for_stream(stream);
      release(context, {base, 65536}, "device");
    }
    wait_for_stream(stream);
  });
}

// A launch whose name says what it touches: object, its size, tensor, its size, accesses.
Kernel reading(int module, uint64_t object, uint64_t size, uint64_t tensor, uint64_t length,
               uint64_t reads) {
  char name[96];
  snprintf(name, sizeof name, "%#jx %#jx %#jx %#jx %ju", uintmax_t{object}, uintmax_t{size},
           uintmax_t{tensor}, uintmax_t{length}, uintmax_t{reads});
  return {module, name, {{Type::global, 1, 4, tensor, 4, reads}}, {}};
}

void tensor(bool comes, uint64_t address, uint64_t size, int device) {
  static auto* const tell =
      exported<void (*)(int, uint64_t, uint64_t, uint64_t, uint64_t, int, uint64_t)>(
          "accel_trace_tensor");
  if (tell) tell(comes, address, size, 0, 0, device, 0);
}

// A thread makes a context, launches in it and destroys it with what is under way, again and again.
// The handle is that of the last one.
void resets(int rounds) {
  constexpr int kContext = 99;
  const uint64_t at = place(200, 0);
  for (int i = 0; i < rounds; ++i) {
    const int number = 100 + i;
    make_context(kContext, 0);
    load_module(number, kContext, false, "");
    make_stream(number, kContext);
    allocate(kContext, {at, 512}, "device");
    tensor(true, at, 512, 0);
    launch(number, reading(number, at, 512, at, 512, 7), false);
    tensor(false, at, 512, 0);
    destroy_context(kContext);
  }
}

// They each have an object and tensors that come and go, often at the same addresses. Some launches are
// refused. One more thread resets its context.
void crowd(int count, int rounds, int contexts) {
  std::thread other(resets, rounds);
  auto* const flush = exported<void (*)()>("accel_trace_flush");
  together(count, contexts, [=](int t, int context, int first) {
    for (int i = 0; i < rounds; ++i) {
      const uint64_t object = place(t, i % 3), size = 0x10000 + 512 * static_cast<uint64_t>(i % 5);
      allocate(context, {object, size}, "device");
      for (uint64_t j = 0; j < 3; ++j) {
        const uint64_t at = object + 512 * ((static_cast<uint64_t>(i) + j) % 2);
        const uint64_t bytes = 512 * (j + 1), reads = 1 + j + static_cast<uint64_t>(t);
        tensor(true, at, bytes, context - 1);
        const Kernel kernel = reading(context, object, size, at, bytes, reads);
        if ((i + t) % 13 == 5) launch(first, kernel, true);
        launch(first + i % 2, kernel, false);
        tensor(false, at, bytes, context - 1);
      }
      if (i % 7 == t % 7) wait_for_stream(first + i % 2);
      if (i % 11 == t % 11) wait_for_context(context);
      if (i % 17 == t % 17 && flush) flush();
      release(context, {object, size}, "device");
    }
  });
  other.join();
}

// They each capture a kernel that gets their own tensor map, again and again, and launch the graph. The
// map of thread t has the number t + 1, the kernel is the module's `loads`.
void captures(int count, int rounds, int contexts) {
  together(count, contexts, [=](int t, int context, int stream) {
    for (int i = 0; i < rounds; ++i) {
      Kernel kernel{context, "loads", {}, {{8, {}, 0}, {128, {{0, t + 1}}, 0}}};
      const int graph = 1 + t * rounds + i;
      begin_capture(stream, graph);
      call_launch(stream, kernel, "capture");
      end_capture(graph);
      instantiate(graph);
      launch_graph(stream, {kernel}, "");
      wait_for_stream(stream);
    }
  });
}

// They each fill an object, copy to it and back. All but the first round finds half of it as it was:
// the first half has sevens, the second the round's number. Sizes are those of no other thread.
void moves(int count, int rounds, int contexts) {
  together(count, contexts, [=](int t, int context, int stream) {
    const uint64_t size = 4096 + 512 * static_cast<uint64_t>(t), half = size / 2;
    object(context, place(t, 0), size, 9);
    std::vector<char> up(size, 7), down(size, 9);
    const auto from = reinterpret_cast<uint64_t>(up.data()), to = reinterpret_cast<uint64_t>(down.data());
    for (int i = 0; i < rounds; ++i) {
      fill(stream, place(t, 0), size, 1, 7, true);
      memset(up.data() + half, 10 + i, size - half);
      move(stream, place(t, 0), from, size, 2, "called");
      move(stream, to, place(t, 0), size, 3, "called");
      wait_for_stream(stream);
    }
  });
}

// They each launch a kernel by the driver's function that gets an object and writes the round's number
// to the first bytes of it, as many as the thread's number and one.
void looks(int count, int rounds, int contexts) {
  together(count, contexts, [=](int t, int context, int stream) {
    object(context, place(t, 0), 4096, 255);
    for (int i = 0; i < rounds; ++i) {
      Kernel kernel{context, "own" + std::to_string(t), {}, {{8, {}, place(t, 0)}}};
      const auto value = static_cast<uint32_t>(1 + i) << 16;
      kernel.accesses.push_back(
          {Type::global, 2 | kStores | value, 1, place(t, 0), 1, static_cast<uint64_t>(t) + 1});
      call_launch(stream, kernel, "");
      wait_for_stream(stream);
    }
  });
}

}  // namespace

const std::map<std::string, Crowd>& crowds() {
  static const std::map<std::string, Crowd> all = {
      {"threads", threads}, {"crowd", crowd}, {"captures", captures},
      {"moves", moves}, {"looks", looks},
  };
  return all;
}

}  // namespace synthetic
