// Launches of kernels, one by one and as nodes of CUDA graphs.
#include <algorithm>
#include <utility>
#include <vector>

#include "callbacks.h"
#include "driver_calls.h"
#include "sampler.h"

namespace accel_trace {
namespace {

// What this thread has begun to launch, where ends are watched. At most one at a time.
struct Begun {
  bool any = false;
  uint64_t change = 0;  // of what is watched: after another one its end may have been missed
  bool in_graph = false;
  bool bound = false;
  uint64_t launch = 0;
  uint64_t ns = 0;
  CUcontext context = nullptr;
  uint32_t row = 0;
};
thread_local Begun begun;

// Rows of the graph that this thread launches, one for each context: the Sanitizer keeps one state for
// all nodes of a graph launch, the one that was set last. Submitted when the whole graph is.
struct GraphRow {
  CUcontext context;
  Sanitizer_StreamHandle stream;
  uint32_t row;
  void* state;
  uint64_t launch;
};
struct Graph {
  std::vector<GraphRow> rows;
  std::vector<uint64_t> nodes;  // kernels, by their numbers
  uint64_t change = 0;          // as of Begun
};
thread_local Graph* launched = nullptr;

Graph& this_graph() {
  if (!launched) launched = new Graph();
  return *launched;
}

const GraphRow* row_of_graph(CUcontext context) {
  for (const GraphRow& row : this_graph().rows) {
    if (row.context == context) return &row;
  }
  return nullptr;
}

// ---- launches -----------------------------------------------------------------------------------

template <class Event>
void tell(uint64_t launch) {
  Event event{};
  event.launch = launch;
  tool->log.add(event);
}

}  // namespace

void refused(uint64_t launch) { tell<event::Refused>(launch); }

// A launch that this thread began and whose end was never told of was refused by the driver, or ended
// when less was watched.
void forget_begun() {
  if (!begun.any) return;
  const bool watched = begun.change == tool->watching.changes();
  if (watched && !begun.in_graph) refused(begun.launch);
  if (!watched && begun.bound && !begun.in_graph) tell<event::Lost>(begun.launch);
  const auto found = tool->workspaces.find(begun.context);
  const bool own = begun.bound && !begun.in_graph;  // a graph's row is cancelled with the graph
  if (own && found != tool->workspaces.end()) found->second->cancel(begun.row);
  if (own && tool->options.mode == Mode::values) tool->values->cancel(begun.context);
  begun = Begun{};
}

void forget_graph() {
  Graph& graph = this_graph();
  const bool watched = graph.change == tool->watching.changes();
  for (const GraphRow& row : graph.rows) {
    const auto found = tool->workspaces.find(row.context);
    if (found != tool->workspaces.end()) found->second->cancel(row.row);
    if (!watched) tell<event::Lost>(row.launch);
  }
  if (watched) std::for_each(graph.nodes.begin(), graph.nodes.end(), refused);
  graph = Graph{};
}

namespace {

// Equal for launches of one function with one grid and block.
uint64_t shape_of(const Sanitizer_LaunchData& data, Text name) {
  uint64_t shape = name;
  for (const uint32_t number : {data.gridDim_x, data.gridDim_y, data.gridDim_z, data.blockDim_x,
                                data.blockDim_y, data.blockDim_z}) {
    shape = (shape ^ number) * 0x9e3779b97f4a7c15u;
    shape ^= shape >> 29;
  }
  return shape;
}

// `instance`: the graph of which it is a node.
void launch_begins(Lock& lock, const Sanitizer_LaunchData& data, bool in_graph,
                   CUgraphExec instance = nullptr) {
  const bool ends = tool->options.ends();
  if (ends) forget_begun();
  gpu_works();
  const uint64_t launch = tool->launches++;
  const Function& function = tool->function_of(data);
  const Text name = function.name;  // the function itself may be forgotten while we wait
  const bool patched = function.patched;
  const bool wanted = tool->recording() && tool->wants(function, launch);
  if (tool->sampler && !in_graph) tool->sampler->launched(lock, shape_of(data, name));
  const Sanitizer_StreamHandle stream =
      in_graph && data.hApiStream ? data.hApiStream : data.hStream;
  if (ends) {
    const uint64_t ns = tool->options.synchronises() ? now_ns() : 0;
    begun = Begun{true, tool->watching.changes(), in_graph, false, launch, ns, data.context, 0};
    if (in_graph) this_graph().nodes.push_back(launch);
  }
  bool bound = false;
  event::Launch event{};
  const GraphRow* const of_graph = in_graph && patched ? row_of_graph(data.context) : nullptr;
  const bool shares = of_graph != nullptr;  // whatever the filters say of this node
  void* state = shares ? of_graph->state : nullptr;
  const uint64_t told = shares ? of_graph->launch : launch;  // what the graph's rows are told of
  if (wanted && tool->options.mode == Mode::values) {
    // A graph's nodes run when nobody waits between them.
    const uint64_t grid = uint64_t{data.gridDim_x} * data.gridDim_y * data.gridDim_z;
    if (!in_graph) state = tool->values->bind(lock, data.context, launch, grid, stream);
    if (state) tool->code->launched(lock, data);
  } else if (!shares && wanted) {
    state = tool->workspace(data.context).bind(lock, launch, stream, in_graph, begun.row);
  }
  if (state) {
    const SanitizerResult result = unlocked(lock, [&] {
      return tool->api.SetLaunchCallbackData(data.hLaunch, data.function, data.hStream, state);
    });
    begun.bound = bound = result == SANITIZER_SUCCESS;
    if (!bound) {
      if (tool->options.mode == Mode::values) tool->values->cancel(data.context);
      else if (!shares) tool->workspace(data.context).cancel(begun.row);
      tool->note_once(in_graph ? "graph data" : "launch data", 2,
                      std::string(in_graph ? "nodes of CUDA graphs" : "launches") +
                          " are not analysed: " + tool->api.words(result));
    } else if (in_graph && !shares) {
      this_graph().rows.push_back({data.context, stream, begun.row, state, launch});
    } else if (in_graph) {
      tool->note_once("graph", 1,
                      "the nodes of a CUDA graph share one state: what they touched or counted is told "
                      "of the first that was analysed, for all of them together");
    }
  }
  if (!bound && !shares && tool->options.analyses() && patched) {
    // Said, not assumed: patches of this launch find no state. A graph could keep the one of its last
    // launch, whose memory may be gone.
    unlocked(lock, [&] {
      return tool->api.SetLaunchCallbackData(data.hLaunch, data.function, data.hStream, nullptr);
    });
  }
  event.launch = launch;
  event.name = name;
  event.device = static_cast<uint32_t>(data.device);
  event.stream = number(in_graph && data.apiStream ? data.apiStream : data.stream);
  event.context = number(data.context);
  event.grid_x = data.gridDim_x;
  event.grid_y = data.gridDim_y;
  event.grid_z = data.gridDim_z;
  event.block_x = data.blockDim_x;
  event.block_y = data.blockDim_y;
  event.block_z = data.blockDim_z;
  event.analysed = !in_graph ? bound : !bound ? 3u : shares ? 4u : 2u;
  event.thread = thread_number();
  event.operator_ = tool->operators ? operator_of_thread() : 0;
  event.region = tool->regions.empty() ? 0 : tool->regions.back().text;
  tool->log.add(event);
  const bool tells = tool->options.distinct && !in_graph;
  if (bound || tells) write_unpatched(tool->function_of(data), told, in_graph, instance);
  if (tells) write_arguments(tool->function_of(data), launch);
  const Options& asked = tool->options;
  if (asked.stacks && (asked.all_stacks || launch == asked.stack_launch)) {
    lock.unlock();
    write_stack(launch);
    lock.lock();
  }
}

// Waits for a stream without holding up the other threads' callbacks.
void wait_for(Lock& lock, Sanitizer_StreamHandle stream, uint64_t since) {
  lock.unlock();
  tool->api.StreamSynchronize(stream);
  lock.lock();
  tool->collection.add(since);
}

void launch_ends(Lock& lock, const Sanitizer_LaunchData& data, bool in_graph) {
  if (!begun.any) return;
  const Begun ended = begun;
  begun = Begun{};
  tell<event::LaunchEnd>(ended.launch);
  const auto found = tool->workspaces.find(ended.context);
  if (!in_graph && ended.bound && found != tool->workspaces.end()) found->second->close(ended.row);
  if (in_graph || !tool->options.synchronises() || tool->gpu_over) return;
  if (tool->options.mode >= Mode::trace && !ended.bound) return;
  wait_for(lock, data.hStream, ended.ns);
  if (tool->options.mode == Mode::values) {
    return tool->values->collect(lock, ended.context, ended.launch, data.hStream);
  }
  const auto again = tool->workspaces.find(ended.context);
  if (ended.bound && again != tool->workspaces.end()) {
    again->second->finish_traced(lock, data.hStream);
  }
}

}  // namespace

void on_launch(Lock& lock, Sanitizer_CallbackId id, const void* data) {
  const auto& launch = *static_cast<const Sanitizer_LaunchData*>(data);
  const Watching::Level level = tool->watching.level();
  if (level == Watching::Level::launches && id == SANITIZER_CBID_LAUNCH_BEGIN) {
    return tool->sampler->launched(lock, shape_of(launch, tool->function_of(launch).name));
  }
  if (level != Watching::Level::all) return;
  if (id == SANITIZER_CBID_LAUNCH_BEGIN) {
    if (tool->watches_calls()) launch_reported(tool->launches);
    launch_begins(lock, launch, false);
  }
  if (id == SANITIZER_CBID_LAUNCH_END) launch_ends(lock, launch, false);
}

// ---- graphs -------------------------------------------------------------------------------------

namespace {

void node_begins(Lock& lock, const Sanitizer_GraphNodeLaunchData& data) {
  switch (data.nodeType) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return launch_begins(lock, data.launchData, true, data.graphExec);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return allocated(data.memAllocData, 0);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return freed({data.memFreeAddress}, 0);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copied(data.memcpyData);
    case CU_GRAPH_NODE_TYPE_MEMSET: return was_set(data.memsetData);
    default: return;
  }
}

void graph_begins(Lock& lock, const Sanitizer_GraphLaunchData& data) {
  if (tool->watching.level() != Watching::Level::all) {
    if (tool->sampler) tool->sampler->launched(lock, number(data.graphExec));
    return;
  }
  forget_graph();
  this_graph().change = tool->watching.changes();
  if (tool->sampler) tool->sampler->launched(lock, number(data.graphExec));
  if (!tool->options.analyses() || !tool->recording() || tool->gpu_over) return;
  if (tool->options.mode == Mode::values) {
    return tool->note_once("values graph", 2, "nodes of CUDA graphs are not analysed in mode values");
  }
  if (tool->patched.empty()) return;
  if (!tool->options.region.empty() && tool->wanted_regions == 0) return;
  tool->workspace(data.context).prepare(lock, data.hStream);
}

// The graph was submitted: its nodes may be drained from now on.
void graph_launched(Lock& lock, const Sanitizer_GraphLaunchData& data) {
  const uint64_t since = now_ns();
  const std::vector<GraphRow> rows = std::move(this_graph().rows);
  this_graph() = Graph{};
  for (const GraphRow& row : rows) {
    const auto found = tool->workspaces.find(row.context);
    if (found != tool->workspaces.end()) found->second->close(row.row);
  }
  if (!tool->options.synchronises() || tool->gpu_over) return;
  if (tool->options.mode >= Mode::trace && rows.empty()) return;
  wait_for(lock, data.hStream, since);
  for (const GraphRow& row : rows) {
    const auto found = tool->workspaces.find(row.context);
    if (found != tool->workspaces.end()) found->second->finish_traced(lock, row.stream);
  }
}

}  // namespace

