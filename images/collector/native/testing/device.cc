// The synthetic driver's own functions that the tool calls: memory and streams are those of driver.h, and
// the kernel that compares is its arithmetic on the host.
#include <cuda.h>

#include <cstdlib>
#include <cstring>

#include "../compare.h"
#include "machine.h"

using accel_trace::Sums;

namespace {

synthetic::Stream* of(CUstream stream) { return reinterpret_cast<synthetic::Stream*>(stream); }

void compare(const char* now, const char* before, uint64_t bytes, Sums* out) {
  for (uint64_t i = 0; 8 * i < bytes; ++i) {
    uint64_t words[2] = {};
    const size_t part = std::min<uint64_t>(8, bytes - 8 * i);
    memcpy(&words[0], now + 8 * i, part);
    memcpy(&words[1], before + 8 * i, part);
    accel_trace::add_word(*out, words[0], words[1], i, bytes);
  }
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, const char* file) {
  *module = reinterpret_cast<CUmodule>(1);
  return strstr(file, "compare.fatbin") ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = reinterpret_cast<CUfunction>(2);
  return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  if (getenv("SYNTHETIC_OLD")) return CUDA_ERROR_NOT_SUPPORTED;
  const auto& sizes = synthetic::machine().parameters.at(kernel);
  if (index >= sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  *size = sizes[index];
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = reinterpret_cast<CUcontext>(3);
  return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  *out = reinterpret_cast<CUdeviceptr>(malloc(bytes));
  return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
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
  of(stream)->push([=] { memset(reinterpret_cast<void*>(to), value, bytes); });
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream stream, void** arguments, void**) {
  uint64_t words[4];
  for (int i = 0; i < 4; ++i) memcpy(&words[i], arguments[i], sizeof words[i]);
  of(stream)->push([=] {
    compare(reinterpret_cast<const char*>(words[0]), reinterpret_cast<const char*>(words[1]),
            words[2], reinterpret_cast<Sums*>(words[3]));
  });
  return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
  of(stream)->run_all();
  return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
  *status = getenv("SYNTHETIC_CAPTURES") ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode*) { return CUDA_SUCCESS; }

}  // extern "C"
