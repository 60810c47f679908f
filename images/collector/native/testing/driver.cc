// The synthetic driver (driver.h): what the program under test does, and the callbacks for it.
#include "driver.h"

#include <sanitizer_driver_cbid.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "machine.h"

namespace synthetic {

Machine& machine() {
  static Machine* const the = new Machine();  // never destroyed: processes end in all ways
  return *the;
}

void call(Sanitizer_CallbackDomain domain, uint32_t id, const void* data) {
  Machine& m = machine();
  const auto guard = driver_lock();
  if (listens(domain, id)) m.callback(m.userdata, domain, id, data);
}

bool listens(Sanitizer_CallbackDomain domain, uint32_t id) {
  Machine& m = machine();
  std::lock_guard<std::recursive_mutex> guard(m.mutex);
  const auto one = m.callbacks.find({domain, id});
  const bool on = m.callback && (one != m.callbacks.end() ? one->second : m.enabled[domain]);
  const bool lookup = domain == SANITIZER_CB_DOMAIN_DRIVER_API &&
                      id == SANITIZER_CBID_DRIVER_API_cuLibraryGetKernel;
  if (on && !lookup && domain != SANITIZER_CB_DOMAIN_RESOURCE) ++m.told;
  return on;
}

std::unique_lock<std::recursive_mutex> driver_lock() {
  static const bool locks = getenv("SYNTHETIC_LOCKS");
  std::unique_lock<std::recursive_mutex> lock(machine().driver, std::defer_lock);
  if (locks) lock.lock();
  return lock;
}

std::unique_lock<std::recursive_mutex> driver_lock_to_wait() {
  if (machine().in_node) ++machine().waits_in_nodes;
  return driver_lock();
}

namespace {

using Guard = std::lock_guard<std::recursive_mutex>;

template <class Map>
auto& at(Map& map, int number) {
  Guard guard(machine().mutex);
  return *map.at(number);
}

Context& context_of(int number) { return at(machine().contexts, number); }
Module& module_of(int number) { return at(machine().modules, number); }
Stream& stream_of(int number) { return at(machine().streams, number); }

CUfunction function_of(Module& module, const std::string& name) {
  Guard guard(machine().mutex);
  auto& function = module.functions[name];
  if (!function) function = std::make_unique<std::string>(name);
  return reinterpret_cast<CUfunction>(function.get());
}

Sanitizer_LaunchData launch_data(Stream& stream, const Kernel& kernel, Launch& launch) {
  Module& module = module_of(kernel.module);
  Sanitizer_LaunchData data{};
  data.context = stream.context->handle();
  data.stream = stream.handle();
  data.hStream = stream.sanitizer_handle();
  data.module = module.handle();
  data.function = function_of(module, kernel.name);
  data.functionName = reinterpret_cast<std::string*>(data.function)->c_str();
  data.gridDim_x = 3;
  data.gridDim_y = data.gridDim_z = data.blockDim_y = data.blockDim_z = 1;
  data.blockDim_x = 32;
  data.hLaunch = reinterpret_cast<Sanitizer_LaunchHandle>(&launch);
  data.device = stream.context->device;
  return data;
}

void queue_kernel(Stream& stream, const Kernel& kernel, void* userdata) {
  const Patches patches = module_of(kernel.module).active;
  const std::thread::id other = stream.context->patching;
  if (other != std::thread::id() && other != std::this_thread::get_id()) {
    stream.context->broken = true;  // an illegal instruction, on a GPU
  }
  stream.push([patches, userdata, accesses = kernel.accesses] {
    execute(patches, userdata, accesses);
  });
}

Sanitizer_ResourceContextData context_data(Context& context) {
  Sanitizer_ResourceContextData data{};
  data.context = context.handle();
  data.device = context.device;
  return data;
}

}  // namespace

void make_context(int number, int device) {
  Machine& m = machine();
  // The driver's own end takes all memory with it.
  static const bool ends = getenv("SYNTHETIC_ENDS") && atexit([] {
    for (auto& [other, context] : machine().contexts) free_taken(*context);
  }) == 0;
  (void)ends;
  std::unique_lock<std::recursive_mutex> lock(m.mutex);
  std::unique_ptr<Context>& context = m.contexts[number];
  if (!context) context = std::make_unique<Context>();  // else it has the handle that it had
  context->device = device;
  context->broken = context->patches = false;
  const auto data = context_data(*context);
  lock.unlock();
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_STARTING, &data);
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_CREATION_FINISHED, &data);
}

