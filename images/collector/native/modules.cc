// Modules: what their code says, and patches into them.
#include <mutex>
#include <vector>

#include "callbacks.h"
#include "driver_calls.h"
#include "sampler.h"

namespace accel_trace {
namespace {

struct Point {
  uint32_t type;
  Sanitizer_InstructionId id;
  const char* name;
};

const Point kPoints[] = {
    {kClassGlobal, SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "global"},
    {kClassShared, SANITIZER_INSTRUCTION_SHARED_MEMORY_ACCESS, "shared"},
    {kClassLocal, SANITIZER_INSTRUCTION_LOCAL_MEMORY_ACCESS, "local"},
    {kClassAsync, SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "async"},
#ifdef AT_BULK
    {kClassShared, SANITIZER_INSTRUCTION_REMOTE_SHARED_MEMORY_ACCESS, "remote_shared"},
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "bulk_load"},
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "bulk_store"},
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "bulk_reduce"},
#endif
#ifdef AT_TENSOR
    {kClassBulk, SANITIZER_INSTRUCTION_TMA_LOAD, "tensor_load"},
    {kClassBulk, SANITIZER_INSTRUCTION_TMA_STORE, "tensor"},
#endif
};

std::string patch_name(const Options& options, const Point& point) {
  if (options.mode == Mode::empty) {
    return point.type <= kClassLocal ? "at_empty_access" : "at_empty_copy";
  }
  const bool addressless = point.type == kClassShared || point.type == kClassLocal;
  if (addressless && (options.mode == Mode::touch || options.mode == Mode::hot)) return "";
  std::string name = point.name;
  // Shared memory of another block of the cluster counts as shared.
  if (point.type == kClassShared) name = "shared";
  if (name == "tensor_load" && options.mode != Mode::touch) name = "tensor";
  return std::string("at_") + name_of(options.mode) + "_" + name;
}

// The Sanitizer's functions for patches want one thread at a time. Never taken with the tool's mutex.
std::mutex patching;

// With the lock of those alone, as what follows.
bool is_patched(CUmodule module) {
  const Lock lock(tool->mutex);
  return tool->patched.count(module) != 0;
}

SanitizerResult unpatch(CUmodule module) {
  if (!is_patched(module)) return SANITIZER_SUCCESS;  // another thread did it
  const SanitizerResult result = tool->api.UnpatchModule(module);
  const Lock lock(tool->mutex);
  tool->patched.erase(module);  // now: whoever unloads it meanwhile waits for us
  return result;
}

SanitizerResult patch(Lock& lock, CUcontext context, CUmodule module) {
  std::vector<const char*> unseen;
  bool tensor_loads = false;
  const SanitizerResult patched = unlocked(lock, [&] {
    const std::lock_guard<std::mutex> guard(patching);
    if (!is_patched(module)) return SANITIZER_ERROR_INVALID_PARAMETER;  // it has ended
    if (tool->loaded.count(context) == 0) {
      const SanitizerResult result =
          tool->api.AddPatchesFromFile(tool->options.patches.c_str(), context);
      if (result != SANITIZER_SUCCESS) return result;
      tool->loaded.insert(context);
    }
    for (const Point& point : kPoints) {
      if (!(tool->options.classes & point.type)) continue;
      const std::string name = patch_name(tool->options, point);
      if (name.empty()) continue;
      const SanitizerResult result =
          tool->api.PatchInstructions(point.id, module, name.c_str());
      tensor_loads |= result == SANITIZER_SUCCESS && name == "at_touch_tensor_load";
      if (result == SANITIZER_SUCCESS) continue;
      if (point.type == kClassGlobal) return result;
      unseen.push_back(point.name);
    }
    return tool->api.PatchModule(module);
  });
  if (tensor_loads && patched == SANITIZER_SUCCESS) tool->unpatched->seen = kTensorMapLoad;
  for (const char* name : unseen) {
    tool->note_once(name, 1,
                    std::string("accesses of the kind ") + name +
                        " are not seen: this Sanitizer does not patch them");
  }
  return patched;
}

bool try_to_patch(Lock& lock, CUcontext context, CUmodule module, SanitizerResult& result) {
  tool->patched.insert(module);  // whoever unloads it meanwhile waits for us, and unpatches it
  result = patch(lock, context, module);
  if (result == SANITIZER_SUCCESS) return true;
  if (!tool->patched.erase(module)) return false;  // it has ended
  tool->note_once("patch", 2, "a module could not be patched, and its kernels are not analysed: " +
                                  tool->api.words(result));
  return false;
}

}  // namespace

void module_loaded(Lock& lock, const Sanitizer_ResourceModuleData& data) {
  SanitizerResult result = SANITIZER_SUCCESS;
  bool patched = false;
  tool->modules[data.module] = data.context;
  if (tool->options.patched() && (!tool->sampler || tool->sampler->patches())) {
    patched = try_to_patch(lock, data.context, data.module, result);
  }
  tool->functions.clear();  // handles may come back for other functions
  if (tool->options.mode == Mode::values) tool->code->loaded(data);
  if (tool->watches_calls()) {
    CubinCode code;
    const bool all = tool->options.distinct || tool->snapshots;
    if (!read_cubin(data.pCubin, data.cubinSize, all, code)) {
      tool->note_once("code", 1, "the code of a module could not be read: whether its kernels copy by "
                                 "tensor map (TMA), and what they get, is not known");
    }
    if (!code.empty()) tool->unpatched->code[data.module] = std::move(code);
  }
  event::Module event{};
  event.module = number(data.module);
  event.context = number(data.context);
  event.loaded = 1;
  event.patched = patched;
  event.result = result;
  event.size = data.cubinSize;
  tool->log.add(event);
}

void module_unloads(Lock& lock, const Sanitizer_ResourceModuleData& data) {
  tool->functions.clear();
  tool->unpatched->code.erase(data.module);
  tool->modules.erase(data.module);
  event::Module event{};
  event.module = number(data.module);
  event.context = number(data.context);
  event.size = data.cubinSize;
  if (tool->patched.count(data.module)) {  // or it is being patched, or unpatched
    event.patched = 1;
    event.result = unlocked(lock, [&] {
      const std::lock_guard<std::mutex> guard(patching);
      return unpatch(data.module);
    });
  }
  tool->log.add(event);
}

// Both strictly by turns, and each class asked for again: the Sanitizer forgets it when it unpatches, and
// a module that is patched twice counts nothing.
void patch_all(Lock& lock) {
  const auto modules = tool->modules;  // the lock is released meanwhile
  for (const auto& [module, context] : modules) {
    SanitizerResult result;
    if (!tool->modules.count(module) || tool->patched.count(module)) continue;
    try_to_patch(lock, context, module, result);
  }
}

void unpatch_all(Lock& lock) {
  const auto modules = tool->patched;
  for (const CUmodule module : modules) {
    unlocked(lock, [&] {
      const std::lock_guard<std::mutex> guard(patching);
      return unpatch(module);
    });
  }
}

void patches_end(Lock& lock, CUcontext context) {
  unlocked(lock, [&] {
    const std::lock_guard<std::mutex> guard(patching);
    tool->loaded.erase(context);
    return SANITIZER_SUCCESS;
  });
}

}  // namespace accel_trace
