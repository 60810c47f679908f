// Start, filters, fork and end.
#include "tool.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <utility>

#include "code.h"
#include "copies.h"
#include "driver_calls.h"
#include "sampler.h"
#include "snapshots.h"
#include "workspace.h"
#include "values.h"

namespace accel_trace {

Tool* tool = nullptr;

namespace {

constexpr int kLockTries = 2000;  // of a millisecond
thread_local uint32_t own_work = 0;

Painting painting_of(const Options& options) {
  if (options.mode == Mode::hot) return Painting::blocks;
  return options.mode == Mode::touch || options.mode == Mode::count ? Painting::pieces
                                                                    : Painting::none;
}

std::string subscribe(Tool& self) {
  std::string error = self.api.open(self.options.sanitizer);
  if (!error.empty()) return error;
  Sanitizer_SubscriberHandle handle = nullptr;
  const SanitizerResult result = self.api.Subscribe(&handle, on_callback, nullptr);
  if (result == SANITIZER_ERROR_MAX_LIMIT_REACHED) {
    return "another tool uses the Compute Sanitizer in this process; run one tool at a time";
  }
  if (result != SANITIZER_SUCCESS) {
    return "the Compute Sanitizer does not start: " + self.api.words(result) +
           "; it needs an NVIDIA driver of its major version of CUDA or newer: update the driver, or "
           "build with an older toolkit, named in ACCEL_TRACE_TOOLKIT";
  }
  DriverCalls calls = self.watches_calls() ? driver_calls(self.options) : DriverCalls{};
  if (self.copies) Copies::add_calls(calls.seldom);
  error = self.watching.begin(self.api, handle, calls, self.options.ends());
  if (self.watching.lacks_driver_calls()) {
    self.note(2, std::string("this Sanitizer does not report all ") +
                     (self.copies      ? "copies and fills of the driver: such copies are compared the "
                                         "slow way"
                      : self.snapshots ? "calls that launch kernels: what such launches leave as it "
                                         "was is not known"
                                       : "calls that launch kernels: what they copy by tensor map "
                                         "(TMA) is not known"));
  }
  return error;
}

void first_facts(Tool& self) {
  const Options& options = self.options;
  self.fact("mode", name_of(options.mode));
  if (options.mode == Mode::trace) {
    static const char* const analyses[] = {"touch", "count", "hot"};
    self.fact("analysis", analyses[static_cast<int>(options.analysis)]);
    self.fact("workers", std::to_string(options.workers));
    self.fact("policy", options.drop ? "drop" : "wait");
    self.fact("buffer", std::to_string(options.buffer));
  }
  if (options.patched()) {
    std::string classes;
    const char* const names[] = {"global", "shared", "local", "async", "bulk"};
    for (uint32_t i = 0; i < 5; ++i) {
      if (options.classes >> i & 1) classes += (classes.empty() ? "" : ",") + std::string(names[i]);
    }
    self.fact("classes", classes);
    self.fact("sample", std::to_string(options.sample));
    if (options.every) self.fact("every", std::to_string(options.every));
    if (options.within) self.fact("within", std::to_string(options.within));
    if (options.distinct) self.fact("distinct", "1");
  }
  if (options.subscribe) self.fact("sanitizer", options.sanitizer);
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"}) {
    const char* rank = getenv(name);  // as the launcher of a distributed job says it
    if (rank) self.fact(name, rank);
  }
}

Lock* fork_lock = nullptr;

void before_fork() {
  if (tool) fork_lock = new Lock(tool->mutex);
}

void after_fork_in_parent() {
  // Another thread's fork may set its own as soon as this one is given up.
  const std::unique_ptr<Lock> own(std::exchange(fork_lock, nullptr));
}

// The parent's threads, files and GPU memory are not the child's: all of it is left alone.
void after_fork_in_child() {
  if (!tool) return;
  Tool* parent = tool;
  Tool* child = new Tool(parent->options);
  child->api = parent->api;
  child->watching.inherit(parent->watching, child->api);
  child->active = parent->active;
  child->stack_callback = parent->stack_callback;
  child->follow_callback = parent->follow_callback;
  child->regions = parent->regions;
  child->wanted_regions = parent->wanted_regions;
  parent->log.forget();
  tool = child;
  fork_lock = nullptr;
  if (!child->active) return;
  first_facts(*child);
  for (Region& region : child->regions) region.text = child->log.text(region.name);
}

void write_last_facts(Tool& self) {
  struct Stage {
    const char* name;
    const StageTime& time;
  };
  for (const Stage& stage : {Stage{"collection", self.collection},
                             Stage{"transfer", self.transfer}, Stage{"analysis", self.analysis}}) {
    event::Timer timer{};
    timer.stage = self.log.text(stage.name);
    timer.total_ns = stage.time.ns;
    timer.count = stage.time.count;
    self.log.add(timer);
  }
  if (self.options.mode == Mode::values) self.values->close();
  self.code->close();
  self.fact("device_bytes", std::to_string(self.device_bytes_most));
  self.fact("pinned_bytes", std::to_string(self.pinned_bytes_most));
  self.fact("launches", std::to_string(self.launches));
  if (self.sampler) self.sampler->write_last();
  if (self.copies) self.copies->write_last();
  if (self.snapshots) self.snapshots->write_last();
  if (self.table_copies) self.fact("table_copies", std::to_string(self.table_copies));
  if (self.table_moves) self.fact("table_moves", std::to_string(self.table_moves));
  if (self.unpatched->parameters_read) {
    self.fact("tensor_maps", std::to_string(self.unpatched->maps_found));
    self.fact("parameters_read", std::to_string(self.unpatched->parameters_read));
  }
  if (self.lazy_functions) self.fact("lazy_functions", std::to_string(self.lazy_functions));
  const uint64_t lost = self.pieces->table().lost_bytes();
  if (lost) {
    self.note(2, std::to_string(lost) +
                     " bytes of memory lie too far from the rest to be told apart: accesses to "
                     "them count as outside");
  }
  if (self.pieces->slots().refused()) {
    self.note(2, "more pieces of memory lived at once than can be told apart: accesses to " +
                     std::to_string(self.pieces->slots().refused()) + " of them count as outside");
  }
}

}  // namespace

