// The synthetic driver's own functions that the tool calls: memory and streams are those of driver.h, and
// the kernels that compare are their arithmetic on the host.
#include <cuda.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>

#include "../compare.h"
#include "machine.h"

using accel_trace::Found;
using accel_trace::Sums;

namespace {

synthetic::Stream* of(CUstream stream) { return reinterpret_cast<synthetic::Stream*>(stream); }

void compare(const char* now, const char* before, uint64_t first, uint64_t bytes, Sums* out) {
  for (uint64_t i = 0; 8 * i < bytes; ++i) {
    uint64_t words[2] = {};
    const size_t part = std::min<uint64_t>(8, bytes - 8 * i);
    memcpy(&words[0], now + 8 * i, part);
    memcpy(&words[1], before + 8 * i, part);
    accel_trace::add_word(*out, words[0], words[1], first + i, 8 * first + bytes);
  }
}

// Another thread frees 4 KiB at the address that the variable has, while a launch is compared. As the
// driver does, that waits for what is under way; what reads them from then on faults.
std::set<CUdeviceptr> freed;
void free_meanwhile(const char* variable, CUstream stream) {
  const char* const text = getenv(variable);
  const uint64_t at = text ? strtoull(text, nullptr, 0) : 0;
  if (!at || !freed.insert(at).second) return;
  of(stream)->run_all();
  std::thread([at] { synthetic::release(1, {at, 4096}, "device"); }).join();
  munmap(reinterpret_cast<void*>(at), 4096);
}

}  // namespace

void synthetic::free_taken(Context& context) {
  std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  auto& owners = machine().owners;
  for (auto one = owners.begin(); one != owners.end();) {
    if (one->second != &context) {
      ++one;
      continue;
    }
    machine().memory.erase(one->first);
    free(reinterpret_cast<void*>(one->first));
    one = owners.erase(one);
  }
}

void synthetic::destroy_meanwhile() {
  static const char* const number = getenv("SYNTHETIC_DESTROYS");
  static std::atomic<int> waits{0};  // the first wait is that of another copy
  if (!number || ++waits != 2) return;
  std::thread([] { destroy_context(atoi(number)); }).join();
}

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* file) {
  *module = reinterpret_cast<CUmodule>(1);
  return strstr(file, "compare.fatbin") ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  *function = reinterpret_cast<CUfunction>(strcmp(name, "at_equal") == 0 ? 3 : 2);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  if (getenv("SYNTHETIC_OLD")) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  const auto& sizes = synthetic::machine().parameters.at(kernel);
  if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = sizes[index];
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  *context = synthetic::current().handle();
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  if (getenv("SYNTHETIC_SMALL") && bytes > (4 << 20)) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = nullptr;
  cuMemAllocHost_v2(&memory, bytes);
  *out = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr memory) {
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  synthetic::machine().owners.erase(memory);
  free(reinterpret_cast<void*>(memory));
  return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t* free, size_t* all) {
  *free = *all = getenv("SYNTHETIC_FULL") ? 0 : size_t{1} << 30;
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** out, size_t bytes) {
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  *out = malloc(bytes);
  synthetic::machine().owners[reinterpret_cast<uint64_t>(*out)] = &synthetic::current();
  return CUDA_SUCCESS;
}
// Memory that the program took is the GPU's; the driver knows no other.
CUresult cuPointerGetAttribute(void* out, CUpointer_attribute what, CUdeviceptr address) {
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  const auto& programs = synthetic::machine().programs;
  auto found = programs.upper_bound(address);
  if (found == programs.begin() || address >= std::prev(found)->first + std::prev(found)->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto& [start, size] = *std::prev(found);
  if (what == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR) *static_cast<CUdeviceptr*>(out) = start;
  if (what == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *static_cast<size_t*>(out) = size;
  if (what == CU_POINTER_ATTRIBUTE_MEMORY_TYPE) *static_cast<CUmemorytype*>(out) = CU_MEMORYTYPE_DEVICE;
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  const char* const refused = getenv("SYNTHETIC_REFUSES");  // to read from an address
  if (freed.count(from) || (refused && strtoull(refused, nullptr, 0) == from)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  of(stream)->push([=] {
    memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  });
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  of(stream)->push([=] { memcpy(to, reinterpret_cast<const void*>(from), bytes); });
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
  free_meanwhile("SYNTHETIC_FREES_BEFORE", stream);
  of(stream)->push([=] {
    of(stream)->others_run();
    memset(reinterpret_cast<void*>(to), value, bytes);
  });
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned, unsigned,
                        unsigned, unsigned, CUstream stream, void** arguments, void**) {
  const bool equal = function == reinterpret_cast<CUfunction>(3);
  uint64_t words[5] = {};
  for (int i = 0; i < (equal ? 4 : 5); ++i) memcpy(&words[i], arguments[i], sizeof words[i]);
  of(stream)->push([=] {
    const auto *now = reinterpret_cast<const char*>(words[0]),
               *before = reinterpret_cast<const char*>(words[1]);
    if (!equal) return compare(now, before, words[2], words[3], reinterpret_cast<Sums*>(words[4]));
    Sums sums{};
    compare(now, before, 0, words[2], &sums);
    auto* const out = reinterpret_cast<Found*>(words[3]);  // the last block found all of it
    for (unsigned i = 0; i + 1 < blocks; ++i) out[i] = {};
    out[blocks - 1] = {sums.unchanged, sums.others};
  });
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  of(stream)->run_all();
  free_meanwhile("SYNTHETIC_FREES_BEHIND", stream);
  synthetic::destroy_meanwhile();
  return of(stream)->context->broken ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = getenv("SYNTHETIC_CAPTURES") ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                   CUgraph* graph, const CUgraphNode**, const CUgraphEdgeData**,
                                   size_t*) {
  std::lock_guard<std::recursive_mutex> guard(synthetic::machine().mutex);
  *graph = of(stream)->graph;
  *id = of(stream)->capture;
  *status = *graph ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }

}  // extern "C"