void on_graph(Lock& lock, Sanitizer_CallbackId id, const void* data) {
  const auto& node = *static_cast<const Sanitizer_GraphNodeLaunchData*>(data);
  const auto& graph = *static_cast<const Sanitizer_GraphLaunchData*>(data);
  switch (id) {
    case SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN:
      if (!node.isGraphUpload) node_begins(lock, node);
      return;
    case SANITIZER_CBID_GRAPHS_NODE_LAUNCH_END:
      if (!node.isGraphUpload && node.nodeType == CU_GRAPH_NODE_TYPE_KERNEL) {
        launch_ends(lock, node.launchData, true);
      }
      return;
    case SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN:
      if (!graph.isGraphUpload) graph_begins(lock, graph);
      return;
    case SANITIZER_CBID_GRAPHS_LAUNCH_END:
      if (!graph.isGraphUpload) graph_launched(lock, graph);
      return;
    case SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATED:
      if (tool->sampler) tool->sampler->graph_ends(lock);
      return graph_instantiated(*static_cast<const Sanitizer_GraphExecData*>(data));
    case SANITIZER_CBID_GRAPHS_GRAPHEXEC_CREATING:
      if (tool->sampler) tool->sampler->graph_begins(lock);
      return;
    case SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING:
      return graph_instance_ends(*static_cast<const Sanitizer_GraphExecData*>(data));
    default:
      return;
  }
}

}  // namespace accel_trace
