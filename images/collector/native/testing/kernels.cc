// Kernels of the synthetic driver: for each access, a call of the patch that the module has for it.
#include <cstring>

#include "driver.h"
#include "machine.h"
#include "warp.h"

namespace synthetic {
namespace {

void* patch_of(const Patches& patches, Sanitizer_InstructionId id) {
  const auto found = patches.find(id);
  return found == patches.end() ? nullptr : found->second;
}

using Access = SanitizerPatchResult (*)(void*, uint64_t, void*, uint32_t, uint32_t, const void*);
#ifdef AT_ASYNC_ZERO_FILL
using Async = SanitizerPatchResult (*)(void*, uint64_t, void*, uint32_t, uint32_t, uint32_t);
#else
using Async = SanitizerPatchResult (*)(void*, uint64_t, void*, uint32_t, uint32_t);
#endif
using Load =
    SanitizerPatchResult (*)(void*, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, uint32_t);
#ifdef AT_BULK_BYTE_MASK
using Store = SanitizerPatchResult (*)(void*, uint64_t, uint64_t, uint32_t, uint32_t, uint32_t);
#else
using Store = SanitizerPatchResult (*)(void*, uint64_t, uint64_t, uint32_t, uint32_t);
#endif
using Reduce = SanitizerPatchResult (*)(void*, uint64_t, uint64_t, uint32_t, uint32_t);
using Tensor = SanitizerPatchResult (*)(void*, uint64_t);
// A patch that takes fewer arguments does not look at the others.
using TensorLoad =
    SanitizerPatchResult (*)(void*, uint64_t, uint64_t, uint32_t, uint32_t, int32_t, int32_t, int32_t,
                             int32_t, int32_t, uint32_t, uint32_t, uint32_t, uint32_t);

// Where the image of a map lies, on the host.
uint64_t image_of(uint64_t map) {
  std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  const auto found = machine().maps.find(static_cast<int>(map));
  return found == machine().maps.end() ? 0 : reinterpret_cast<uint64_t>(found->second.data());
}

void access(void* patch, void* userdata, const Accesses& run, uint64_t address) {
  // Reads may come with a mask and writes without data: neither says what the access is.
  static const uint32_t mask = 0xf;
  const void* data = (run.flags & SANITIZER_MEMORY_DEVICE_FLAG_READ) ? &mask : nullptr;
  const uint64_t stored[2] = {run.flags >> 16, 0};  // kStores: what is stored, in the upper half
  if (run.flags & kStores) data = stored;
  reinterpret_cast<Access>(patch)(userdata, 0x1234, reinterpret_cast<void*>(address), run.size,
                                  run.flags & 0xff, data);
  if (run.flags & kStores) memcpy(reinterpret_cast<void*>(address), stored, run.size);
}

void warp_access(void* patch, void* userdata, const Accesses& run) {
  const bool writes = run.flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
  const LaneAccess* by_lane[32]{};
  uint32_t mask = 0;
  for (const LaneAccess& one : run.lanes) {
    by_lane[one.lane] = &one;
    mask |= 1u << one.lane;
    if (!writes) memcpy(reinterpret_cast<void*>(one.address), one.value, run.size);
  }
  run_warp(mask, run.block, run.first_thread, [&](uint32_t lane) {
    const LaneAccess& one = *by_lane[lane];
    const void* data = writes && one.told ? one.value : nullptr;
    if (one.masked) data = &one.mask;
    reinterpret_cast<Access>(patch)(userdata, one.pc, reinterpret_cast<void*>(one.address),
                                    run.size, run.flags, data);
  });
}

void one(const Patches& patches, void* userdata, const Accesses& run, uint64_t address) {
  void* patch = nullptr;
  switch (run.type) {
    case Type::warp:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS);
      if (patch) warp_access(patch, userdata, run);
      return;
    case Type::global:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS);
      if (patch) access(patch, userdata, run, address);
      else if (run.flags & kStores) {
        const uint64_t stored[2] = {run.flags >> 16, 0};
        memcpy(reinterpret_cast<void*>(address), stored, run.size);
      }
      return;
    case Type::shared:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_SHARED_MEMORY_ACCESS);
      if (patch) access(patch, userdata, run, address);
      return;
    case Type::remote:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_REMOTE_SHARED_MEMORY_ACCESS);
      if (patch) access(patch, userdata, run, address);
      return;
    case Type::local:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_LOCAL_MEMORY_ACCESS);
      if (patch) access(patch, userdata, run, address);
      return;
    case Type::async:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_MEMCPY_ASYNC);
      if (!patch) return;
#ifdef AT_ASYNC_ZERO_FILL
      reinterpret_cast<Async>(patch)(userdata, 0, reinterpret_cast<void*>(address), 64, run.size,
                                     run.flags);  // the flags are the bytes of zeros
#else
      reinterpret_cast<Async>(patch)(userdata, 0, reinterpret_cast<void*>(address), 64, run.size);
#endif
      return;
    case Type::bulk_load:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED);
      if (patch) {
        reinterpret_cast<Load>(patch)(userdata, 0, address, 0, 0, run.size / 16 | 0xff0000, 1);
      }
      return;
    case Type::bulk_store:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL);
      if (!patch) return;
#ifdef AT_BULK_BYTE_MASK
      reinterpret_cast<Store>(patch)(userdata, 0, address, 0, run.size / 16 | run.flags << 16,
                                     run.flags != 0);  // the flags are the mask
#else
      reinterpret_cast<Store>(patch)(userdata, 0, address, 0, run.size / 16);
#endif
      return;
    case Type::bulk_reduce:
      patch = patch_of(patches, SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL);
      if (patch) reinterpret_cast<Reduce>(patch)(userdata, 0, address, 0, run.size / 16);
      return;
    case Type::tensor_load:  // by the map of that number
#ifdef AT_TENSOR
      patch = patch_of(patches, SANITIZER_INSTRUCTION_TMA_LOAD);
      if (patch) {
        reinterpret_cast<TensorLoad>(patch)(userdata, 0, image_of(run.base), 0, 0, 0, 0, 0, 0, 0, 2, 0,
                                            0, 0);
      }
#endif
      return;
    case Type::tensor_store:
#ifdef AT_TENSOR
      patch = patch_of(patches, SANITIZER_INSTRUCTION_TMA_STORE);
      if (patch) reinterpret_cast<Tensor>(patch)(userdata, 0);
#endif
      return;
  }
}

}  // namespace

void execute(const Patches& patches, void* userdata, const std::vector<Accesses>& accesses) {
  for (const Accesses& run : accesses) {
    for (uint64_t i = 0; i < run.count; ++i) one(patches, userdata, run, run.base + i * run.stride);
  }
}

}  // namespace synthetic
