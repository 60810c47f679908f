// The parts of the Sanitizer's callback; each is called with the tool's mutex held.
#pragma once

#include "code.h"
#include "tool.h"
#include "values.h"
#include "workspace.h"

namespace accel_trace {

inline uint64_t number(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

void on_launch(Lock& lock, Sanitizer_CallbackId id, const void* data);
// What this thread began to launch, a kernel or a graph, and the driver refused.
void forget_begun();
void forget_graph();
void refused(uint64_t launch);
void module_loaded(Lock& lock, const Sanitizer_ResourceModuleData& data);
void module_unloads(Lock& lock, const Sanitizer_ResourceModuleData& data);
void patches_end(Lock& lock, CUcontext context);
void on_graph(Lock& lock, Sanitizer_CallbackId id, const void* data);

// Memory and copies, that nodes of graphs have too.
void allocated(const Sanitizer_ResourceMemoryData& data, uint32_t more_flags);
void freed(const Ending& ending, uint64_t stream);
void copied(const Sanitizer_MemcpyData& data);
void was_set(const Sanitizer_MemsetData& data);
void gpu_works();  // told to the recorder of the CPU's accesses

}  // namespace accel_trace
