// The synthetic Sanitizer: the functions of the real one that the tool uses, on the host's memory.
// Its own allocations and waits are reported back as callbacks: a tool must not take them for the
// program's.
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "machine.h"

using synthetic::machine;
using Guard = std::lock_guard<std::recursive_mutex>;

namespace {

synthetic::Stream* stream_of(Sanitizer_StreamHandle handle) {
  return reinterpret_cast<synthetic::Stream*>(handle);
}

bool unusable(Sanitizer_StreamHandle handle) {
  return !handle || stream_of(handle)->gone || stream_of(handle)->context->broken;
}

bool within(const std::map<uint64_t, size_t>& memory, const void* address, size_t size) {
  Guard guard(machine().mutex);
  const uint64_t begin = reinterpret_cast<uint64_t>(address);
  auto found = memory.upper_bound(begin);
  if (found == memory.begin()) return false;
  --found;
  return begin + size <= found->first + found->second;
}

bool inside(const void* address, size_t size) { return within(machine().memory, address, size); }

void report(uint32_t id, void* address, size_t size) {
  ++machine().own_callbacks;
  Sanitizer_ResourceMemoryData data{};
  data.address = reinterpret_cast<uint64_t>(address);
  data.size = size;
  synthetic::call(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

SanitizerResult take(CUcontext context, void** out, size_t size, uint32_t id) {
  const auto guard = synthetic::driver_lock_to_wait();
  auto* in = reinterpret_cast<synthetic::Context*>(context);
  if (!in || in->broken) return SANITIZER_ERROR_INVALID_CONTEXT;
  *out = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(*out, 0xab, size);  // nobody may rely on zeros
  {
    Guard guard(machine().mutex);
    machine().memory[reinterpret_cast<uint64_t>(*out)] = size;
    machine().owners[reinterpret_cast<uint64_t>(*out)] = in;
  }
  report(id, *out, size);
  return SANITIZER_SUCCESS;
}

SanitizerResult give(void* address, uint32_t id) {
  const auto guard = synthetic::driver_lock_to_wait();
  // As a real free does: work in flight ends first.
  {
    Guard guard(machine().mutex);
    if (machine().memory.erase(reinterpret_cast<uint64_t>(address)) == 0) {
      return SANITIZER_ERROR_INVALID_PARAMETER;
    }
    machine().owners.erase(reinterpret_cast<uint64_t>(address));
  }
  for (synthetic::Stream* stream : synthetic::streams_of(nullptr)) stream->run_all();
  report(id, address, 0);
  free(address);
  return SANITIZER_SUCCESS;
}

}  // namespace

// Another thread instantiates the graph that SYNTHETIC_INSTANTIATES names while less is watched.
void instantiate_meanwhile(Sanitizer_CallbackDomain domain) {
  static const char* const number = getenv("SYNTHETIC_INSTANTIATES");
  static std::atomic<bool> done{false};
  if (!number || domain != SANITIZER_CB_DOMAIN_GRAPHS || done.exchange(true)) return;
  machine().beside = std::thread([] { synthetic::instantiate(atoi(number)); });
  usleep(50'000);  // it may wait for who calls here
}

extern "C" {

SanitizerResult sanitizerSubscribe(Sanitizer_SubscriberHandle* handle,
                                   Sanitizer_CallbackFunc callback, void* userdata) {
  if (getenv("SYNTHETIC_NO_DRIVER")) return SANITIZER_ERROR_NOT_INITIALIZED;
  if (getenv("SYNTHETIC_TAKEN") || machine().callback) return SANITIZER_ERROR_MAX_LIMIT_REACHED;
  machine().callback = callback;
  machine().userdata = userdata;
  *handle = reinterpret_cast<Sanitizer_SubscriberHandle>(&machine());
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerEnableDomain(uint32_t enable, Sanitizer_SubscriberHandle,
                                      Sanitizer_CallbackDomain domain) {
  {
    Guard guard(machine().mutex);
    machine().enabled[domain] = enable != 0;
    auto& callbacks = machine().callbacks;
    for (auto one = callbacks.begin(); one != callbacks.end();) {
      one = one->first.first == domain ? callbacks.erase(one) : std::next(one);
    }
  }
  if (!enable) instantiate_meanwhile(domain);
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerEnableCallback(uint32_t enable, Sanitizer_SubscriberHandle,
                                        Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id) {
  const char* const lacks = getenv("SYNTHETIC_LACKS");  // how many of the driver's functions
  static int lacked = 0;
  if (lacks && domain == SANITIZER_CB_DOMAIN_DRIVER_API && lacked < atoi(lacks)) {
    ++lacked;
    return SANITIZER_ERROR_INVALID_PARAMETER;
  }
  {
    Guard guard(machine().mutex);
    machine().callbacks[{domain, id}] = enable != 0;
  }
  if (!enable) instantiate_meanwhile(domain);
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerAddPatchesFromFile(const char* file, CUcontext context) {
  const auto guard = synthetic::driver_lock();
  if (access(file, R_OK) != 0) return SANITIZER_ERROR_INVALID_PARAMETER;
  reinterpret_cast<synthetic::Context*>(context)->patches = true;
  Sanitizer_ResourceModuleData data{};  // the patches' own module
  data.context = context;
  ++machine().own_callbacks;
  synthetic::call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, &data);
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerPatchInstructions(const Sanitizer_InstructionId id, CUmodule handle,
                                           const char* name) {
  auto* module = reinterpret_cast<synthetic::Module*>(handle);
  if (!module->context->patches) return SANITIZER_ERROR_INVALID_PARAMETER;
  void* patch = dlsym(RTLD_DEFAULT, name);
  if (!patch) return SANITIZER_ERROR_INVALID_PARAMETER;
  module->asked[id] = patch;
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerPatchModule(CUmodule handle) {
  const auto guard = synthetic::driver_lock();
  auto* module = reinterpret_cast<synthetic::Module*>(handle);
  if (module->refuses) return SANITIZER_ERROR_NOT_SUPPORTED;
  synthetic::reach("patch");
  module->context->patching = std::this_thread::get_id();
  if (module->gone) module->context->broken = true;  // memory that may be anything else
  if (getenv("SYNTHETIC_SLOW_PATCHES")) usleep(3000);
  if (const char* ms = getenv("SYNTHETIC_PATCHES_TAKE")) synthetic::skip(strtoull(ms, nullptr, 10));
  // As the real one: what is patched twice counts nothing from then on.
  module->active = module->active.empty() ? module->asked : synthetic::Patches();
  module->context->patching = std::thread::id();
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerUnpatchModule(CUmodule handle) {
  const auto guard = synthetic::driver_lock();
  auto* module = reinterpret_cast<synthetic::Module*>(handle);
  synthetic::reach("unpatch");
  if (module->gone) module->context->broken = true;
  if (module->active.empty()) return SANITIZER_ERROR_INVALID_OPERATION;
  module->active.clear();
  module->asked.clear();  // forgotten, as the real one does
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerSetLaunchCallbackData(Sanitizer_LaunchHandle handle, CUfunction,
                                               Sanitizer_StreamHandle, const void* userdata) {
  const auto guard = synthetic::driver_lock();
  auto* launch = reinterpret_cast<synthetic::Launch*>(handle);
  if (launch->refuses_data) return SANITIZER_ERROR_NOT_SUPPORTED;
  launch->userdata = const_cast<void*>(userdata);
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerAlloc(CUcontext context, void** out, size_t size) {
  return take(context, out, size, SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC);
}
SanitizerResult sanitizerAllocHost(CUcontext context, void** out, size_t size) {
  return take(context, out, size, SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC);
}
SanitizerResult sanitizerFree(CUcontext, void* address) {
  return give(address, SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE);
}
SanitizerResult sanitizerFreeHost(CUcontext, void* address) {
  return give(address, SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE);
}

SanitizerResult sanitizerMemcpyHostToDeviceAsync(void* to, void* from, size_t size,
                                                 Sanitizer_StreamHandle handle) {
  const auto guard = synthetic::driver_lock();
  if (unusable(handle)) return SANITIZER_ERROR_UNKNOWN;
  if (!inside(to, size)) return SANITIZER_ERROR_ADDRESS_NOT_IN_DEVICE_MEMORY;
  const char* begin = static_cast<const char*>(from);
  stream_of(handle)->push([to, staged = std::vector<char>(begin, begin + size)] {
    memcpy(to, staged.data(), staged.size());
  });
  return SANITIZER_SUCCESS;
}

// As the copy engine does it: while kernels of other streams count on.
__attribute__((no_sanitize("thread"))) static void engine_copy(void* to, const void* from,
                                                               size_t size) {
  volatile char* out = static_cast<volatile char*>(to);
  const volatile char* in = static_cast<const volatile char*>(from);
  for (size_t i = 0; i < size; ++i) out[i] = in[i];
}

SanitizerResult sanitizerMemcpyDeviceToHost(void* to, void* from, size_t size,
                                            Sanitizer_StreamHandle handle) {
  const auto guard = synthetic::driver_lock_to_wait();
  if (unusable(handle)) return SANITIZER_ERROR_UNKNOWN;
  if (!inside(from, size) && !within(machine().programs, from, size)) {
    return SANITIZER_ERROR_ADDRESS_NOT_IN_DEVICE_MEMORY;
  }
  stream_of(handle)->run_all();
  engine_copy(to, from, size);
  synthetic::destroy_meanwhile();
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerMemset(void* address, int value, size_t size,
                                Sanitizer_StreamHandle handle) {
  if (unusable(handle)) return SANITIZER_ERROR_UNKNOWN;
  if (!inside(address, size)) return SANITIZER_ERROR_ADDRESS_NOT_IN_DEVICE_MEMORY;
  stream_of(handle)->push([address, value, size] { memset(address, value, size); });
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerStreamSynchronize(Sanitizer_StreamHandle handle) {
  const auto guard = synthetic::driver_lock_to_wait();
  if (unusable(handle)) return SANITIZER_ERROR_UNKNOWN;
  stream_of(handle)->run_all();
  synthetic::reach("wait");
  ++machine().own_callbacks;
  Sanitizer_SynchronizeData data{};
  data.hStream = handle;
  synthetic::call(SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED,
                  &data);
  return SANITIZER_SUCCESS;
}

// Every function lies where the environment says; else nowhere.
SanitizerResult sanitizerGetFunctionPcAndSize(CUmodule, const char*, uint64_t* pc, uint64_t* size) {
  const char* const place = getenv("SYNTHETIC_PC");
  if (!place) return SANITIZER_ERROR_INVALID_PARAMETER;
  *pc = strtoull(place, nullptr, 0);
  *size = 4096;
  return SANITIZER_SUCCESS;
}

SanitizerResult sanitizerGetResultString(SanitizerResult result, const char** text) {
  *text = result == SANITIZER_ERROR_NOT_SUPPORTED ? "not supported" : "a synthetic error";
  return SANITIZER_SUCCESS;
}

}  // extern "C"
