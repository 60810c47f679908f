#include "warp.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t kStack = 64 << 10;

struct Warp {
  uint32_t mask, block, first_thread;
  const std::function<void(uint32_t)>* work;
  ucontext_t outside{}, lane[32]{};
  std::vector<char> stacks = std::vector<char>(32 * kStack);
  uint32_t running = mask;
  uint64_t given[32]{};
  // Of those who meet, by the first of them: all of them, who came so far, and how often they met.
  uint32_t wanted[32]{}, came[32]{}, times[32]{};
  bool moved = false;  // somebody met or ended since all lanes had a turn
};
thread_local Warp* warp = nullptr;
thread_local uint32_t at = 0;  // the lane that runs

void check(bool good, const char* words) {
  if (good) return;
  fprintf(stderr, "warp: %s\n", words);
  abort();
}

void run_lane() {
  (*warp->work)(at);
  warp->running &= ~(1u << at);
  warp->moved = true;
}  // goes on outside

// What every lane of `mask` gives.
const uint64_t* give(uint32_t mask, uint64_t value) {
  warp->given[at] = value;
  accel_trace::lanes::meet(mask);
  return warp->given;
}

}  // namespace

void synthetic::run_warp(uint32_t mask, uint32_t block, uint32_t first_thread,
                         const std::function<void(uint32_t)>& work) {
  Warp all{mask, block, first_thread, &work};
  warp = &all;
  for (uint32_t i = 0; i < 32; ++i) {
    getcontext(&all.lane[i]);
    all.lane[i].uc_stack.ss_sp = all.stacks.data() + i * kStack;
    all.lane[i].uc_stack.ss_size = kStack;
    all.lane[i].uc_link = &all.outside;
    makecontext(&all.lane[i], run_lane, 0);
  }
  while (all.running) {
    all.moved = false;
    for (at = 0; at < 32; ++at) {
      if (all.running & (1u << at)) swapcontext(&all.outside, &all.lane[at]);
    }
    check(all.moved, "lanes wait for lanes that never come");
  }
  warp = nullptr;
  at = 0;
}

namespace accel_trace {
namespace lanes {

uint32_t active() { return warp ? warp->mask : 1; }
uint32_t own() { return at; }
uint32_t block() { return warp ? warp->block : 0; }
uint32_t thread() { return warp ? warp->first_thread + at : 0; }

void meet(uint32_t mask) {
  if (!warp) return;
  const uint32_t first_of = first(mask), bit = 1u << at;
  check((mask & bit) && (mask & ~warp->mask) == 0, "a lane meets others, and is none of them");
  uint32_t &wanted = warp->wanted[first_of], &came = warp->came[first_of];
  if (!came) wanted = mask;
  check(wanted == mask && !(came & bit), "lanes that meet do not agree who they are");
  came |= bit;
  if (came == mask) {
    came = 0;
    ++warp->times[first_of];
    warp->moved = true;
    return;
  }
  const uint32_t before = warp->times[first_of];
  while (warp->times[first_of] == before) swapcontext(&warp->lane[at], &warp->outside);
}

uint32_t vote(uint32_t mask, bool yes) {
  if (!warp) return yes ? 1 : 0;
  const uint64_t* const all = give(mask, yes);
  uint32_t out = 0;
  for (uint32_t i = 0; i < 32; ++i) out |= (mask >> i & 1u & all[i]) << i;
  meet(mask);  // nobody gives anew before all have read
  return out;
}

uint64_t take(uint32_t mask, uint64_t value, uint32_t lane) {
  if (!warp) return value;
  const uint64_t out = give(mask, value)[lane];
  check(mask >> lane & 1, "a value of a lane that is not there");
  meet(mask);
  return out;
}

uint32_t take(uint32_t mask, uint32_t value, uint32_t lane) {
  return static_cast<uint32_t>(take(mask, uint64_t{value}, lane));
}

bool same(uint32_t mask, uint64_t value) {
  if (!warp) return true;
  const uint64_t* const all = give(mask, value);
  bool out = true;
  for (uint32_t i = 0; i < 32; ++i) out &= !(mask >> i & 1) || all[i] == value;
  meet(mask);
  return out;
}

bool same(uint32_t mask, uint32_t value) { return same(mask, uint64_t{value}); }

}  // namespace lanes
}  // namespace accel_trace
