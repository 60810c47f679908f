// The Sanitizer's callbacks: events into the log, patches into modules, states onto launches.
// Called by any thread, from inside of CUDA: no CUDA function is called here, nothing is printed, and
// nothing is thrown. Where the Sanitizer may wait it is called without the mutex.
#include <stdlib.h>

#include <mutex>
#include <vector>

#include "callbacks.h"

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
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "bulk_load"},
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "bulk_store"},
    {kClassBulk, SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "bulk_reduce"},
#endif
#ifdef AT_TENSOR
    {kClassBulk, SANITIZER_INSTRUCTION_TMA_LOAD, "tensor"},
    {kClassBulk, SANITIZER_INSTRUCTION_TMA_STORE, "tensor"},
#endif
};

std::string patch_name(const Options& options, const Point& point) {
  if (options.mode == Mode::empty) {
    return point.type <= kClassLocal ? "at_empty_access" : "at_empty_copy";
  }
  const bool addressless = point.type == kClassShared || point.type == kClassLocal;
  if (addressless && (options.mode == Mode::touch || options.mode == Mode::hot)) return "";
  return std::string("at_") + name_of(options.mode) + "_" + point.name;
}

// ---- modules ----------------------------------------------------------------------------------

// The Sanitizer's functions for patches want one thread at a time. Never taken with the tool's mutex.
std::mutex patching;

SanitizerResult patch(Lock& lock, const Sanitizer_ResourceModuleData& data) {
  std::vector<const char*> unseen;
  const SanitizerResult patched = unlocked(lock, [&] {
    const std::lock_guard<std::mutex> guard(patching);
    if (tool->loaded.count(data.context) == 0) {
      const SanitizerResult result =
          tool->api.AddPatchesFromFile(tool->options.patches.c_str(), data.context);
      if (result != SANITIZER_SUCCESS) return result;
      tool->loaded.insert(data.context);
    }
    for (const Point& point : kPoints) {
      if (!(tool->options.classes & point.type)) continue;
      const std::string name = patch_name(tool->options, point);
      if (name.empty()) continue;
      const SanitizerResult result =
          tool->api.PatchInstructions(point.id, data.module, name.c_str());
      if (result == SANITIZER_SUCCESS) continue;
      if (point.type == kClassGlobal) return result;
      unseen.push_back(point.name);
    }
    return tool->api.PatchModule(data.module);
  });
#ifndef AT_TENSOR
  if (tool->options.analyses() && tool->options.classes & kClassBulk) {
    tool->note_once("tensor", 1,
                    "copies by tensor map (TMA), as kernels for compute capability 9.0 and later may "
                    "make, are not seen: this Sanitizer does not patch them");
  }
#endif
  for (const char* name : unseen) {
    tool->note_once(name, 1,
                    std::string("accesses of the kind ") + name +
                        " are not seen: this Sanitizer does not patch them");
  }
  return patched;
}

void module_loaded(Lock& lock, const Sanitizer_ResourceModuleData& data) {
  SanitizerResult result = SANITIZER_SUCCESS;
  bool patched = false;
  if (tool->options.patched()) {
    result = patch(lock, data);
    patched = result == SANITIZER_SUCCESS;
    if (patched) {
      tool->patched.insert(data.module);
    } else {
      tool->note_once("patch", 2, "a module could not be patched, and its kernels are not analysed: " +
                                      tool->api.words(result));
    }
  }
  tool->functions.clear();  // handles may come back for other functions
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
  event::Module event{};
  event.module = number(data.module);
  event.context = number(data.context);
  event.size = data.cubinSize;
  if (tool->patched.erase(data.module)) {
    event.patched = 1;
    event.result = unlocked(lock, [&] {
      const std::lock_guard<std::mutex> guard(patching);
      return tool->api.UnpatchModule(data.module);
    });
  }
  tool->log.add(event);
}

// ---- memory -----------------------------------------------------------------------------------

template <class Event>
void add_memory(const Piece& piece, uint64_t stream) {
  Event event{};
  event.address = piece.address;
  event.size = piece.size;
  event.device = piece.device;
  event.flags = piece.flags;
  event.stream = stream;
  tool->log.add(event);
}

}  // namespace

void allocated(const Sanitizer_ResourceMemoryData& data, uint32_t more_flags) {
  if (data.size == 0 || (data.flags & kMemoryCooperativeGroups)) return;
  Piece piece;
  piece.address = data.address;
  piece.size = data.size;
  piece.device = static_cast<uint32_t>(data.device);
  piece.flags = data.flags | more_flags;
  piece.context = number(data.context);
  piece.peer = data.flags & kMemoryPeer;
  // A peer's view of memory that is known already is no allocation.
  std::vector<Piece> ended;
  const bool kept = tool->pieces->add_object(piece, ended);
  for (const Piece& old : ended) add_memory<event::Free>(old, 0);
  if (kept) add_memory<event::Alloc>(piece, number(data.stream));
}

void freed(const Ending& ending, uint64_t stream) {
  Piece piece;
  if (!tool->pieces->remove_object(ending, piece)) return;
  tool->piece_ended();
  add_memory<event::Free>(piece, stream);
}