OwnWork::OwnWork() : count_(own_work) { ++count_; }
bool OwnWork::nested() { return own_work > 0; }

uint64_t thread_number() {
  static thread_local const Tool* owner = nullptr;
  static thread_local uint64_t number = 0;
  if (owner != tool) {  // a forked child's thread has another number
    owner = tool;
    number = static_cast<uint64_t>(syscall(SYS_gettid));
  }
  return number;
}

Tool::Tool(const Options& wanted) : options(wanted), process(getpid()) {
  values = std::make_unique<Values>(*this);
  code = std::make_unique<Code>(*this);
  pieces = std::make_unique<Pieces>(painting_of(options));
  unpatched = std::make_unique<Unpatched>();
  if (options.mode == Mode::copies && options.snapshot) {
    snapshots = std::make_unique<Snapshots>(*this);
  } else if (options.mode == Mode::copies) {
    copies = std::make_unique<Copies>(*this);
  }
  if (options.every && options.analyses()) {
    sampler = std::make_unique<Sampler>(*this);
    pieces->pause();
  }
  log.prepare(options.folder);
}

Tool::~Tool() = default;

void Tool::note(uint32_t level, const std::string& text) {
  event::Note event{};
  event.level = level;
  event.text = log.text(text);
  log.add(event, false);
}

void Tool::note_once(const char* key, uint32_t level, const std::string& text) {
  if (noted_.insert(key).second) note(level, text);
}

void Tool::note_tensor_copies() {
  // Mode touch has a patch for copies in that reads the map.
  const std::string copied = options.mode == Mode::touch ? "copied back" : "copied";
  note_once("tensor copies", 1,
            "kernels " + copied + " by tensor map (TMA), whose addresses the interface does not tell: " +
                (options.reports() == Analysis::touch
                     ? "what they touched that way is known by descriptor alone"
                     : "the bytes of these copies are not counted"));
}

void Tool::fact(const char* name, const std::string& value) {
  event::Fact event{};
  event.name = log.text(name);
  event.value = log.text(value);
  log.add(event, false);
}

const Function& Tool::function_of(const Sanitizer_LaunchData& data) {
  const char* raw = data.functionName ? data.functionName : "";
  Function& function = functions[data.function];
  function.patched = !patched.empty() && patched.count(data.module) != 0;
  if (function.name != 0 && function.raw == raw) return function;
  const std::string name = demangle(raw);
  function.raw = raw;
  function.name = log.text(name.empty() ? "unnamed" : name);
  function.code = unpatched->find(data.module, function.raw);
  function.matches = !options.kernels.is_set() || options.kernels.found_in(name) ||
                     options.kernels.found_in(function.raw);
  return function;
}

