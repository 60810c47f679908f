// The lanes of patches on the host: in `run_warp` those of a warp of 32, each with a stack of its
// own, which runs until it has to meet others; elsewhere one.
#pragma once

#include <cstdint>
#include <functional>

namespace synthetic {

// Calls `work` for each lane of `mask`, as one warp.
void run_warp(uint32_t mask, uint32_t block, uint32_t first_thread,
              const std::function<void(uint32_t lane)>& work);

}  // namespace synthetic

namespace accel_trace {
namespace lanes {

uint32_t active();
uint32_t own();
inline uint32_t first(uint32_t mask) { return static_cast<uint32_t>(__builtin_ctz(mask)); }
inline uint32_t count(uint32_t mask) { return static_cast<uint32_t>(__builtin_popcount(mask)); }
uint32_t vote(uint32_t mask, bool yes);
uint32_t take(uint32_t mask, uint32_t value, uint32_t lane);
uint64_t take(uint32_t mask, uint64_t value, uint32_t lane);
bool same(uint32_t mask, uint32_t value);
bool same(uint32_t mask, uint64_t value);
void meet(uint32_t mask);
inline uint32_t spread() { return 5; }
uint32_t block();
uint32_t thread();

}  // namespace lanes
}  // namespace accel_trace
