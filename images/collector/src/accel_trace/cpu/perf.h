// Page faults of this process as the kernel counts them (perf), without any privilege.
#pragma once

#include <cstdint>

namespace accel_trace_cpu {

int open_faults();  // 0, or an errno: containers often forbid it
// Takes what was counted since; returns how many were lost. Of one thread at a time.
uint64_t take_faults(void (*take)(uint64_t ns, uint64_t address, uint64_t code, uint32_t thread));
void close_faults();
void forget_faults();  // in a forked child, which has the files and not the rings

}  // namespace accel_trace_cpu
