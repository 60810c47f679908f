// The driver's functions that the tool calls itself, from callbacks of the driver's own functions, where
// that is allowed. They are found when they are first needed: the program uses the driver by then.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace accel_trace {

#define AT_DRIVER_FUNCTIONS(F)                  \
  F(cuModuleLoad, cuModuleLoad)                 \
  F(cuModuleGetFunction, cuModuleGetFunction)   \
  F(cuCtxGetCurrent, cuCtxGetCurrent)           \
  F(cuMemAlloc, cuMemAlloc_v2)                  \
  F(cuMemFree, cuMemFree_v2)                    \
  F(cuMemGetInfo, cuMemGetInfo_v2)              \
  F(cuMemAllocHost, cuMemAllocHost_v2)          \
  F(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)    \
  F(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)    \
  F(cuMemsetD8Async, cuMemsetD8Async)           \
  F(cuPointerGetAttribute, cuPointerGetAttribute) \
  F(cuLaunchKernel, cuLaunchKernel)             \
  F(cuStreamSynchronize, cuStreamSynchronize)   \
  F(cuStreamIsCapturing, cuStreamIsCapturing)   \
  F(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3) \
  F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode)

struct Driver {
  decltype(&::cuKernelGetParamInfo) cuKernelGetParamInfo_ = nullptr;  // not in old drivers
#define AT_MEMBER(name, symbol) decltype(&::symbol) name##_ = nullptr;
  AT_DRIVER_FUNCTIONS(AT_MEMBER)
#undef AT_MEMBER
  bool whole = true;
};
const Driver& driver();

// What another thread captures into a graph is not disturbed by what we do.
class Relaxed {
 public:
  Relaxed() { driver().cuThreadExchangeStreamCaptureMode_(&mode_); }
  ~Relaxed() { driver().cuThreadExchangeStreamCaptureMode_(&mode_); }

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Whether what is put into the stream now runs, and goes into no graph.
bool runs(CUstream stream);

bool on_host(uint64_t address);  // not the GPU's memory, whoever took it

// Whether an allocation holds all of it: the driver refuses to copy more, our kernels would fail.
bool whole(uint64_t address, uint64_t size);

// A kernel of compare.cu, in the context that is current.
CUresult comparing_kernel(const char* name, CUfunction& out);

}  // namespace accel_trace
