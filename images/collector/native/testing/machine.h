// The synthetic machine's inside, shared by driver.cc, kernels.cc and sanitizer.cc.
#pragma once

#include <sanitizer.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "driver.h"

namespace synthetic {

using Patches = std::map<Sanitizer_InstructionId, void*>;

struct Context {
  int device = 0;
  std::atomic<bool> broken{false};
  bool patches = false;  // our file was loaded
  std::atomic<std::thread::id> patching{};  // the thread that changes patches in it
  CUcontext handle() { return reinterpret_cast<CUcontext>(this); }
};

struct Module {
  Context* context = nullptr;
  bool refuses = false, gone = false;
  std::string cubin;
  Patches asked, active;
  std::map<std::string, std::unique_ptr<std::string>> functions;
  CUmodule handle() { return reinterpret_cast<CUmodule>(this); }
};

struct Stream {
  Context* context = nullptr;
  std::atomic<bool> gone{false};
  CUgraph graph = nullptr;  // that is captured in it
  uint64_t capture = 0;
  std::mutex list;
  std::recursive_mutex running;
  bool working = false;  // one of its works is under way; with `running`
  std::deque<std::function<void()>> queue;
  void push(std::function<void()> work);
  void run_one();
  void run_all();
  void others_run();  // as streams of a GPU do meanwhile
  void end();         // with its context: what it has not done yet it never does
  CUstream handle() { return reinterpret_cast<CUstream>(this); }
  Sanitizer_StreamHandle sanitizer_handle() {
    return reinterpret_cast<Sanitizer_StreamHandle>(this);
  }
};

struct Launch {
  void* userdata = nullptr;
  bool refuses_data = false;
};

struct Machine {
  std::recursive_mutex mutex;
  Sanitizer_CallbackFunc callback = nullptr;
  void* userdata = nullptr;
  std::map<int, bool> enabled;  // domains
  std::map<std::pair<int, uint32_t>, bool> callbacks;  // that differ from their domain
  std::atomic<uint64_t> told{0};  // callbacks that came, but those of memory, modules and lookups
  std::map<int, std::vector<uint64_t>> maps;  // images of tensor maps
  std::set<std::string> names;                // of kernels, whose places are their handles
  std::map<void*, std::vector<size_t>> parameters;  // of kernels by their handles, in bytes
  uint64_t captures = 0;
  std::map<int, bool> instantiated;  // graphs, and whether modules were patched then
  std::map<int, std::unique_ptr<Context>> contexts;
  std::map<int, std::unique_ptr<Module>> modules;
  std::map<int, std::unique_ptr<Stream>> streams;
  std::map<uint64_t, size_t> memory;  // what sanitizerAlloc gave out
  std::map<uint64_t, size_t> programs;  // what the program took itself
  std::map<uint64_t, Context*> owners;  // of what the tool took: it goes with the context
  std::thread beside;  // it instantiates a graph
  std::map<std::string, std::function<void()>> meanwhile;  // by the place at which it is done
  std::vector<std::thread> others;                         // that did it
  std::atomic<int> own_callbacks{0};
  std::atomic<bool> in_node{false};      // a graph is being put together
  std::atomic<int> waits_in_nodes{0};    // the tool waited or took memory meanwhile
  std::recursive_mutex driver;
};

std::vector<Stream*> streams_of(const Context* context);  // all where it is null

// With SYNTHETIC_LOCKS, one lock is held around every callback and wanted by every function of the
// Sanitizer that the tool calls, as a driver's may be.
std::unique_lock<std::recursive_mutex> driver_lock();

// In a function that waits or takes memory: a tool had better not do that within a graph.
std::unique_lock<std::recursive_mutex> driver_lock_to_wait();

Machine& machine();
void execute(const Patches& patches, void* userdata, const std::vector<Accesses>& accesses);
void launch_nodes(int stream, const std::vector<Kernel>& nodes, const std::string& how);
inline thread_local int instance = 0;  // of a graph: it is launched next
void call(Sanitizer_CallbackDomain domain, uint32_t id, const void* data);
void reach(const std::string& place);
bool listens(Sanitizer_CallbackDomain domain, uint32_t id);
void free_taken(Context& context);  // what the tool took with it
void use(int stream);  // its context is this thread's from now on
Context& current();
void destroy_meanwhile();  // another thread, the context that SYNTHETIC_DESTROYS names; once
void call_driver(uint32_t id, const void* arguments, const char* name, const std::function<void()>& work,
                 CUresult result = CUDA_SUCCESS);

}  // namespace synthetic