void destroy_context(int number) {
  Context& context = context_of(number);
  const auto data = context_data(context);
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &data);
  context.broken = true;
  for (Stream* stream : streams_of(&context)) stream->end();
  free_taken(context);
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_FINISHED, &data);
}

void break_context(int number) { context_of(number).broken = true; }

void load_module(int number, int context, bool refuses, const std::string& cubin) {
  Machine& m = machine();
  auto module = std::make_unique<Module>();
  module->context = &context_of(context);
  module->refuses = refuses;
  Sanitizer_ResourceModuleData data{};
  data.context = module->context->handle();
  data.module = module->handle();
  data.cubinSize = 4242;
  if (!cubin.empty()) {
    std::ifstream file(cubin, std::ios::binary);
    module->cubin.assign(std::istreambuf_iterator<char>(file), {});
    data.pCubin = module->cubin.data();
    data.cubinSize = module->cubin.size();
  }
  {
    Guard guard(m.mutex);
    m.modules[number] = std::move(module);
  }
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, &data);
}

void unload_module(int number) {
  Module& module = module_of(number);
  Sanitizer_ResourceModuleData data{};
  data.context = module.context->handle();
  data.module = module.handle();
  data.cubinSize = 4242;
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_UNLOAD_STARTING, &data);
  module.gone = true;
}

void load_lazily(int number, int functions) {
  Module& module = module_of(number);
  const std::vector<CUfunction> list(static_cast<size_t>(functions));
  Sanitizer_ResourceFunctionsLazyLoadedData data{};
  data.context = module.context->handle();
  data.module = module.handle();
  data.functions = list.data();
  data.numFunctions = static_cast<uint32_t>(functions);
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_FUNCTIONS_LAZY_LOADED, &data);
}

void make_stream(int number, int context) {
  Machine& m = machine();
  auto stream = std::make_unique<Stream>();
  stream->context = &context_of(context);
  Sanitizer_ResourceStreamData data{};
  data.context = stream->context->handle();
  data.stream = stream->handle();
  data.hStream = stream->sanitizer_handle();
  {
    Guard guard(m.mutex);
    m.streams[number] = std::move(stream);
  }
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_STREAM_CREATED, &data);
}

void destroy_stream(int number) {
  Stream& stream = stream_of(number);
  Sanitizer_ResourceStreamData data{};
  data.context = stream.context->handle();
  data.stream = stream.handle();
  data.hStream = stream.sanitizer_handle();
  call(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING, &data);
  stream.run_all();
  stream.gone = true;
}

void memory_event(int context, const Memory& memory, uint32_t id) {
  Context& in = context_of(context);
  Sanitizer_ResourceMemoryData data{};
  data.address = memory.address;
  data.size = memory.size;
  data.context = in.handle();
  data.device = in.device;
  data.flags = memory.flags;
  call(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

void allocate(int context, Memory memory, const char* how) {
  uint32_t id = SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC;
  if (!strcmp(how, "host")) id = SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC;
  if (!strcmp(how, "async")) id = SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC;
  {
    Guard guard(machine().mutex);
    machine().programs[memory.address] = memory.size;
  }
  memory_event(context, memory, id);
}

void release(int context, Memory memory, const char* how) {
  uint32_t id = SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE;
  if (!strcmp(how, "host")) id = SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE;
  if (!strcmp(how, "async")) id = SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC;
  if (!strcmp(how, "async_done")) id = SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC_DONE;
  memory_event(context, memory, id);
}

void launch(int number, const Kernel& kernel, bool refused) {
  Stream& stream = stream_of(number);
  Launch begun;
  const Sanitizer_LaunchData data = launch_data(stream, kernel, begun);
  call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &data);
  reach("begun");
  if (refused) return;  // the driver found a fault: nothing runs, and no end is reported
  queue_kernel(stream, kernel, begun.userdata);
  call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &data);
}

