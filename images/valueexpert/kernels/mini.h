// One source, two programs. nvcc makes a CUDA program that is timed; g++ makes a replay on the CPU,
// which runs every thread in turn, bit by bit the same, and writes every access with its value.
//
//   program VARIANT SIZE REPEATS          prints a JSON object a line, one of each run
//   program VARIANT SIZE 1 FOLDER         replay only: writes events.txt, sites.txt, accesses.bin
//                                         and contents.bin there (read by valueexpert.replay)
//
// A kernel is KERNEL name(arrays, numbers); it reads by LD(array, index) and writes by ST(array, index,
// value). Threads of a block do not talk to each other. Floats: contraction is off in both.
// On a GPU the first run is made and checked whole. The others only do on the GPU again what it did
// there, with the same bytes from the host, and must give the same bytes back.
// Managed memory: turn(where, ...) is the CPU's turn, after all that the GPU does; it reads and writes
// by HOST_LD and HOST_ST, and says whether what it found is right. Its time counts as memory's.
// Exit codes: 0; 1 a result is wrong; 2 usage; 3 the variant's check of its own input refused.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

template <class T>
using Host = std::vector<T>;

// Numbers without a pattern, the same everywhere.
inline uint64_t hash_of(uint64_t n) {
  n = (n + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
  n = (n ^ (n >> 27)) * 0x94d049bb133111ebull;
  return n ^ (n >> 31);
}
inline float any_float(uint64_t n) {  // 0.5 to 1.5, all bits of the mantissa
  return 0.5f + static_cast<float>(hash_of(n) >> 40) / 16777216.0f;
}
inline double any_double(uint64_t n) {
  return 0.5 + static_cast<double>(hash_of(n) >> 11) / 9007199254740992.0;
}
inline int any_int(uint64_t n) { return static_cast<int>(hash_of(n) >> 33); }

struct Spent {  // of one run
  double kernel_us = 0, memory_us = 0;
  uint64_t copied = 0, filled = 0, launches = 0;
};

#ifdef __CUDACC__

#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>

#define KERNEL static __global__ void
#define DEVICE __device__ __forceinline__
#define LD(array, index) ((array)[index])
#define ST(array, index, value) ((array)[index] = (value))
#define HOST_LD(array, index) (*as_it_is((array) + (index)))
#define HOST_ST(array, index, value) (*as_it_is((array) + (index)) = (value))
#define THREAD (static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x))
#define ADD_ATOMIC(array, index, value) atomicAdd(&(array)[index], value)

template <class T>
volatile T* as_it_is(T* place) {  // no access of the CPU's is merged with another, or left out
  return place;
}

inline void must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver ? 77 : 1);
}

// Where the program is, told to accel-trace when it watches, so that its findings name the same
// places as the replay's.
class Place {
 public:
  explicit Place(const char* where) { say(1, where); }
  ~Place() { say(0, nullptr); }
  static void step() {  // a run begins
    static const auto told = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "accel_trace_step"));
    if (told) told();
  }

 private:
  static void say(int start, const char* where) {
    using Region = void (*)(int, const char*);
    static const auto region = reinterpret_cast<Region>(dlsym(RTLD_DEFAULT, "accel_trace_region"));
    if (region) region(start, where);
  }
};

// VALUEEXPERT_GPU_ALONE: what the host does is in no time. Runs are repeated from page-locked memory,
// so that copies take what the bus takes, and not what the host needs to bring pages to it. And the
// GPU is kept busy until all that is timed has been asked for.
inline bool gpu_alone() {
  static const bool found = getenv("VALUEEXPERT_GPU_ALONE") != nullptr;
  return found;
}
constexpr long long kHold = 60000;  // cycles, 30 us or more
static __global__ void hold(long long cycles) {
  for (const long long from = clock64(); clock64() - from < cycles;) {
  }
}

