// The synthetic driver's functions that are reported by themselves (driver.h): tensor maps, launches
// with parameters, and graphs that are captured.
#include <sanitizer_driver_cbid.h>
#include <sanitizer_runtime_cbid.h>

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
AT_SAME(EncodeArguments, type, cuTensorMapEncodeTiled, 1);
AT_SAME(EncodeArguments, rank, cuTensorMapEncodeTiled, 2);
AT_SAME(EncodeArguments, address, cuTensorMapEncodeTiled, 3);
AT_SAME(EncodeArguments, extents, cuTensorMapEncodeTiled, 4);
AT_SAME(EncodeArguments, strides, cuTensorMapEncodeTiled, 5);
AT_SAME(EncodeArguments, strides, cuTensorMapEncodeIm2col, 5);
AT_SAME(ReplaceAddressArguments, address, cuTensorMapReplaceAddress, 1);
AT_SAME(LaunchArguments, parameters, cuLaunchKernel, 9);
AT_SAME(LaunchArguments, extra, cuLaunchKernel, 10);
AT_SAME(LaunchArguments, parameters, cuLaunchCooperativeKernel, 9);
AT_SAME(LaunchExArguments, parameters, cuLaunchKernelEx, 2);
AT_SAME(LaunchExArguments, extra, cuLaunchKernelEx, 3);
AT_SAME(EndCaptureArguments, graph, cuStreamEndCapture, 1);

}  // namespace

namespace synthetic {
namespace {

constexpr size_t kImage = 128;

// Whatever differs between two maps differs in their images, as in real ones; of no known layout.
std::vector<char> image_of(uint64_t seed) {
  std::vector<char> image(kImage);
  for (size_t i = 0; i < kImage; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    image[i] = static_cast<char>(seed >> 56);
  }
  return image;
}

CUtensorMap* map_at(int number) {
  std::vector<char>& image = machine().maps[number];
  image.resize(kImage);
  return reinterpret_cast<CUtensorMap*>(image.data());
}

CUgraph graph_of(int number) { return reinterpret_cast<CUgraph>(uint64_t{0x6000} + number); }

}  // namespace

void call_api(Sanitizer_CallbackDomain domain, uint32_t id, const void* arguments,
              const char* name, const std::function<void()>& work) {
  const CUresult result = CUDA_SUCCESS;
  Sanitizer_CallbackData data{};
  data.functionParams = arguments;
  data.symbolName = name;
  Machine& m = machine();
  const auto report = [&](Sanitizer_ApiCallbackSite site) {
    data.callbackSite = site;
    data.functionReturnValue = site == SANITIZER_API_EXIT ? &result : nullptr;
    const bool driver = domain == SANITIZER_CB_DOMAIN_DRIVER_API;
    if (m.callback && (driver ? m.driver_calls : m.runtime_calls)[id]) {
      m.callback(m.userdata, domain, id, &data);
    }
  };
  report(SANITIZER_API_ENTER);
  work();
  report(SANITIZER_API_EXIT);
}

void call_driver(uint32_t id, const void* arguments, const char* name,
                 const std::function<void()>& work) {
  call_api(SANITIZER_CB_DOMAIN_DRIVER_API, id, arguments, name, work);
}

void encode_map(int number, uint32_t type, uint64_t address, const std::vector<uint64_t>& extents,
                const std::vector<uint64_t>& strides) {
  EncodeArguments arguments{map_at(number), type, static_cast<uint32_t>(extents.size()),
                            reinterpret_cast<void*>(address), extents.data(), strides.data()};
  call_driver(SANITIZER_CBID_DRIVER_API_cuTensorMapEncodeTiled, &arguments, nullptr, [&] {
    uint64_t seed = type + address;
    for (const uint64_t word : extents) seed = seed * 31 + word;
    for (const uint64_t word : strides) seed = seed * 37 + word;
    machine().maps[number] = image_of(seed);
    arguments.map = map_at(number);
  });
}

void move_map(int number, uint64_t address) {
  ReplaceAddressArguments arguments{map_at(number), reinterpret_cast<void*>(address)};
  call_driver(SANITIZER_CBID_DRIVER_API_cuTensorMapReplaceAddress, &arguments, nullptr, [&] {
    const auto image = image_of(address ^ static_cast<uint64_t>(number));
    memcpy(arguments.map, image.data(), kImage);
  });
}

void call_launch(int stream, const Kernel& kernel, const std::string& way) {
  const bool captured = way == "capture";
  std::vector<char> all;
  std::vector<std::vector<char>> each;
  std::vector<void*> pointers;
  for (const Argument& argument : kernel.arguments) {
    std::vector<char> bytes(argument.size);
    for (const auto& [at, map] : argument.maps) {
      memcpy(bytes.data() + at, machine().maps.at(map).data(), kImage);
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
    if (!captured) launch(stream, kernel, false);
  };
  if (way == "runtime") {  // and no driver's function below it
    RuntimeLaunchArguments arguments{};
    arguments.parameters = pointers.data();
    return call_api(SANITIZER_CB_DOMAIN_RUNTIME_API, SANITIZER_CBID_RUNTIME_API_cudaLaunchKernel,
                    &arguments, kernel.name.c_str(), work);
  }
  if (way == "buffer") {
    LaunchArguments arguments{};
    arguments.extra = extra;
    return call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &arguments, kernel.name.c_str(),
                       work);
  }
  LaunchExArguments arguments{};
  arguments.parameters = pointers.data();
  call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, &arguments, kernel.name.c_str(), work);
}

void end_capture(int number) {
  CUgraph graph = graph_of(number);
  EndCaptureArguments arguments{nullptr, &graph};
  call_driver(SANITIZER_CBID_DRIVER_API_cuStreamEndCapture, &arguments, nullptr, [] {});
}

void instantiate(int number) {
  machine().instance = number;
  Sanitizer_GraphExecData data{};
  data.graph = graph_of(number);
  data.graphExec = reinterpret_cast<CUgraphExec>(static_cast<uint64_t>(number));
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATING, &data);
  bool& patched = machine().instantiated[number];
  patched = false;
  for (const auto& [index, module] : machine().modules) patched |= !module->active.empty();
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED, &data);
}

}  // namespace synthetic
