// The Sanitizer's callbacks: events into the log.
// Called by any thread, from inside of CUDA: no CUDA function is called here, nothing is printed, and
// nothing is thrown. Where the Sanitizer may wait it is called without the mutex.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>
#include <vector>

#include "callbacks.h"
#include "copies.h"
#include "driver_calls.h"
#include "snapshots.h"

namespace accel_trace {
namespace {

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

// The recorder of the CPU's accesses (src/accel_trace/cpu), where it is preloaded: it is told of
// managed memory, and of the ends of windows. Memory that it cannot protect is left as it is.
template <class Call>
Call recorder(const char* name) {
  return reinterpret_cast<Call>(dlsym(RTLD_DEFAULT, name));
}

void watch(const Piece& piece) {
  using Call = int (*)(uint64_t, uint64_t);
  static const auto call = recorder<Call>("accel_trace_cpu_watch");
  if (!call || !(piece.flags & kMemoryManaged)) return;
  if (const int why = call(piece.address, piece.size)) {
    tool->note(2, "accesses of the CPU to " + std::to_string(piece.size) + " managed bytes are " +
                      "not seen: they cannot be protected (" + strerror(why) + ")");
  }
}

void unwatch(const Piece& piece) {
  static const auto call = recorder<void (*)(uint64_t)>("accel_trace_cpu_unwatch");
  if (call && (piece.flags & kMemoryManaged)) call(piece.address);
}

void window_ends() {
  static const auto call = recorder<void (*)()>("accel_trace_cpu_window");
  if (call) call();
}

}  // namespace

void gpu_works() {
  static const auto call = recorder<void (*)()>("accel_trace_cpu_work");
  if (call) call();
}

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
  if (!kept) return;
  add_memory<event::Alloc>(piece, number(data.stream));
  watch(piece);
}

void freed(const Ending& ending, uint64_t stream) {
  Piece piece;
  if (!tool->pieces->remove_object(ending, piece)) return;
  tool->piece_ended();
  unwatch(piece);
  add_memory<event::Free>(piece, stream);
}

namespace {

// ---- contexts and streams -----------------------------------------------------------------------

void context_made(const Sanitizer_ResourceContextData& data) {
  // From here on ours runs before the driver's own end: what was registered last runs first.
  static bool registered = false;
  if (!registered) {
    registered = atexit(finish_gpu) == 0;
    at_quick_exit([] {
      finish_gpu();
      finish_log();  // no destructor runs
    });
  }
  tool->devices[data.context] = static_cast<uint32_t>(data.device);
  event::Context event{};
  event.context = number(data.context);
  event.device = static_cast<uint32_t>(data.device);
  event.created = 1;
  tool->log.add(event);
}

void context_ends(Lock& lock, const Sanitizer_ResourceContextData& data) {
  tool->values->forget(lock, data.context);
  if (tool->copies) tool->copies->forget(data.context);
  if (tool->snapshots) tool->snapshots->forget(data.context);
  const auto found = tool->workspaces.find(data.context);
  if (found != tool->workspaces.end()) {
    const std::shared_ptr<Workspace> workspace = found->second;  // of other threads that drain, too
    workspace->drain(lock);
    workspace->stop_consumer(lock);  // its ring goes with the context
    workspace->give_up();
    tool->workspaces.erase(data.context);
  }
  patches_end(lock, data.context);
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
  gpu_works();
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
  gpu_works();
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

// How many rows were when this thread was told of something last. What others launch while it waits
// for a context may run on after that.
thread_local uint64_t closed_before = 0;

void on_synchronize(Lock& lock, Sanitizer_CallbackId id, const void* data) {
  if (id != SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED &&
      id != SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED) {
    return;
  }
  const bool one = id == SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED;
  event::Sync event{};
  event.what = one ? 1 : 2;
  const auto& wait = *static_cast<const Sanitizer_SynchronizeData*>(data);
  event.stream = one ? number(wait.stream) : 0;
  tool->log.add(event);
  window_ends();
  tool->values->files().settle(lock);
  if (tool->values->files().told()) tool->log.flush();  // for good, whatever ends the program next
  const auto found = tool->workspaces.find(wait.context);
  if (found == tool->workspaces.end() || tool->gpu_over || (one && !wait.hStream)) {
    tool->log.settle();  // a program that dies mostly does so after a wait that failed
    return;
  }
  const uint64_t before = tool->log.events();
  // A stream is waited for once more where its rows are fetched.
  found->second->drain_waited(lock, one ? wait.hStream : nullptr, one ? UINT64_MAX : closed_before);
  if (tool->log.events() != before) tool->log.flush();  // for good, whatever ends the program next
}

}  // namespace

void on_callback(void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                 const void* data) {
  if (!tool || !tool->active || !data) return;
  const OwnWork own;
  if (!own.outermost()) return;
  try {
    const auto& call = *static_cast<const Sanitizer_CallbackData*>(data);
    if (domain == SANITIZER_CB_DOMAIN_DRIVER_API) return on_driver_call(id, call);
    Lock lock(tool->mutex);
    switch (domain) {
      case SANITIZER_CB_DOMAIN_RESOURCE: on_resource(lock, id, data); break;
      case SANITIZER_CB_DOMAIN_LAUNCH: on_launch(lock, id, data); break;
      case SANITIZER_CB_DOMAIN_MEMCPY:
        if (id == SANITIZER_CBID_MEMCPY_STARTING) {
          const auto& copy = *static_cast<const Sanitizer_MemcpyData*>(data);
          if (!tool->copies || !tool->copies->made(lock, copy)) copied(copy);
        }
        break;
      case SANITIZER_CB_DOMAIN_MEMSET:
        if (id == SANITIZER_CBID_MEMSET_STARTING) {
          const auto& fill = *static_cast<const Sanitizer_MemsetData*>(data);
          if (!tool->copies || !tool->copies->made(lock, fill)) was_set(fill);
        }
        break;
      case SANITIZER_CB_DOMAIN_SYNCHRONIZE: on_synchronize(lock, id, data); break;
      case SANITIZER_CB_DOMAIN_GRAPHS: on_graph(lock, id, data); break;
      default: break;
    }
    closed_before = tool->closed;
  } catch (const std::exception& error) {
    try {
      Lock lock(tool->mutex);
      tool->log.give_up(std::string("out of order: ") + error.what());
    } catch (...) {  // the target goes on in any case
    }
  }
}

}  // namespace accel_trace