template <class T>
struct Pages {
  using value_type = T;
  Pages() = default;
  template <class U>
  Pages(const Pages<U>&) {}
  T* allocate(size_t count) {
    if (!gpu_alone()) return std::allocator<T>().allocate(count);
    void* pointer = nullptr;
    must(cudaMallocHost(&pointer, count * sizeof(T)), "page-locked memory");
    return static_cast<T*>(pointer);
  }
  void deallocate(T* pointer, size_t count) {
    if (gpu_alone()) cudaFreeHost(pointer);
    else std::allocator<T>().deallocate(pointer, count);
  }
  template <class U>
  bool operator==(const Pages<U>&) const { return true; }
  template <class U>
  bool operator!=(const Pages<U>&) const { return false; }
};
template <class T>
using Kept = std::vector<T, Pages<T>>;

class Device {
 public:
  Spent spent;
  Device() {
    Place::step();
    must(cudaEventCreate(&begin_), "event");
    must(cudaEventCreate(&end_), "event");
  }
  ~Device() {
    for (void* pointer : held_) cudaFree(pointer);
  }
  template <class T>
  T* alloc(size_t count, const char* where) {
    const Place place(where);
    void* pointer = nullptr;
    must(cudaMalloc(&pointer, count * sizeof(T)), "cudaMalloc");
    held_.push_back(pointer);
    return static_cast<T*>(pointer);
  }
  // On pages of 2 MiB of its own.
  template <class T>
  T* managed(size_t count, const char* where) {
    const Place place(where);
    constexpr size_t page = size_t{2} << 20;
    void* pointer = nullptr;
    must(cudaMallocManaged(&pointer, (count * sizeof(T) + page - 1) / page * page), "managed");
    held_.push_back(pointer);
    return static_cast<T*>(pointer);
  }
  // VALUEEXPERT_PAUSE_US: microseconds before each turn, so that the driver sees no thrashing.
  template <class Turn>
  void turn(const char* where, Turn turn) {
    now_and_again([=](Device& device) {
      must(cudaDeviceSynchronize(), "wait");
      static const char* const pause = getenv("VALUEEXPERT_PAUSE_US");
      if (pause) usleep(static_cast<useconds_t>(atoi(pause)));
      const auto begin = std::chrono::steady_clock::now();
      if (!turn()) device.same_ = false;
      const std::chrono::duration<double, std::micro> passed =
          std::chrono::steady_clock::now() - begin;
      device.spent.memory_us += passed.count();
    });
  }
  template <class T>
  void upload(T* to, const T* from, size_t count, const char* where) {
    const size_t bytes = count * sizeof(T);
    const auto kept = std::make_shared<Kept<T>>(from, from + count);
    now_and_again([=](Device& device) {
      device.memory(bytes, true, where, [&] {
        return moved(to, kept->data(), bytes, cudaMemcpyHostToDevice);
      });
    });
  }
  template <class T>
  void download(T* to, const T* from, size_t count, const char* where) {
    const size_t bytes = count * sizeof(T);
    const auto wanted = std::make_shared<Host<T>>(count);
    now_and_again([=](Device& device) {
      T* const target = device.again_now_ ? device.room<T>(count) : to;
      device.memory(bytes, true, where, [&] {
        return moved(target, from, bytes, cudaMemcpyDeviceToHost);
      });
      if (!device.again_now_) memcpy(wanted->data(), to, bytes);
      else if (memcmp(wanted->data(), target, bytes) != 0) device.same_ = false;
    });
  }
  template <class T>
  void copy(T* to, const T* from, size_t count, const char* where) {
    const size_t bytes = count * sizeof(T);
    now_and_again([=](Device& device) {
      device.memory(bytes, true, where, [&] {
        return moved(to, from, bytes, cudaMemcpyDeviceToDevice);
      });
    });
  }
  template <class T>
  void fill(T* to, uint8_t byte, size_t count, const char* where) {
    const size_t bytes = count * sizeof(T);
    now_and_again([=](Device& device) {
      device.memory(bytes, false, where, [&] { return cudaMemset(to, byte, bytes); });
    });
  }
  template <class... Wanted, class... Given>
  void launch(const char*, void (*kernel)(Wanted...), int threads, int block, Given... given) {
    now_and_again([=](Device& device) {
      ++device.spent.launches;
      device.begin();
      kernel<<<(threads + block - 1) / block, block>>>(given...);
      must(cudaGetLastError(), "launch");
      device.spent.kernel_us += device.passed();
    });
  }
  // Does all of it once more; false where a byte that comes back is another.
  bool again() {
    Place::step();
    spent = Spent{};
    again_now_ = true;
    for (const auto& step : steps_) step(*this);
    return same_;
  }

