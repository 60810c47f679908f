// What the Compute Sanitizer costs each call of a program that nobody patches, by what of it is enabled.
// Usage: launch_costs CONFIGURATION [LIBRARY]; prints a JSON object, microseconds per call. See
// launch_costs.py, which runs all of them by turns. `native` does not load the library.
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sanitizer.h>
#include <sanitizer_driver_cbid.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kBatch = 500, kBatches = 15;

#define FUNCTIONS(F) \
  F(Subscribe) F(Unsubscribe) F(EnableDomain) F(EnableCallback) F(AddPatchesFromFile) \
  F(PatchInstructions) F(PatchModule) F(UnpatchModule)
#define MEMBER(name) decltype(&::sanitizer##name) name = nullptr;
struct {
  FUNCTIONS(MEMBER)
} api;

Sanitizer_SubscriberHandle handle = nullptr;
std::atomic<uint64_t> callbacks{0};
std::atomic<bool> toggles{false};
struct Module {
  CUcontext context;
  CUmodule module;
};
std::vector<Module> modules;

void fail(const char* what) {
  fprintf(stderr, "launch_costs: %s\n", what);
  exit(1);
}
void check(cudaError_t result) {
  if (result != cudaSuccess) fail(cudaGetErrorString(result));
}
void need(SanitizerResult result, const char* what) {
  if (result != SANITIZER_SUCCESS) fail(what);
}

void on_callback(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
  callbacks.fetch_add(1, std::memory_order_relaxed);
  if (domain == SANITIZER_CB_DOMAIN_RESOURCE && id == SANITIZER_CBID_RESOURCE_MODULE_LOADED) {
    const auto& module = *static_cast<const Sanitizer_ResourceModuleData*>(data);
    modules.push_back({module.context, module.module});
  }
  if (toggles && domain == SANITIZER_CB_DOMAIN_LAUNCH) {
    static std::atomic_flag busy = ATOMIC_FLAG_INIT;
    if (callbacks % 100 != 0 || busy.test_and_set()) return;
    static uint32_t on = 0;
    on = !on;
    api.EnableDomain(on, handle, SANITIZER_CB_DOMAIN_MEMCPY);
    api.EnableCallback(on, handle, SANITIZER_CB_DOMAIN_DRIVER_API,
                       SANITIZER_CBID_DRIVER_API_cuLaunchKernel);
    busy.clear();
  }
}

const std::map<std::string, Sanitizer_CallbackDomain> kDomains = {
    {"resource", SANITIZER_CB_DOMAIN_RESOURCE}, {"launch", SANITIZER_CB_DOMAIN_LAUNCH},
    {"synchronize", SANITIZER_CB_DOMAIN_SYNCHRONIZE}, {"memcpy", SANITIZER_CB_DOMAIN_MEMCPY},
    {"memset", SANITIZER_CB_DOMAIN_MEMSET}, {"graphs", SANITIZER_CB_DOMAIN_GRAPHS},
};
const Sanitizer_CallbackId kLaunches[] = {
    SANITIZER_CBID_DRIVER_API_cuLaunchKernel, SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
    SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx, SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
    SANITIZER_CBID_DRIVER_API_cuGraphLaunch, SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
};

void domain(Sanitizer_CallbackDomain which, uint32_t on) {
  need(api.EnableDomain(on, handle, which), "a domain cannot be switched");
}
void driver(uint32_t on) {
  for (const Sanitizer_CallbackId id : kLaunches) {
    need(api.EnableCallback(on, handle, SANITIZER_CB_DOMAIN_DRIVER_API, id), "a call of the driver");
  }
}
void all(uint32_t on) {
  for (const auto& [name, which] : kDomains) {
    if (which != SANITIZER_CB_DOMAIN_RESOURCE) domain(which, on);
  }
  driver(on);
}
void patch(bool on, const char* patches) {
  static std::map<CUcontext, bool> loaded;
  for (const Module& one : std::vector<Module>(modules)) {
    if (!on) {
      api.UnpatchModule(one.module);
      continue;
    }
    if (!loaded[one.context]) {
      need(api.AddPatchesFromFile(patches, one.context), "the patches do not load");
      loaded[one.context] = true;
    }
    api.PatchInstructions(SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, one.module, "at_empty_access");
    api.PatchModule(one.module);
  }
}

// Before CUDA starts, and when it has.
void configure(const std::string& what, bool late, const char* patches) {
  if (!late) {
    if (what == "subscribed") return;
    domain(SANITIZER_CB_DOMAIN_RESOURCE, 1);
    if (kDomains.count(what)) domain(kDomains.at(what), 1);
    if (what == "launch_begin") {
      need(api.EnableCallback(1, handle, SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN),
           "LAUNCH_BEGIN");
    }
    if (what == "driver") driver(1);
    if (what == "driver_whole") domain(SANITIZER_CB_DOMAIN_DRIVER_API, 1);
    if (what == "runtime_whole") domain(SANITIZER_CB_DOMAIN_RUNTIME_API, 1);
    if (what == "all" || what == "between" || what == "unsubscribed" || what == "residue") all(1);
    if (what == "toggle_inside") domain(SANITIZER_CB_DOMAIN_LAUNCH, 1);
    return;
  }
  if (what == "residue" || what == "between") {
    patch(true, patches);
    check(cudaDeviceSynchronize());
    patch(false, patches);
  }
  if (what == "between") all(0);  // as the tool does between samples
  if (what == "unsubscribed") need(api.Unsubscribe(handle), "unsubscribing");
  if (what == "toggle_inside") toggles = true;
}