namespace {

// ---- contexts and streams -----------------------------------------------------------------------

void context_made(const Sanitizer_ResourceContextData& data) {
  // From here on ours runs before the driver's own end: what was registered last runs first.
  static bool registered = false;
  if (!registered) registered = atexit(finish_gpu) == 0;
  tool->devices[data.context] = static_cast<uint32_t>(data.device);
  event::Context event{};
  event.context = number(data.context);
  event.device = static_cast<uint32_t>(data.device);
  event.created = 1;
  tool->log.add(event);
}

void context_ends(Lock& lock, const Sanitizer_ResourceContextData& data) {
  tool->values->forget(data.context);
  const auto found = tool->workspaces.find(data.context);
  if (found != tool->workspaces.end()) {
    found->second->drain(lock);
    tool->workspaces.erase(data.context);
  }
  lock.unlock();
  {
    const std::lock_guard<std::mutex> guard(patching);
    tool->loaded.erase(data.context);
  }
  lock.lock();
}

void context_ended(const Sanitizer_ResourceContextData& data) {
  // What was not freed before went with the context.
  for (const Piece& piece : tool->pieces->objects_of(number(data.context))) {
    freed({piece.address, number(data.context), piece.device, piece.peer}, 0);
  }
  event::Context event{};
  event.context = number(data.context);
  const auto device = tool->devices.find(data.context);
  if (device != tool->devices.end()) {
    event.device = device->second;
    tool->devices.erase(device);
  }
  tool->log.add(event);
}

void on_resource(Lock& lock, Sanitizer_CallbackId id, const void* data) {
  const auto& memory = *static_cast<const Sanitizer_ResourceMemoryData*>(data);
  switch (id) {
    case SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED:
      return context_made(*static_cast<const Sanitizer_ResourceContextData*>(data));
    case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
      return context_ends(lock, *static_cast<const Sanitizer_ResourceContextData*>(data));
    case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_FINISHED:
      return context_ended(*static_cast<const Sanitizer_ResourceContextData*>(data));
    case SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING: {
      const auto& stream = *static_cast<const Sanitizer_ResourceStreamData*>(data);
      const auto found = tool->workspaces.find(stream.context);
      if (found != tool->workspaces.end()) found->second->stream_ends(lock, stream.hStream);
      return;
    }
    case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
      return module_loaded(lock, *static_cast<const Sanitizer_ResourceModuleData*>(data));
    case SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING:
      return module_unloads(lock, *static_cast<const Sanitizer_ResourceModuleData*>(data));
    case SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED:
      // The Sanitizer patches them itself, where their module was.
      tool->lazy_functions +=
          static_cast<const Sanitizer_ResourceFunctionsLazyLoadedData*>(data)->numFunctions;
      return;
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC:
    case SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC:
      return allocated(memory, 0);
    case SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC:
      return allocated(memory, kMemoryHostPinned);
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE:
    case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC:
    case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC_DONE:
    case SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE:
      return freed({memory.address, number(memory.context), static_cast<uint32_t>(memory.device),
                    (memory.flags & kMemoryPeer) != 0},
                   number(memory.stream));
    default:
      return;
  }
}

// ---- copies and waits ---------------------------------------------------------------------------

}  // namespace

void copied(const Sanitizer_MemcpyData& data) {
  event::Memcpy event{};
  event.destination = data.dstAddress;
  event.source = data.srcAddress;
  event.size = data.size;
  event.direction = static_cast<uint32_t>(data.direction);
  event.asynchronous = data.isAsync;
  event.stream = number(data.apiStream ? data.apiStream : data.srcStream);
  tool->log.add(event);
  if (tool->options.mode == Mode::values) tool->values->copied(data);
}

void was_set(const Sanitizer_MemsetData& data) {
  event::Memset event{};
  event.address = data.address;
  event.size = data.width * data.elementSize * (data.height ? data.height : 1);
  event.value = data.value;
  event.element = data.elementSize;
  event.asynchronous = data.isAsync;
  event.stream = number(data.stream);
  tool->log.add(event);
}

namespace {

void on_synchronize(Sanitizer_CallbackId id, const void* data) {
  if (id != SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED &&
      id != SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED) {
    return;
  }
  const bool one = id == SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED;
  event::Sync event{};
  event.what = one ? 1 : 2;
  event.stream = one ? number(static_cast<const Sanitizer_SynchronizeData*>(data)->stream) : 0;
  tool->log.add(event);
  tool->log.settle();  // a program that dies mostly does so after a wait that failed
}

}  // namespace

void on_callback(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                 const void* data) {
  if (!tool || !tool->active || !data || OwnWork::nested()) return;
  const OwnWork own;
  try {
    Lock lock(tool->mutex);
    switch (domain) {
      case SANITIZER_CB_DOMAIN_RESOURCE: on_resource(lock, id, data); break;
      case SANITIZER_CB_DOMAIN_LAUNCH: on_launch(lock, id, data); break;
      case SANITIZER_CB_DOMAIN_MEMCPY:
        if (id == SANITIZER_CBID_MEMCPY_STARTING) {
          copied(*static_cast<const Sanitizer_MemcpyData*>(data));
        }
        break;
      case SANITIZER_CB_DOMAIN_MEMSET:
        if (id == SANITIZER_CBID_MEMSET_STARTING) {
          was_set(*static_cast<const Sanitizer_MemsetData*>(data));
        }
        break;
      case SANITIZER_CB_DOMAIN_SYNCHRONIZE: on_synchronize(id, data); break;
      case SANITIZER_CB_DOMAIN_GRAPHS: on_graph(lock, id, data); break;
      default: break;
    }
  } catch (const std::exception& error) {
    try {
      Lock lock(tool->mutex);
      tool->log.give_up(std::string("out of order: ") + error.what());
    } catch (...) {  // the target goes on in any case
    }
  }
}

}  // namespace accel_trace