bool Tool::wants(const Function& function, uint64_t launch) {
  if (!options.analyses() || gpu_over || !function.patched || !function.matches) return false;
  if (launch < options.first || launch >= options.last) return false;
  if (!options.region.empty() && wanted_regions == 0) return false;
  if (sampler && !sampler->on()) return false;
  if (options.contexts > 1) {
    const Text region = regions.empty() ? 0 : regions.back().text;
    const auto context = std::make_tuple(function.name, operator_of_thread(), region);
    if (contexts_passed[context]++ % options.contexts) return false;
  }
  return passed++ % options.sample == 0;
}

std::shared_ptr<const Index> Tool::index() {
  if (!index_ || index_version_ != pieces->version()) {
    auto fresh = std::make_shared<Index>();
    fresh->spans = pieces->spans();
    index_ = fresh;
    index_version_ = pieces->version();
  }
  return index_;
}

void Tool::reclaim() {
  uint64_t epoch = UINT64_MAX, moment = UINT64_MAX;
  for (const auto& [context, workspace] : workspaces) workspace->oldest(epoch, moment);
  pieces->slots().reclaim(epoch, moment);
}

void Tool::piece_ended() {
  if ((++frees & 1023) == 0) reclaim();
}

Workspace& Tool::workspace(CUcontext context) {
  std::shared_ptr<Workspace>& workspace = workspaces[context];
  if (!workspace) workspace = std::make_shared<Workspace>(*this, context);
  return *workspace;
}

template <class Work>
void Tool::for_each_workspace(Work work) {
  std::vector<CUcontext> contexts;
  for (const auto& [context, workspace] : workspaces) contexts.push_back(context);
  for (const CUcontext context : contexts) {
    const auto found = workspaces.find(context);  // the lock is released while one works
    if (found == workspaces.end()) continue;
    const std::shared_ptr<Workspace> workspace = found->second;  // its context may end meanwhile
    work(*workspace);
  }
}

void Tool::drain_all(Lock& lock) {
  for_each_workspace([&](Workspace& workspace) { workspace.drain(lock); });
}

void Tool::stop_consumers(Lock& lock) {
  for_each_workspace([&](Workspace& workspace) { workspace.stop_consumer(lock); });
}

void Tool::took(int64_t device, int64_t pinned) {
  device_bytes += static_cast<uint64_t>(device);
  pinned_bytes += static_cast<uint64_t>(pinned);
  device_bytes_most = std::max(device_bytes_most, device_bytes);
  pinned_bytes_most = std::max(pinned_bytes_most, pinned_bytes);
}

void start() {
  static std::mutex once;
  std::lock_guard<std::mutex> guard(once);
  if (tool) return;
  OwnWork own;
  Options options;
  std::string error = read_options(options);
  tool = new Tool(options);
  tool->active = !options.folder.empty();
  if (!tool->active) return;
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  first_facts(*tool);
  if (error.empty() && options.subscribe) error = subscribe(*tool);
  if (!error.empty()) {
    Lock lock(tool->mutex);
    tool->log.give_up(error);
  }
}

Lock lock_soon() {
  Lock lock(tool->mutex, std::try_to_lock);
  for (int i = 0; i < kLockTries && !lock.owns_lock(); ++i) {
    const timespec little{0, 1'000'000};
    nanosleep(&little, nullptr);
    lock.try_lock();
  }
  return lock;
}

void finish_gpu() {
  if (!tool || !tool->active) return;
  OwnWork own;
  Lock lock = lock_soon();
  if (!lock.owns_lock() || tool->gpu_over) return;
  tool->drain_all(lock);
  tool->gpu_over = true;
  tool->stop_consumers(lock);  // they read pinned memory, which goes with the driver
  tool->values->files().settle(lock);  // so does this
  tool->log.flush();
}

void finish_log() {
  if (!tool || !tool->active) return;
  OwnWork own;
  Lock lock = lock_soon();
  if (!lock.owns_lock()) return;
  tool->gpu_over = true;
  for (const auto& [context, workspace] : tool->workspaces) workspace->give_up();
  if (tool->log.state() == Log::State::open) write_last_facts(*tool);
  tool->log.close();
}

}  // namespace accel_trace