void launch_nodes(int number, const std::vector<Kernel>& nodes, const std::string& how) {
  const bool upload = how == "upload";
  Stream& stream = stream_of(number);
  if (machine().beside.joinable()) machine().beside.join();
  Sanitizer_GraphLaunchData graph{};
  graph.context = stream.context->handle();
  graph.stream = stream.handle();
  graph.hStream = stream.sanitizer_handle();
  graph.isGraphUpload = upload;
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, &graph);
  void* userdata = nullptr;  // one for all nodes, as on a GPU: the last that was set
  for (const Kernel& node : nodes) {
    Launch begun;
    begun.refuses_data = how == "refuses";
    begun.userdata = userdata;
    Sanitizer_GraphNodeLaunchData data{};
    data.nodeType = CU_GRAPH_NODE_TYPE_KERNEL;
    data.graphExec = reinterpret_cast<CUgraphExec>(static_cast<uint64_t>(instance));
    data.launchData = launch_data(stream, node, begun);
    data.launchData.apiContext = stream.context->handle();
    data.launchData.apiStream = stream.handle();
    data.launchData.hApiStream = stream.sanitizer_handle();
    data.isGraphUpload = upload;
    machine().in_node = true;
    call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &data);
    call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_END, &data);
    machine().in_node = false;
    userdata = begun.userdata;
  }
  if (how == "fails") return;
  {
    Guard guard(machine().mutex);
    const auto found = machine().instantiated.find(instance);
    for (const Kernel& node : nodes) {
      const bool patched = !module_of(node.module).active.empty();
      const bool was = found == machine().instantiated.end() || found->second;
      if (patched && !was) stream.context->broken = true;  // an illegal instruction
    }
  }
  // As on a GPU: no node runs before the whole graph was submitted.
  for (const Kernel& node : nodes) {
    if (!upload) queue_kernel(stream, node, userdata);
  }
  call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_END, &graph);
}

void copy(int number, uint64_t to, uint64_t from, uint64_t size, int direction, bool asynchronous) {
  Stream& stream = stream_of(number);
  Sanitizer_MemcpyData data{};
  data.srcAddress = from;
  data.dstAddress = to;
  data.size = size;
  data.isAsync = asynchronous;
  data.direction = static_cast<Sanitizer_MemcpyDirection>(direction);
  data.apiStream = stream.handle();
  data.hApiStream = stream.sanitizer_handle();
  data.srcContext = data.dstContext = stream.context->handle();
  call(SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CBID_MEMCPY_STARTING, &data);
}

void set(int number, uint64_t address, uint64_t width, uint64_t height, uint32_t element,
         uint32_t value) {
  Stream& stream = stream_of(number);
  Sanitizer_MemsetData data{};
  data.stream = stream.handle();
  data.hStream = stream.sanitizer_handle();
  data.context = stream.context->handle();
  data.address = address;
  data.width = width;
  data.height = height;
  data.elementSize = element;
  data.value = value;
  data.isAsync = 1;
  call(SANITIZER_CB_DOMAIN_MEMSET, SANITIZER_CBID_MEMSET_STARTING, &data);
}

void wait_for_stream(int number) {
  Stream& stream = stream_of(number);
  stream.run_all();
  Sanitizer_SynchronizeData data{};
  data.context = stream.context->handle();
  data.stream = stream.handle();
  data.hStream = stream.sanitizer_handle();
  call(SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, &data);
}

void wait_for_context(int number) {
  Context& context = context_of(number);
  for (Stream* stream : streams_of(&context)) stream->run_all();
  reach("waited");
  Sanitizer_SynchronizeData data{};
  data.context = context.handle();
  call(SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, &data);
}

void run(int number, int steps) {
  Stream& stream = stream_of(number);
  if (steps < 0) return stream.run_all();
  std::lock_guard<std::recursive_mutex> guard(stream.running);
  for (int i = 0; i < steps; ++i) stream.run_one();
}

uint64_t told() { return machine().told; }
int taken() { return static_cast<int>(machine().owners.size()); }
int own_callbacks() { return machine().own_callbacks; }
int waits_in_nodes() { return machine().waits_in_nodes; }

}  // namespace synthetic
