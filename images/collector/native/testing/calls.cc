// The synthetic driver's functions that are reported by themselves (driver.h): tensor maps, launches
// with parameters, and graphs that are captured.
#include <sanitizer_driver_cbid.h>

#include <cstddef>
#include <cstring>

#include "../driver_arguments.h"
#include "machine.h"

namespace {

// Where an argument of a function lies when all of them are put into a structure, in their order.
template <class Result, class... Arguments>
constexpr size_t place_of(size_t number, Result (*)(Arguments...)) {
  const size_t sizes[] = {sizeof(Arguments)...}, aligned[] = {alignof(Arguments)...};
  size_t at = 0;
  for (size_t i = 0;; at += sizes[i++]) {
    at = (at + aligned[i] - 1) / aligned[i] * aligned[i];
    if (i == number) return at;
  }
}

// The tool's own declarations of arguments are as cuda.h declares the functions.
#define AT_SAME(structure, member, function, number)                                            \
  static_assert(offsetof(structure, member) ==                                                  \
                    place_of(number, static_cast<decltype(&function)>(nullptr)),                \
                #structure "::" #member)
using namespace accel_trace;
AT_SAME(LaunchArguments, parameters, cuLaunchKernel, 9);
AT_SAME(LaunchArguments, extra, cuLaunchKernel, 10);
AT_SAME(LaunchArguments, parameters, cuLaunchCooperativeKernel, 9);
AT_SAME(LaunchExArguments, parameters, cuLaunchKernelEx, 2);
AT_SAME(LaunchExArguments, extra, cuLaunchKernelEx, 3);
AT_SAME(MoveArguments, from, cuMemcpyHtoDAsync, 1);
AT_SAME(MoveArguments, count, cuMemcpyDtoH, 2);
AT_SAME(MoveArguments, stream, cuMemcpyAsync, 3);
AT_SAME(MoveArguments, count, cuMemsetD8, 2);
AT_SAME(MoveArguments, stream, cuMemsetD16Async, 3);
AT_SAME(MoveArguments, stream, cuMemsetD32Async, 3);
AT_SAME(LookupArguments, name, cuModuleGetFunction, 2);
AT_SAME(LookupArguments, name, cuLibraryGetKernel, 2);

}  // namespace

namespace synthetic {
namespace {

thread_local Context* used = nullptr;

CUgraph graph_of(int number) { return reinterpret_cast<CUgraph>(uint64_t{0x6000} + number); }

}  // namespace

void use(int stream) {
  std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  used = machine().streams.at(stream)->context;
}

Context& current() { return used ? *used : *machine().contexts.begin()->second; }

void call_driver(uint32_t id, const void* arguments, const char* name,
                 const std::function<void()>& work, CUresult result) {
  Sanitizer_CallbackData data{};
  data.functionParams = arguments;
  data.symbolName = name;
  Machine& m = machine();
  const auto report = [&](Sanitizer_ApiCallbackSite site) {
    data.callbackSite = site;
    data.functionReturnValue = site == SANITIZER_API_EXIT ? &result : nullptr;
    if (listens(SANITIZER_CB_DOMAIN_DRIVER_API, id)) {
      m.callback(m.userdata, SANITIZER_CB_DOMAIN_DRIVER_API, id, &data);
    }
  };
  report(SANITIZER_API_ENTER);
  work();
  report(SANITIZER_API_EXIT);
}

void make_map(int number, const std::vector<uint64_t>& image) { machine().maps[number] = image; }

void call_launch(int stream, const Kernel& kernel, const std::string& way,
                 const std::string& cubin) {
  const bool of_module = way.rfind("module", 0) == 0;
  const bool captured = way == "capture" || way == "module-capture";
  use(stream);
  std::vector<char> all;
  std::vector<std::vector<char>> each;
  std::vector<void*> pointers;
  for (const Argument& argument : kernel.arguments) {
    std::vector<char> bytes(argument.size);
    for (const auto& [at, map] : argument.maps) {
      const std::vector<uint64_t>& image = machine().maps.at(map);
      memcpy(bytes.data() + at, image.data(), image.size() * sizeof image[0]);
    }
    if (argument.pointer) memcpy(bytes.data(), &argument.pointer, sizeof argument.pointer);
    all.insert(all.end(), bytes.begin(), bytes.end());
    each.push_back(std::move(bytes));
  }
  for (auto& bytes : each) pointers.push_back(bytes.data());
  size_t size = all.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, all.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  const auto work = [&] {
    if (!cubin.empty()) load_module(kernel.module, 1, false, cubin);
    if (!captured) launch(stream, kernel, way == "fails");
  };
  if (way == "buffer") {
    LaunchArguments arguments{};
    arguments.extra = extra;
    return call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &arguments, kernel.name.c_str(),
                       work);
  }
  std::unique_lock<std::recursive_mutex> lock(machine().mutex);
  const std::string own = of_module ? kernel.name + "@" + std::to_string(kernel.module) : kernel.name;
  void* function = const_cast<char*>(machine().names.insert(own).first->data());
  const CUmodule module = of_module ? machine().modules.at(kernel.module)->handle() : nullptr;
  std::vector<size_t>& sizes = machine().parameters[function];
  sizes.clear();
  for (const Argument& argument : kernel.arguments) sizes.push_back(argument.size);
  lock.unlock();
  const LookupArguments lookup{&function, module, kernel.name.c_str()};
  call_driver(of_module ? SANITIZER_CBID_DRIVER_API_cuModuleGetFunction
                        : SANITIZER_CBID_DRIVER_API_cuLibraryGetKernel,
              &lookup, "h", [] {});
  CUlaunchConfig config{};
  LaunchExArguments arguments{};
  lock.lock();
  config.hStream = machine().streams.at(stream)->handle();
  lock.unlock();
  arguments.config = &config;
  arguments.function = static_cast<CUfunction>(function);
  arguments.parameters = pointers.data();
  // The name is that of no kernel, as with the driver of CUDA 13.0.
  if (way == "refused") {
    return call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, &arguments, "h", [] {},
                       CUDA_ERROR_INVALID_VALUE);
  }
  call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, &arguments, "h", work,
              way == "fails" ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

namespace {

Stream& stream_of(int number) {
  std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  return *machine().streams.at(number);
}

}  // namespace

void move(int stream, uint64_t to, uint64_t from, uint64_t size, int direction,
          const std::string& how) {
  const auto work = [=] {
    if (how == "refused") return;
    copy(stream, to, from, size, direction, true);
    if (how == "fails") return;
    Stream& own = stream_of(stream);
    own.push([=, &own] {
      own.others_run();
      memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), size);
    });
  };
  use(stream);
  if (how.empty()) return work();
  const MoveArguments arguments{to, from, size, stream_of(stream).handle()};
  const uint32_t ids[] = {0, 0, SANITIZER_CBID_DRIVER_API_cuMemcpyHtoDAsync_v2,
                          SANITIZER_CBID_DRIVER_API_cuMemcpyDtoHAsync_v2,
                          SANITIZER_CBID_DRIVER_API_cuMemcpyDtoDAsync_v2};
  call_driver(ids[direction], &arguments, nullptr, work,
              how == "called" ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

void fill(int stream, uint64_t address, uint64_t width, uint32_t element, uint32_t value,
          bool called) {
  const auto work = [=] {
    set(stream, address, width, 1, element, value);
    stream_of(stream).push([=] {
      auto* const bytes = reinterpret_cast<uint8_t*>(address);
      for (uint64_t i = 0; i < width * element; ++i) {
        bytes[i] = static_cast<uint8_t>(value >> 8 * (i % element));
      }
    });
  };
  use(stream);
  if (!called) return work();
  const MoveArguments arguments{address, value, width, stream_of(stream).handle()};
  const uint32_t ids[] = {0, SANITIZER_CBID_DRIVER_API_cuMemsetD8Async,
                          SANITIZER_CBID_DRIVER_API_cuMemsetD16Async, 0,
                          SANITIZER_CBID_DRIVER_API_cuMemsetD32Async};
  call_driver(ids[element], &arguments, nullptr, work);
}

void begin_capture(int number, int into) {
  const CUgraph graph = graph_of(into);
  const auto begin = [&] {
    std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    uint64_t capture = 0;
    for (const auto& [other, stream] : machine().streams) {
      if (stream->graph == graph) capture = stream->capture;
    }
    Stream& stream = *machine().streams.at(number);
    stream.capture = capture ? capture : ++machine().captures;
    stream.graph = graph;
  };
  CUstream stream = nullptr;
  call_driver(SANITIZER_CBID_DRIVER_API_cuStreamBeginCapture_v2, &stream, nullptr, begin);
}

void end_capture(int number) {
  std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  for (const auto& [other, stream] : machine().streams) {
    if (stream->graph == graph_of(number)) stream->graph = nullptr;
  }
}

void launch_graph(int stream, const std::vector<Kernel>& nodes, const std::string& how) {
  if (how != "fails") return launch_nodes(stream, nodes, how);
  call_driver(SANITIZER_CBID_DRIVER_API_cuGraphLaunch, nullptr, nullptr,
              [&] { launch_nodes(stream, nodes, how); }, CUDA_ERROR_OUT_OF_MEMORY);
}

void instantiate(int number) {
  Sanitizer_GraphExecData data{};
  data.graph = graph_of(number);
  data.graphExec = reinterpret_cast<CUgraphExec>(static_cast<uint64_t>(number));
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATING, &data);
  reach("instantiating");
  {
    std::lock_guard<std::recursive_mutex> guard(machine().mutex);
    bool& patched = machine().instantiated[number];
    patched = false;
    for (const auto& [index, module] : machine().modules) patched |= !module->active.empty();
  }
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED, &data);
  instance = number;
}

}  // namespace synthetic
