#include "driver_calls.h"

#include "callbacks.h"
#include "copies.h"
#include "own_driver.h"
#include "sampler.h"
#include "snapshots.h"

#include "driver_arguments.h"

#include <algorithm>

namespace accel_trace {
namespace {

constexpr Sanitizer_CallbackId kLaunches[] = {
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel,
    SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
};
constexpr Sanitizer_CallbackId kGraphLaunches[] = {
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch,
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
};
// They hand out kernels by name: a launch with attributes is reported without it.
constexpr Sanitizer_CallbackId kLookups[] = {
    SANITIZER_CBID_DRIVER_API_cuModuleGetFunction,
    SANITIZER_CBID_DRIVER_API_cuLibraryGetKernel,
};
constexpr Sanitizer_CallbackId kCapturesBegin[] = {
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2_ptsz,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph,
    SANITIZER_CBID_DRIVER_API_cuStreamBeginCaptureToGraph_ptsz,
};

template <size_t N>
bool is_in(Sanitizer_CallbackId id, const Sanitizer_CallbackId (&list)[N]) {
  return std::find(list, list + N, id) != list + N;
}

// What this thread is about to launch, between the beginning and the end of the driver's function.
struct Call {
  bool any = false;
  uint64_t change = 0;    // of what is watched: after another one its end may have been missed
  bool launched = false;  // the launch was reported, so it is not captured
  uint64_t launch = 0;    // its number
  CUstream stream = nullptr;
  const void* function = nullptr;
  const char* name = nullptr;  // where it is reported
  void** parameters = nullptr;
  void** extra = nullptr;
};
thread_local Call call;

// What this thread is launching now, if that is known.
Call& made_now() {
  if (call.any && call.change != tool->watching.changes()) call = Call{};
  return call;
}

Call call_of(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  Call out;
  out.any = true;
  out.change = tool->watching.changes();
  if (id == kLaunches[2] || id == kLaunches[3]) {
    const auto& launch = *static_cast<const LaunchExArguments*>(data.functionParams);
    if (launch.config) out.stream = static_cast<const CUlaunchConfig*>(launch.config)->hStream;
    if (!out.stream && id == kLaunches[3]) out.stream = CU_STREAM_PER_THREAD;
    out.function = launch.function;
    out.parameters = launch.parameters;
    out.extra = launch.extra;
    return out;
  }
  const auto& launch = *static_cast<const LaunchArguments*>(data.functionParams);
  out.stream = launch.stream;
  if (!out.stream && (id == kLaunches[1] || id == kLaunches[5])) out.stream = CU_STREAM_PER_THREAD;
  out.function = launch.function;
  out.name = data.symbolName;
  out.parameters = launch.parameters;
  if (id == kLaunches[0] || id == kLaunches[1]) out.extra = launch.extra;
  return out;
}

std::pair<const char*, size_t> buffer_of(void** extra) {
  std::pair<const char*, size_t> out{nullptr, 0};
  for (void** word = extra; *word != CU_LAUNCH_PARAM_END; word += 2) {
    if (*word == CU_LAUNCH_PARAM_BUFFER_POINTER) out.first = static_cast<const char*>(word[1]);
    if (*word == CU_LAUNCH_PARAM_BUFFER_SIZE) out.second = *static_cast<const size_t*>(word[1]);
  }
  return out;
}

// Bytes that can be a tensor map, of known memory from the first element to the last.
void find_maps(const void* parameter, size_t bytes, std::vector<TensorMap>& found) {
  for (size_t at = 0; parameter && at + kTensorMapBytes <= bytes; at += kTensorMapStep) {
    TensorMap map;
    if (read_tensor_map(static_cast<const char*>(parameter) + at, map) &&
        tool->pieces->holds(map.address) && tool->pieces->holds(map.address + map.span - 1)) {
      if (std::find(found.begin(), found.end(), map) == found.end()) found.push_back(map);
      at += kTensorMapBytes - kTensorMapStep;
    }
  }
}

// Among the parameters of the launch that this thread makes, as one buffer or one by one.
std::vector<TensorMap> maps_in(const Call& launch, const KernelCode* code) {
  std::vector<TensorMap> found;
  if (!launch.any || !code || !(code->uses & kTensorMapUses)) return found;
  if (launch.extra) {
    const auto [buffer, bytes] = buffer_of(launch.extra);
    find_maps(buffer, bytes, found);
  } else if (launch.parameters) {
    for (const KernelCode::Parameter& parameter : code->parameters) {
      find_maps(launch.parameters[parameter.ordinal], parameter.size, found);
    }
  }
  ++tool->unpatched->parameters_read;
  tool->unpatched->maps_found += found.size();
  return found;
}

// The mangled name of the kernel, where it is known: the same string for the same name.
const std::string& name_of(const Call& launch) {
  Unpatched& unpatched = *tool->unpatched;
  const auto known = unpatched.names.find(launch.function);
  if (known != unpatched.names.end()) return *known->second.name;
  return *unpatched.texts.emplace(launch.name ? launch.name : "").first;
}

// Of its own module, where that is known.
const KernelCode* code_of(const Call& launch, const std::string& name) {
  const Unpatched& unpatched = *tool->unpatched;
  const auto known = unpatched.names.find(launch.function);
  const CUmodule module = known == unpatched.names.end() ? nullptr : known->second.module;
  return tool->modules.count(module) ? unpatched.find(module, name) : unpatched.find(name);
}

// A launch that the driver took and that was not reported went into the graph that is captured in its
// stream. Several can be at once, and several threads can launch into one.
void captured(const Call& launch) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t number = 0;
  CUgraph graph = nullptr;
  const auto ask = driver().cuStreamGetCaptureInfo_;
  if (!ask || ask(launch.stream, &status, &number, &graph, nullptr, nullptr, nullptr) !=
                  CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    return;
  }
  Lock lock(tool->mutex);
  Unpatched::Graph& into = tool->unpatched->graphs[graph];
  if (into.capture != number) into = {number, {}};
  const std::string& name = name_of(launch);
  std::vector<TensorMap> maps = maps_in(launch, code_of(launch, name));
  if (!maps.empty()) into.kernels.push_back({name, std::move(maps)});
}

void looked_up(const void* arguments, bool in_library) {
  const auto& lookup = *static_cast<const LookupArguments*>(arguments);
  if (!lookup.found || !lookup.name) return;
  Unpatched& unpatched = *tool->unpatched;
  unpatched.names[*lookup.found] = {&*unpatched.texts.emplace(lookup.name).first,
                                    in_library ? nullptr : static_cast<CUmodule>(lookup.in)};
  unpatched.kernels.erase(*lookup.found);  // a handle may come back
  if (in_library) unpatched.kernels.insert(*lookup.found);
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

void look_at(const Call& launch) {
  Lock lock(tool->mutex);
  const std::string& name = name_of(launch);
  if (!tool->snapshots->wants(name)) return;
  std::vector<KernelCode::Parameter> parameters;
  bool known = false;
  if (tool->unpatched->kernels.count(launch.function)) {
    // By the driver: a library's kernel is loaded inside of its first launch, and known no sooner.
    lock.unlock();
    known = tool->snapshots->parameters_of(launch.function, parameters);
    lock.lock();
  }
  if (const KernelCode* const code = known ? nullptr : code_of(launch, name)) {
    parameters = code->parameters;
    known = true;
  }
  if (!parameters.empty() && !launch.parameters) known = false;  // they come as one buffer
  if (!known) return tool->snapshots->not_known();
  std::vector<Target> targets = targets_of(name, parameters, launch.parameters);
  lock.unlock();
  tool->snapshots->before(launch.stream, std::move(targets));
}

// From the beginning of a function that launches to its end.
void follow(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  if (data.callbackSite != SANITIZER_API_EXIT) {
    call = call_of(id, data);
    if (tool->snapshots) look_at(call);
    return;
  }
  const Call& ended = made_now();
  if (tool->snapshots) tool->snapshots->after(ended.launched && succeeded(data), ended.launch);
  if (!succeeded(data)) {
    Lock lock(tool->mutex);
    // What it has taken is for the next one, be it another thread's.
    if (tool->options.ends()) forget_begun();
    else if (ended.launched) refused(ended.launch);
  } else if (ended.any && !ended.launched) {
    captured(ended);
  }
  call = Call{};
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
  const KernelCode* out = nullptr;
  for (const auto& [module, kernels] : code) {
    const auto found = kernels.find(name);
    if (found == kernels.end()) continue;
    if (out && !(out->parameters == found->second.parameters)) return nullptr;
    out = &found->second;
  }
  return out;
}

DriverCalls driver_calls(const Options& options) {
  DriverCalls calls;
  calls.seldom.assign(std::begin(kLookups), std::end(kLookups));
  calls.launching.assign(std::begin(kLaunches), std::end(kLaunches));
  if (!options.analyses()) return calls;
  calls.launching.insert(calls.launching.end(), std::begin(kGraphLaunches),
                         std::end(kGraphLaunches));
  if (options.every) {
    calls.seldom.insert(calls.seldom.end(), std::begin(kCapturesBegin), std::end(kCapturesBegin));
  }
  return calls;
}

void on_driver_call(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  const bool over = data.callbackSite == SANITIZER_API_EXIT;
  const bool launches = is_in(id, kLaunches);
  if (launches || is_in(id, kGraphLaunches)) pass_gate(over);
  if (launches) return follow(id, data);
  if (is_in(id, kGraphLaunches)) {
    if (!over || succeeded(data)) return;
    Lock lock(tool->mutex);
    return forget_graph();
  }
  if (tool->copies && Copies::follows(id)) {
    return over ? tool->copies->end(succeeded(data)) : tool->copies->begin(id, data);
  }
  const bool captures = is_in(id, kCapturesBegin);
  if (captures == over || (over && !succeeded(data))) return;
  Lock lock(tool->mutex);
  if (captures && tool->sampler) tool->sampler->capture_begins(lock);
  if (is_in(id, kLookups)) looked_up(data.functionParams, id == kLookups[1]);
}

void launch_reported(uint64_t launch) {
  Call& made = made_now();
  made.launched = true;
  made.launch = launch;
}

void graph_instantiated(const Sanitizer_GraphExecData& data) {
  Unpatched& unpatched = *tool->unpatched;
  const auto captured = unpatched.graphs.find(data.graph);
  if (captured == unpatched.graphs.end()) return;
  unpatched.instances[data.graphExec] = captured->second.kernels;
}

void graph_instance_ends(const Sanitizer_GraphExecData& data) {
  tool->unpatched->instances.erase(data.graphExec);
}

void write_arguments(const Function& function, uint64_t launch) {
  const Call& made = made_now();
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
  const uint32_t all = function.code ? function.code->uses : 0, what = all & ~unpatched.seen;
  if (all & unpatched.seen) {
    tool->note_once("tensor loads", 1,
                    "what kernels copy in by tensor map (TMA) is seen by patches: each such copy is "
                    "taken to touch the tensor at the address of its map");
  }
  if (what == 0) return;
  const bool maps = what & kTensorMapUses;
  if (maps && in_graph) {
    const auto graph = unpatched.instances.find(instance);
    if (graph != unpatched.instances.end()) {
      for (const Unpatched::Captured& node : graph->second) {
        if (node.name != function.raw) continue;
        for (const TensorMap& map : node.maps) write_map(map, launch);
      }
    }
  } else if (maps) {
    for (const TensorMap& map : maps_in(made_now(), function.code)) write_map(map, launch);
  }
  event::Uses uses{};
  uses.launch = launch;
  uses.what = what;
  tool->log.add(uses);
}

}  // namespace accel_trace