 private:
  cudaEvent_t begin_, end_;
  std::vector<void*> held_;
  std::vector<std::function<void(Device&)>> steps_;
  Kept<uint8_t> room_;  // for what comes back again
  bool again_now_ = false, same_ = true;
  template <class Step>
  void now_and_again(Step step) {
    step(*this);
    steps_.push_back(step);
  }
  template <class T>
  T* room(size_t count) {
    if (room_.size() < count * sizeof(T)) room_.resize(count * sizeof(T));
    return reinterpret_cast<T*>(room_.data());
  }
  // The event after an asynchronous copy is asked for before the copy is over.
  static cudaError_t moved(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return gpu_alone() ? cudaMemcpyAsync(to, from, bytes, kind) : cudaMemcpy(to, from, bytes, kind);
  }
  void begin() {
    if (again_now_ && gpu_alone()) hold<<<1, 1>>>(kHold);
    must(cudaEventRecord(begin_), "event");
  }
  double passed() {
    float ms = 0;
    must(cudaEventRecord(end_), "event");
    must(cudaEventSynchronize(end_), "kernel");
    must(cudaEventElapsedTime(&ms, begin_, end_), "event");
    return 1000.0 * ms;
  }
  template <class Call>
  void memory(size_t bytes, bool copied, const char* where, Call call) {
    const Place place(where);
    (copied ? spent.copied : spent.filled) += bytes;
    begin();
    must(call(), "copy");
    spent.memory_us += passed();
  }
};

#else

#include "replay.h"

#endif

#define RUN(device, kernel, threads, block, ...) \
  (device).launch(#kernel, kernel, threads, block, __VA_ARGS__)

// What a mini says of its result: a digest of every bit, and how far it is from what it should be.
struct Result {
  uint64_t digest = 1469598103934665603ull;
  double error = 0;      // largest relative error against the reference
  double allowed = 0;    // that the variant promises
  bool refused = false;  // the variant's check of its input said no
  std::string why;

  template <class T>
  void take(const Host<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
      digest = (digest ^ bytes[i]) * 1099511628211ull;
    }
  }
  template <class T, class U>
  void compare(const Host<T>& found, const Host<U>& wanted) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double a = static_cast<double>(found[i]), b = static_cast<double>(wanted[i]);
      const double off = std::fabs(a - b) / (std::fabs(b) > 1e-6 ? std::fabs(b) : 1.0);
      if (!(off <= error)) error = off;
    }
  }
};

Result mini(Device& device, const std::string& variant, int size);

int main(int count, char** words) {
  if (count < 4) {
    fprintf(stderr, "usage: %s VARIANT SIZE REPEATS [FOLDER]\n", words[0]);
    return 2;
  }
  const std::string variant = words[1];
  const int size = atoi(words[2]), repeats = atoi(words[3]);
  Device device;
#ifndef __CUDACC__
  if (count > 4) device.write_to(words[4]);
#endif
  const Result result = mini(device, variant, size);
  if (result.refused) {
    fprintf(stderr, "%s\n", result.why.c_str());
    return 3;
  }
  for (int i = 0; i < repeats; ++i) {
    if (i && !device.again()) {
      fprintf(stderr, "run %d gives another result than the first\n", i);
      return 1;
    }
    const Spent& s = device.spent;
    printf("{\"kernel_us\": %.4f, \"memory_us\": %.4f, \"copied\": %llu, \"filled\": %llu, "
           "\"launches\": %llu, \"error\": %.9g, \"digest\": \"%016llx\"}\n",
           s.kernel_us, s.memory_us, (unsigned long long)s.copied, (unsigned long long)s.filled,
           (unsigned long long)s.launches, result.error, (unsigned long long)result.digest);
    if (!(result.error <= result.allowed)) {
      fprintf(stderr, "the result is off by %g, and %g is allowed\n", result.error, result.allowed);
      return 1;
    }
  }
  return 0;
}