__global__ void nothing(float* out, int n) {
  if (n > 1 << 30) out[threadIdx.x] = n;
}

double now() {
  using clock = std::chrono::steady_clock;
  return std::chrono::duration<double, std::micro>(clock::now().time_since_epoch()).count();
}

// The median over batches: of a call, and of a call with what the GPU does for it.
struct Cost {
  double call, done;
};
template <class Call>
Cost time_of(Call call, cudaStream_t stream, int many = kBatch) {
  std::vector<double> calls, dones;
  for (int batch = 0; batch < kBatches; ++batch) {
    check(cudaStreamSynchronize(stream));
    const double start = now();
    for (int i = 0; i < many; ++i) call();
    const double submitted = now();
    check(cudaStreamSynchronize(stream));
    calls.push_back((submitted - start) / many);
    dones.push_back((now() - start) / many);
  }
  std::sort(calls.begin(), calls.end());
  std::sort(dones.begin(), dones.end());
  return {calls[kBatches / 2], dones[kBatches / 2]};
}

}  // namespace

int main(int count, char** words) {
  const std::string what = count > 1 ? words[1] : "native";
  const char* const patches = count > 3 ? words[3] : "";
  if (what != "native") {
    void* const library = dlopen(count > 2 ? words[2] : "libsanitizer-public.so", RTLD_NOW);
    if (!library) fail(dlerror());
#define FIND(name) api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, "sanitizer" #name));
    FUNCTIONS(FIND)
    if (what != "loaded") {
      need(api.Subscribe(&handle, on_callback, nullptr), "subscribing");
      configure(what, false, patches);
    }
  }
  if (what == "toggle_inside") alarm(20);  // a hang ends the process, and says so by its signal
  float* memory;
  check(cudaMalloc(&memory, 1 << 20));
  cudaStream_t stream, other;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaEvent_t event;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const auto launch = [&](cudaStream_t on) { nothing<<<1, 32, 0, on>>>(memory, 1); };
  cudaGraph_t graph;
  cudaGraphExec_t instance;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 20; ++i) launch(stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&instance, graph, 0));
  launch(stream);
  check(cudaDeviceSynchronize());
  if (handle) configure(what, true, patches);

  const std::vector<std::pair<const char*, std::function<void()>>> calls = {
      {"launch", [&] { launch(stream); }},
      {"launch_ex", [&] {
         cudaLaunchConfig_t config{};
         config.gridDim = config.blockDim = dim3(1);
         config.stream = stream;
         check(cudaLaunchKernelEx(&config, nothing, memory, 1));
       }},
      {"memcpy", [&] { check(cudaMemcpyAsync(memory, memory + 64, 4, cudaMemcpyDeviceToDevice, stream)); }},
      {"memset", [&] { check(cudaMemsetAsync(memory, 0, 4, stream)); }},
      {"graph_of_20", [&] { check(cudaGraphLaunch(instance, stream)); }},
      {"event_record", [&] { check(cudaEventRecord(event, stream)); }},
      {"event_query", [&] { cudaEventQuery(event); }},
      {"is_capturing", [&] {
         cudaStreamCaptureStatus status;
         check(cudaStreamIsCapturing(stream, &status));
       }},
      {"get_device", [&] {
         int device;
         check(cudaGetDevice(&device));
       }},
      {"set_device", [&] { check(cudaSetDevice(0)); }},
      {"last_error", [&] { cudaGetLastError(); }},
      {"occupancy", [&] {
         int blocks;
         check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nothing, 128, 0));
       }},
      {"attributes", [&] {
         cudaFuncAttributes found;
         check(cudaFuncGetAttributes(&found, nothing));
       }},
      {"synchronize", [&] { check(cudaStreamSynchronize(stream)); }},
      {"malloc_free", [&] {
         void* some;
         check(cudaMalloc(&some, 4096));
         check(cudaFree(some));
       }},
  };
  printf("{\"configuration\": \"%s\"", what.c_str());
  for (const auto& [name, call] : calls) {
    const uint64_t before = callbacks;
    const int many = name == std::string("malloc_free") ? 10 : kBatch;
    const Cost cost = time_of(call, stream, many);
    printf(", \"%s\": [%.3f, %.3f, %.2f]", name, cost.call, cost.done,
           static_cast<double>(callbacks - before) / (many * kBatches));
  }
  // Two threads, each on a stream of its own, as a program's and its backward pass's.
  Cost first{}, second{};
  std::thread beside([&] {
    second = time_of([&] { launch(other); }, other);
  });
  first = time_of([&] { launch(stream); }, stream);
  beside.join();
  printf(", \"launch_of_two_threads\": [%.3f, %.3f, 0]", std::max(first.call, second.call),
         std::max(first.done, second.done));
  Cost fresh{};  // a thread alone that is not the one that started CUDA
  std::thread([&] { fresh = time_of([&] { launch(other); }, other); }).join();
  printf(", \"launch_of_another_thread\": [%.3f, %.3f, 0]}\n", fresh.call, fresh.done);
  fflush(stdout);
  _exit(0);
}
