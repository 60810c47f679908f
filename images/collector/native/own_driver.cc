#include "own_driver.h"

#include <dlfcn.h>

#include <string>

#include "tool.h"

namespace accel_trace {
namespace {

Driver find_driver() {
  Driver out;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto find = [&](const char* name) {
    return dlsym(library ? library : RTLD_DEFAULT, name);
  };
#define AT_FIND(name, symbol)                                          \
  out.name##_ = reinterpret_cast<decltype(out.name##_)>(find(#symbol)); \
  out.whole &= out.name##_ != nullptr;
  AT_DRIVER_FUNCTIONS(AT_FIND)
#undef AT_FIND
  out.cuKernelGetParamInfo_ =
      reinterpret_cast<decltype(out.cuKernelGetParamInfo_)>(find("cuKernelGetParamInfo"));
  return out;
}

}  // namespace

const Driver& driver() {
  static const Driver* const the = new Driver(find_driver());
  return *the;
}

bool runs(CUstream stream) {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver().cuStreamIsCapturing_(stream, &capturing) == CUDA_SUCCESS &&
         capturing == CU_STREAM_CAPTURE_STATUS_NONE;
}

bool on_host(uint64_t address) {
  CUmemorytype type{};
  int managed = 0;
  const auto ask = driver().cuPointerGetAttribute_;
  const CUresult result = ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  if (result == CUDA_ERROR_INVALID_VALUE) return true;  // the driver does not know it
  return result == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST &&
         ask(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS && !managed;
}

bool whole(uint64_t address, uint64_t size) {
  uint64_t start = 0, all = 0;
  const auto ask = driver().cuPointerGetAttribute_;
  return ask(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address) == CUDA_SUCCESS &&
         ask(&all, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) == CUDA_SUCCESS &&
         size <= all && address - start <= all - size;
}

CUresult comparing_kernel(const char* name, CUfunction& out) {
  const std::string& patches = tool->options.patches;
  const size_t slash = patches.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : patches.substr(0, slash + 1);
  CUmodule module = nullptr;
  const CUresult result = driver().cuModuleLoad_(&module, (folder + "compare.fatbin").c_str());
  return result == CUDA_SUCCESS ? driver().cuModuleGetFunction_(&out, module, name) : result;
}

}  // namespace accel_trace
