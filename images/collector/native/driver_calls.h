// Calls of the driver that are watched where kernels are analysed: those that launch kernels, whose
// parameters may hold tensor maps.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cubin.h"
#include "tensor_maps.h"
#include "tool.h"

namespace accel_trace {

// What kernels get by tensor map, and what else no patch sees of them.
struct Unpatched {
  std::unordered_map<CUmodule, CubinCode> code;
  std::unordered_set<std::string> texts;  // names of kernels, mangled, each once
  struct Named {
    const std::string* name;  // of them
    CUmodule module;          // null: a library's
  };
  std::unordered_map<const void*, Named> names;  // of functions, by their handles
  std::unordered_set<const void*> kernels;  // handles that are a library's, of no context
  struct Captured {
    std::string name;  // of the kernel, mangled
    std::vector<TensorMap> maps;
  };
  struct Graph {
    uint64_t capture = 0;  // its number: handles of graphs come back
    std::vector<Captured> kernels;
  };
  std::unordered_map<CUgraph, Graph> graphs;  // that are or were captured
  std::unordered_map<CUgraphExec, std::vector<Captured>> instances;
  uint32_t seen = 0;             // uses that patches do see
  uint64_t parameters_read = 0;  // of launches whose kernels copy by tensor map
  uint64_t maps_found = 0;       // among them

  const KernelCode* find(CUmodule module, const std::string& name) const;
  // In any module; null where kernels of that name get other parameters: nobody may read beyond them.
  const KernelCode* find(const std::string& name) const;
};

// Those calls. Of graphs: that they are launched, where nodes are analysed; that they begin to be
// captured, where iterations are sampled.
DriverCalls driver_calls(const Options& options);

// Called without the mutex.
void on_driver_call(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data);

// All that follow are called with the mutex.
void launch_reported(uint64_t launch);  // that of this thread's call, with its number
void graph_instantiated(const Sanitizer_GraphExecData& data);
void graph_instance_ends(const Sanitizer_GraphExecData& data);

// Writes where the arguments of `launch`, which this thread makes, point to.
void write_arguments(const Function& function, uint64_t launch);

// Writes what `launch` gets by tensor map, and what its code does that no patch sees. `instance` is
// the graph that the kernel is a node of, where it is one.
void write_unpatched(const Function& function, uint64_t launch, bool in_graph,
                     CUgraphExec instance);

}  // namespace accel_trace
