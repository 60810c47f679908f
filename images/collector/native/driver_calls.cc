#include "driver_calls.h"

#include "sampler.h"

#include "driver_arguments.h"

#include <algorithm>

namespace accel_trace {
namespace {

// The functions that encode a tensor map begin with the same arguments. Named by number: older
// headers lack the last.
constexpr Sanitizer_CallbackId kEncodings[] = {
    SANITIZER_CBID_DRIVER_API_cuTensorMapEncodeTiled,
    SANITIZER_CBID_DRIVER_API_cuTensorMapEncodeIm2col,
    781,  // cuTensorMapEncodeIm2colWide
};
constexpr Sanitizer_CallbackId kReplace = SANITIZER_CBID_DRIVER_API_cuTensorMapReplaceAddress;
constexpr Sanitizer_CallbackId kLaunches[] = {
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
};
// Of the runtime, where the driver's function below it is not reported.
constexpr Sanitizer_CallbackId kRuntimeLaunches[] = {
    SANITIZER_CBID_RUNTIME_API_cudaLaunchKernel,
    SANITIZER_CBID_RUNTIME_API_cudaLaunchKernel_ptsz,
    SANITIZER_CBID_RUNTIME_API_cudaLaunchCooperativeKernel,
    SANITIZER_CBID_RUNTIME_API_cudaLaunchCooperativeKernel_ptsz,
    505, 506,  // __cudaLaunchKernel, as nvcc 12.9 and later call it
    430, 431,  // cudaLaunchKernelExC
};
constexpr Sanitizer_CallbackId kRuntimeLaunchEx = 430;
constexpr Sanitizer_CallbackId kGraphLaunches[] = {
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch,
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
};
constexpr Sanitizer_CallbackId kCaptures[] = {
    SANITIZER_CBID_DRIVER_API_cuStreamEndCapture,
    SANITIZER_CBID_DRIVER_API_cuStreamEndCapture_ptsz,
};

template <size_t N>
bool is_in(Sanitizer_CallbackId id, const Sanitizer_CallbackId (&list)[N]) {
  return std::find(list, list + N, id) != list + N;
}

// What this thread is about to launch, between the beginning and the end of the driver's function.
struct Call {
  bool any = false;
  bool launched = false;  // the launch was reported, so it is not captured
  void** parameters = nullptr;
  void** extra = nullptr;
};
thread_local Call call;
thread_local Call runtime_call;  // the runtime's function around it
thread_local bool replaces = false;
thread_local TensorMap replaced;

Call parameters_of(Sanitizer_CallbackId id, const void* arguments) {
  Call out;
  out.any = true;
  if (id == kLaunches[0] || id == kLaunches[1]) {
    const auto& launch = *static_cast<const LaunchArguments*>(arguments);
    out.parameters = launch.parameters;
    out.extra = launch.extra;
  } else if (id == kLaunches[2] || id == kLaunches[3]) {
    const auto& launch = *static_cast<const LaunchExArguments*>(arguments);
    out.parameters = launch.parameters;
    out.extra = launch.extra;
  } else {
    out.parameters = static_cast<const LaunchArguments*>(arguments)->parameters;
  }
  return out;
}

// Of a map that nobody saw being made, the address alone is known: it is the first word, where the
// compiler's own code for `tensormap.replace` writes it. Taken for one: what lies as a map would in a
// parameter, and begins with an address of known memory.
void search_addresses(const void* parameter, size_t bytes, size_t step,
                      std::vector<TensorMap>& found) {
  for (size_t at = 0; parameter && at + kTensorMapBytes <= bytes; at += step) {
    TensorMap map;
    memcpy(&map.address, static_cast<const char*>(parameter) + at, sizeof map.address);
    if (!tool->pieces->holds(map.address)) continue;
    map.span = 1;
    map.type = kUnknownType;
    const bool known = std::any_of(found.begin(), found.end(), [&](const TensorMap& other) {
      return other.address == map.address;
    });
    if (!known) found.push_back(map);
  }
}

std::pair<const char*, size_t> buffer_of(void** extra) {
  std::pair<const char*, size_t> out{nullptr, 0};
  for (void** word = extra; *word != CU_LAUNCH_PARAM_END; word += 2) {
    if (*word == CU_LAUNCH_PARAM_BUFFER_POINTER) out.first = static_cast<const char*>(word[1]);
    if (*word == CU_LAUNCH_PARAM_BUFFER_SIZE) out.second = *static_cast<const size_t*>(word[1]);
  }
  return out;
}

Call runtime_parameters_of(Sanitizer_CallbackId id, const void* arguments) {
  Call out;
  out.any = true;
  out.parameters = id == kRuntimeLaunchEx || id == kRuntimeLaunchEx + 1
                       ? static_cast<const RuntimeLaunchExArguments*>(arguments)->parameters
                       : static_cast<const RuntimeLaunchArguments*>(arguments)->parameters;
  return out;
}

const Call& current_call() { return call.any ? call : runtime_call; }

// The parameters of the launch that this thread makes, as one buffer or one by one. A structure that
// holds a map is aligned as the map is.
std::vector<TensorMap> maps_in(const Call& launch, const KernelCode* code) {
  std::vector<TensorMap> found;
  if (!launch.any) return found;
  const auto each = [&](auto search) {
    if (launch.extra) {
      const auto [buffer, bytes] = buffer_of(launch.extra);
      search(buffer, bytes, sizeof(uint64_t));
    } else if (launch.parameters && code) {
      for (const KernelCode::Parameter& parameter : code->parameters) {
        search(launch.parameters[parameter.ordinal], parameter.size, size_t{64});
      }
    }
  };
  each([&](const void* bytes, size_t size, size_t step) {
    tool->unpatched->maps.search(bytes, size, step, found);
  });
  if (found.empty() && code && code->uses & kTensorMapUses && !launch.extra) {
    each([&](const void* bytes, size_t size, size_t step) {
      search_addresses(bytes, size, step, found);
    });
  }
  tool->unpatched->parameters_read += launch.extra || (launch.parameters && code);
  return found;
}

void encoded(const void* arguments) {
  const auto& made = *static_cast<const EncodeArguments*>(arguments);
  TensorMap map;
  if (made.map && describe(made.type, made.rank, reinterpret_cast<uint64_t>(made.address),
                           made.extents, made.strides, map)) {
    tool->unpatched->maps.add(made.map, map);
  }
}

void replace(bool over, const void* arguments) {
  const auto& change = *static_cast<const ReplaceAddressArguments*>(arguments);
  if (!change.map) return;
  if (over && replaces) {
    replaced.address = reinterpret_cast<uint64_t>(change.address);
    tool->unpatched->maps.add(change.map, replaced);
  } else if (!over) {
    const TensorMap* const map = tool->unpatched->maps.find(change.map);
    replaces = map != nullptr;
    if (map) replaced = *map;
  }
}

// A launch that the driver took and that was not reported went into a graph.
void captured(const char* name) {
  Unpatched& unpatched = *tool->unpatched;
  if (!name) return;
  std::vector<TensorMap> maps = maps_in(current_call(), unpatched.find(name));
  if (!maps.empty()) unpatched.capturing.push_back({name, std::move(maps)});
}

void capture_ended(const void* arguments) {
  Unpatched& unpatched = *tool->unpatched;
  const auto& end = *static_cast<const EndCaptureArguments*>(arguments);
  if (end.graph && *end.graph) unpatched.graphs[*end.graph] = std::move(unpatched.capturing);
  unpatched.capturing.clear();
}

bool succeeded(const Sanitizer_CallbackData& data) {
  return data.functionReturnValue &&
         *static_cast<const CUresult*>(data.functionReturnValue) == CUDA_SUCCESS;
}

void pass_gate(bool over) {
  if (!tool->sampler) return;
  if (over) return tool->sampler->gate.leave();
  {
    Lock lock(tool->mutex);
    tool->sampler->about_to_launch(lock);
  }
  tool->sampler->gate.enter();
}

// From the beginning of a function that launches to its end.
template <class Parameters>
void follow(Call& mine, Parameters parameters, Sanitizer_CallbackId id,
            const Sanitizer_CallbackData& data) {
  if (data.callbackSite != SANITIZER_API_EXIT) {
    mine = parameters(id, data.functionParams);
    return;
  }
  if (mine.any && !mine.launched && succeeded(data)) {
    Lock lock(tool->mutex);
    captured(data.symbolName);
    runtime_call.launched = true;  // once, not for both
  }
  mine = Call{};
}

void write_map(const TensorMap& map, uint64_t launch) {
  event::TensorMap event{};
  event.launch = launch;
  event.address = map.address;
  event.span = map.span;
  event.size = map.bytes;
  event.type = map.type;
  event.rank = map.rank;
  event.extent_0 = map.extent[0];
  event.extent_1 = map.extent[1];
  event.extent_2 = map.extent[2];
  event.extent_3 = map.extent[3];
  event.extent_4 = map.extent[4];
  event.stride_1 = map.stride[0];
  event.stride_2 = map.stride[1];
  event.stride_3 = map.stride[2];
  event.stride_4 = map.stride[3];
  tool->log.add(event);
}

}  // namespace

const KernelCode* Unpatched::find(CUmodule module, const std::string& name) const {
  const auto in = code.find(module);
  if (in == code.end()) return nullptr;
  const auto found = in->second.find(name);
  return found == in->second.end() ? nullptr : &found->second;
}

const KernelCode* Unpatched::find(const std::string& name) const {
  for (const auto& [module, kernels] : code) {
    const auto found = kernels.find(name);
    if (found != kernels.end()) return &found->second;
  }
  return nullptr;
}

void watch_driver_calls(Tool& self, Sanitizer_SubscriberHandle handle) {
  const auto watch = [&](Sanitizer_CallbackId id) {
    return self.api.EnableCallback(1, handle, SANITIZER_CB_DOMAIN_DRIVER_API, id);
  };
  bool all = true;
  for (const Sanitizer_CallbackId id : kLaunches) all &= watch(id) == SANITIZER_SUCCESS;
  for (const Sanitizer_CallbackId id : kCaptures) all &= watch(id) == SANITIZER_SUCCESS;
  all &= watch(kEncodings[0]) == SANITIZER_SUCCESS && watch(kEncodings[1]) == SANITIZER_SUCCESS;
  all &= watch(kReplace) == SANITIZER_SUCCESS;
  if (self.sampler) {
    for (const Sanitizer_CallbackId id : kGraphLaunches) all &= watch(id) == SANITIZER_SUCCESS;
  }
  for (const Sanitizer_CallbackId id : kRuntimeLaunches) {
    self.api.EnableCallback(1, handle, SANITIZER_CB_DOMAIN_RUNTIME_API, id);
  }
  watch(kEncodings[2]);  // of CUDA 12.8 and later
  if (!all) {
    self.note(2, "this Sanitizer does not report the calls that make tensor maps: what kernels copy "
                 "by them (TMA) is not known");
  }
}

void on_runtime_call(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  pass_gate(data.callbackSite == SANITIZER_API_EXIT);
  follow(runtime_call, runtime_parameters_of, id, data);
}

void on_driver_call(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  const bool over = data.callbackSite == SANITIZER_API_EXIT;
  const bool launches = is_in(id, kLaunches);
  if (launches || is_in(id, kGraphLaunches)) pass_gate(over);
  if (launches) return follow(call, parameters_of, id, data);
  if (over && !succeeded(data)) return;
  if (id == kReplace) {
    Lock lock(tool->mutex);
    replace(over, data.functionParams);
  } else if (over) {
    Lock lock(tool->mutex);
    if (is_in(id, kCaptures)) capture_ended(data.functionParams);
    if (is_in(id, kEncodings)) encoded(data.functionParams);
  }
}

void launch_reported() { call.launched = runtime_call.launched = true; }

void graph_instantiated(const Sanitizer_GraphExecData& data) {
  Unpatched& unpatched = *tool->unpatched;
  const auto captured = unpatched.graphs.find(data.graph);
  if (captured != unpatched.graphs.end()) unpatched.instances[data.graphExec] = captured->second;
}

void graph_instance_ends(const Sanitizer_GraphExecData& data) {
  tool->unpatched->instances.erase(data.graphExec);
}

void write_arguments(const Function& function, uint64_t launch) {
  const Call& made = current_call();
  if (!made.any) return;
  const auto tell = [&](const void* bytes, size_t size, uint32_t place) {
    for (size_t at = 0; bytes && at + sizeof(uint64_t) <= size; at += sizeof(uint64_t), ++place) {
      event::Argument event{};
      memcpy(&event.address, static_cast<const char*>(bytes) + at, sizeof event.address);
      if (!tool->pieces->holds(event.address)) continue;
      event.launch = launch;
      event.place = place;
      tool->log.add(event);
    }
  };
  if (made.extra) {
    const auto [bytes, size] = buffer_of(made.extra);
    tell(bytes, size, 0);
  } else if (made.parameters && function.code) {
    for (const KernelCode::Parameter& parameter : function.code->parameters) {
      tell(made.parameters[parameter.ordinal], parameter.size, parameter.ordinal << 16);
    }
  }
}

void write_unpatched(const Function& function, uint64_t launch, bool in_graph,
                     CUgraphExec instance) {
  Unpatched& unpatched = *tool->unpatched;
  if (in_graph) {
    const auto graph = unpatched.instances.find(instance);
    if (graph != unpatched.instances.end()) {
      for (const Unpatched::Captured& node : graph->second) {
        if (node.name != function.raw) continue;
        for (const TensorMap& map : node.maps) write_map(map, launch);
      }
    }
  } else {
    for (const TensorMap& map : maps_in(current_call(), function.code)) write_map(map, launch);
  }
  if (!function.code || !function.code->uses) return;
  event::Uses uses{};
  uses.launch = launch;
  uses.what = function.code->uses;
  tool->log.add(uses);
}

}  // namespace accel_trace
