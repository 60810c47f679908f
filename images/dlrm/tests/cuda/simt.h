// CUDA's words for a CPU: enough to run kernels/best.cu and short.cu, whose text follows this file.
//
// A lane is a fiber. It runs until its warp has to meet (a shuffle, a vote), and goes on when all
// lanes of the warp have come that are still there. Blocks run one after the other; the warps of a
// block take turns in an order drawn from a seed, so that their atomics interleave.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __forceinline__
#define __noinline__
#define __launch_bounds__(...)

using std::max;
using std::min;

struct Place {
  unsigned x, y;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static Place threadIdx, blockIdx, blockDim, gridDim;

namespace simt {

constexpr size_t STACK = 1 << 17;

struct Lane {
  ucontext_t context;  // to begin with; from then on it jumps, which asks the system for nothing
  jmp_buf place;
  unsigned thread;
  bool began, gone;
  uint64_t word[2][32];  // of all lanes, in the first one of a warp; see meet()
  int meeting;
};

static ucontext_t beginning;
static jmp_buf scheduler;
static Lane* running;
static Lane* warp_of_running;  // its first lane
static void (*body)();

inline void enter() {
  body();
  running->gone = true;
  _longjmp(scheduler, 1);
}

// Returns the words of all lanes of the warp. Two meetings have places of their own: a lane may be
// at the next one before others have read.
inline const uint64_t* meet(uint64_t word) {
  Lane* me = running;
  const int at = me->meeting++ % 2;
  warp_of_running->word[at][me->thread % 32] = word;
  if (!_setjmp(me->place)) _longjmp(scheduler, 1);
  return warp_of_running->word[at];
}

inline void go_on(Lane& lane) {
  running = &lane;
  threadIdx = {lane.thread, 0};
  if (_setjmp(scheduler)) return;
  if (lane.began) _longjmp(lane.place, 1);
  lane.began = true;
  swapcontext(&beginning, &lane.context);
}

template <typename T>
uint64_t pack(T value) {
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  return word;
}

template <typename T>
T unpack(uint64_t word) {
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}

inline void run_block(unsigned threads, std::mt19937& random) {
  static char* stacks = static_cast<char*>(malloc(1024 * STACK));
  std::vector<Lane> lanes(threads);
  for (unsigned t = 0; t < threads; ++t) {
    Lane& lane = lanes[t];
    lane.thread = t;
    getcontext(&lane.context);
    lane.context.uc_stack = {stacks + t * STACK, 0, STACK};
    lane.context.uc_link = nullptr;
    makecontext(&lane.context, enter, 0);
  }
  std::vector<unsigned> warps(threads / 32);
  for (unsigned w = 0; w < warps.size(); ++w) warps[w] = w;
  while (!warps.empty()) {
    const size_t place = random() % warps.size();
    warp_of_running = &lanes[32 * warps[place]];
    bool left = false;
    int meeting = -1;
    for (int l = 0; l < 32; ++l) {
      Lane& lane = warp_of_running[l];
      if (lane.gone) continue;
      go_on(lane);
      if (lane.gone) continue;
      if (meeting >= 0 && meeting != lane.meeting) {
        fprintf(stderr, "lanes of a warp are at different meetings\n");
        abort();
      }
      meeting = lane.meeting;
      left = true;
    }
    if (!left) warps.erase(warps.begin() + place);
  }
}

}  // namespace simt

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return simt::unpack<T>(simt::meet(simt::pack(value))[from % 32]);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const int lane = threadIdx.x % 32;
  return simt::unpack<T>(simt::meet(simt::pack(value))[lane ^ mask]);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
  const int lane = threadIdx.x % 32;
  return simt::unpack<T>(simt::meet(simt::pack(value))[lane < by ? lane : lane - by]);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
  unsigned bits = 0;
  const auto words = simt::meet(yes);
  for (int l = 0; l < 32; ++l) bits |= static_cast<unsigned>(words[l]) << l;
  return bits;
}
inline bool __any_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes); }
inline unsigned __match_any_sync(unsigned, unsigned value) {
  unsigned bits = 0;
  const auto words = simt::meet(value);
  for (int l = 0; l < 32; ++l) bits |= static_cast<unsigned>(words[l] == value) << l;
  return bits;
}
inline void __syncwarp() { simt::meet(0); }
inline void __threadfence() {}

template <typename T>
T __ldg(const T* from) {
  return *from;
}
template <typename T>
T __ldcg(const T* from) {
  return *from;
}
inline void __stcg(float* to, float value) { *to = value; }
template <typename T, typename U>
T atomicAdd(T* at, U value) {
  const T before = *at;
  *at += value;
  return before;
}
template <typename T>
T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}
template <typename T>
T atomicExch(T* at, T value) {
  const T before = *at;
  *at = value;
  return before;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(unsigned bits) { return __builtin_ffs(bits); }
inline float __uint_as_float(unsigned bits) { return simt::unpack<float>(bits); }
inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(simt::pack(value)); }
