// From what an analysis left behind to events: Touched, Counts and Hot of one launch.
#pragma once

#include <cstdint>

#include "consumer.h"
#include "layout.h"
#include "log.h"
#include "pieces.h"

namespace accel_trace {

// A row that the GPU filled. Each returns true when copies by tensor map were seen.
bool report_touched(Log& log, uint64_t launch, const Slots& slots, uint64_t moment,
                    const uint8_t* flags,
                    uint32_t row_slots);
bool report_counts(Log& log, uint64_t launch, const uint64_t* counters);
bool report_hot(Log& log, uint64_t launch, const Slots& slots, const uint64_t* counts,
                uint32_t row_slots);
// The same of a launch that the CPU looked at.
bool report_tally(Log& log, uint64_t launch, const Tally& tally, const Index& index,
                  Analysis analysis);

}  // namespace accel_trace
