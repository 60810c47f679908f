// The synthetic driver's functions that are reported by themselves (driver.h): tensor maps, launches
// with parameters, and graphs that are captured.
#include "machine.h"
// after sanitizer.h, which declares what it names
#include <generated_cuda_meta.h>

#include <cstring>

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

void call_driver(uint32_t id, const void* arguments, const char* name,
                 const std::function<void()>& work) {
  const CUresult result = CUDA_SUCCESS;
  Sanitizer_CallbackData data{};
  data.functionParams = arguments;
  data.symbolName = name;
  Machine& m = machine();
  const auto report = [&](Sanitizer_ApiCallbackSite site) {
    data.callbackSite = site;
    data.functionReturnValue = site == SANITIZER_API_EXIT ? &result : nullptr;
    if (m.callback && m.driver_calls[id]) {
      m.callback(m.userdata, SANITIZER_CB_DOMAIN_DRIVER_API, id, &data);
    }
  };
  report(SANITIZER_API_ENTER);
  work();
  report(SANITIZER_API_EXIT);
}

void encode_map(int number, uint32_t type, uint64_t address, const std::vector<uint64_t>& extents,
                const std::vector<uint64_t>& strides) {
  cuTensorMapEncodeTiled_params arguments{};
  arguments.tensorMap = map_at(number);
  arguments.tensorDataType = static_cast<CUtensorMapDataType>(type);
  arguments.tensorRank = static_cast<uint32_t>(extents.size());
  arguments.globalAddress = reinterpret_cast<void*>(address);
  arguments.globalDim = extents.data();
  arguments.globalStrides = strides.data();
  call_driver(SANITIZER_CBID_DRIVER_API_cuTensorMapEncodeTiled, &arguments, nullptr, [&] {
    uint64_t seed = type + address;
    for (const uint64_t word : extents) seed = seed * 31 + word;
    for (const uint64_t word : strides) seed = seed * 37 + word;
    machine().maps[number] = image_of(seed);
    arguments.tensorMap = map_at(number);
  });
}

void move_map(int number, uint64_t address) {
  cuTensorMapReplaceAddress_params arguments{map_at(number), reinterpret_cast<void*>(address)};
  call_driver(SANITIZER_CBID_DRIVER_API_cuTensorMapReplaceAddress, &arguments, nullptr, [&] {
    const auto image = image_of(address ^ static_cast<uint64_t>(number));
    memcpy(arguments.tensorMap, image.data(), kImage);
  });
}

void call_launch(int stream, const Kernel& kernel, bool buffer, bool captured) {
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
  if (buffer) {
    cuLaunchKernel_params arguments{};
    arguments.extra = extra;
    return call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &arguments, kernel.name.c_str(),
                       work);
  }
  cuLaunchKernelEx_params arguments{};
  arguments.kernelParams = pointers.data();
  call_driver(SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, &arguments, kernel.name.c_str(), work);
}

void end_capture(int number) {
  CUgraph graph = graph_of(number);
  cuStreamEndCapture_params arguments{nullptr, &graph};
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
