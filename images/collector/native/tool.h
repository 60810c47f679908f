// The whole state of the library in one process, behind one mutex. Made once and never destroyed:
// callbacks may still come while the process ends. A forked child gets one of its own.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "consumer.h"
#include "log.h"
#include "options.h"
#include "pieces.h"
#include "sanitizer_api.h"
#include "watching.h"

namespace accel_trace {

class Copies;
class Sampler;
class Snapshots;
class Workspace;
struct KernelCode;
struct Unpatched;
using Lock = std::unique_lock<std::mutex>;

// What is known of a function, found again by its handle at every launch.
struct Function {
  std::string raw;
  Text name = 0;
  bool matches = true;  // the filter on names
  bool patched = false;
  const KernelCode* code = nullptr;  // what no patch sees of it; null: nothing
};

struct Region {
  std::string name;
  Text text = 0;
};

struct Tool {
  std::mutex mutex;
  std::condition_variable settled;  // a workspace is free again, or a row was closed

  Options options;
  Sanitizer api;
  Watching watching;
  std::unique_ptr<class Values> values;  // mode values
  std::unique_ptr<Copies> copies;        // mode copies
  std::unique_ptr<Snapshots> snapshots;  // null: kernels' memory is not compared
  std::unique_ptr<class Code> code;      // mode values
  Log log;
  std::unique_ptr<Pieces> pieces;
  std::unique_ptr<Unpatched> unpatched;
  std::unordered_map<CUcontext, std::shared_ptr<Workspace>> workspaces;
  std::unordered_map<CUcontext, uint32_t> devices;
  std::unordered_map<CUmodule, CUcontext> modules;  // that are loaded
  std::unordered_set<CUmodule> patched;             // of them
  std::unique_ptr<Sampler> sampler;  // null: nothing is sampled, all modules are patched
  std::unordered_set<CUcontext> loaded;   // contexts that have our patches; with the lock of those
  std::unordered_map<CUfunction, Function> functions;
  std::vector<Region> regions;            // innermost last
  uint32_t wanted_regions = 0;            // how many of them the filter names
  StageTime collection, transfer, analysis;

  pid_t process;            // that this is the tool of: a vfork's child is another
  bool active = false;      // there is a folder to write to
  bool gpu_over = false;    // the process ends: nothing is analysed any more
  uint64_t launches = 0;
  uint64_t closed = 0;      // rows, so far
  uint64_t passed = 0;      // launches that passed all filters but the sample
  // Of those, how many each calling context had: kernel, operator, region.
  std::map<std::tuple<Text, Text, Text>, uint64_t> contexts_passed;
  uint64_t operators = 0;
  uint64_t frees = 0;
  uint64_t dropped_accesses = 0;
  uint64_t lazy_functions = 0;
  uint64_t table_copies = 0;  // to the GPU, between kernels
  uint64_t table_moves = 0;   // of a page table from one stream to another, each after a wait
  uint64_t device_bytes = 0, pinned_bytes = 0;            // what the tool takes now
  uint64_t device_bytes_most = 0, pinned_bytes_most = 0;  // the most it took
  void (*stack_callback)(uint64_t) = nullptr;
  void (*follow_callback)(int) = nullptr;  // has the framework's blocks told (1) or not (0)

  explicit Tool(const Options& wanted);
  ~Tool();
  void note(uint32_t level, const std::string& text);
  void note_once(const char* key, uint32_t level, const std::string& text);
  void note_tensor_copies();
  void fact(const char* name, const std::string& value);
  const Function& function_of(const Sanitizer_LaunchData& data);
  bool wants(const Function& function, uint64_t launch);
  std::shared_ptr<const Index> index();  // of the pieces as they are now
  void reclaim();                        // what no row in use anywhere can have seen
  void piece_ended();                    // now and then: its slots may be used again
  Workspace& workspace(CUcontext context);
  void drain_all(Lock& lock);
  void stop_consumers(Lock& lock);
  void took(int64_t device, int64_t pinned);
  bool recording() const { return active && log.writable(); }
  bool watches_calls() const { return options.analyses() || snapshots; }  // of the driver

 private:
  template <class Work>
  void for_each_workspace(Work work);

  std::set<std::string> noted_;
  std::shared_ptr<const Index> index_;
  uint64_t index_version_ = 0;
};

extern Tool* tool;  // null until the library starts

// Calls the Sanitizer without the mutex: the driver may hold locks of its own around a callback, and
// then two threads would wait for each other.
template <class Call>
SanitizerResult unlocked(Lock& lock, Call call) {
  lock.unlock();
  const SanitizerResult result = call();
  lock.lock();
  return result;
}

void start();        // once: reads the environment, subscribes
void finish_gpu();   // drains what the GPUs hold; legal outside of callbacks only
void finish_log();   // timers, facts, and the end of the log
Lock lock_soon();    // for the end of a process; owns nothing when the mutex is not to be had

// While one lives, callbacks on this thread are of the tool's own making, and are not reported.
class OwnWork {
 public:
  OwnWork();
  ~OwnWork() { --count_; }
  OwnWork(const OwnWork&) = delete;
  OwnWork& operator=(const OwnWork&) = delete;
  bool outermost() const { return count_ == 1; }
  static bool nested();  // whether one lives on this thread

 private:
  uint32_t& count_;  // of this thread
};

void on_callback(void* userdata, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id,
                 const void* data);
void write_stack(uint64_t launch);  // the native stack, then the callback's; without the mutex
Text operator_of_thread();          // the innermost, 0 for none; with the mutex
uint64_t thread_number();

}  // namespace accel_trace
