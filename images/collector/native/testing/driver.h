// A synthetic CUDA driver and Sanitizer, for tests on machines without a GPU. It is no part of
// the tool. Memory of the "GPU" is the host's; a stream is a list of work that runs only when
// somebody waits for it, so that the order of uploads and kernels is really tested; a kernel is a
// list of accesses, for each of which the patch is called that was inserted into its module.
// The library of this file is named libsanitizer-public.so and has the Sanitizer's functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace synthetic {

enum class Type { global, shared, remote, local, async, bulk_load, bulk_store, bulk_reduce,
                  tensor_load, tensor_store, warp };

// A flag of our own: the store has data, and is made, in memory that is really there.
constexpr uint32_t kStores = 0x100;

struct LaneAccess {
  uint32_t lane;
  uint64_t pc;
  uint64_t address;
  bool told;              // of a store: with its value
  uint64_t value[2];      // what memory holds before a read, what a store brings
  bool masked;            // of a read: only the bytes of `mask` are used
  uint32_t mask;
};

struct Accesses {  // `count` of them, by one lane each; `warp`: one, by these
  Type type;
  uint32_t flags;  // as the Sanitizer's; the patch must not need the data pointer
  uint32_t size;
  uint64_t base;
  uint64_t stride;
  uint64_t count;
  std::vector<LaneAccess> lanes = {};
  uint32_t block = 0, first_thread = 0;
};

struct Argument {  // of a kernel: zeros, but for images of tensor maps at some of its bytes
  uint64_t size;
  std::vector<std::pair<uint64_t, int>> maps;  // byte, number of the map
  uint64_t pointer = 0;  // its first word
};

struct Kernel {
  int module;
  std::string name;
  std::vector<Accesses> accesses;
  std::vector<Argument> arguments;
};

struct Memory {
  uint64_t address;
  uint64_t size;
  uint32_t flags = 0;
};

#define SYNTHETIC __attribute__((visibility("default")))

SYNTHETIC void make_context(int context, int device);
SYNTHETIC void destroy_context(int context);
SYNTHETIC void break_context(int context);  // as after an illegal address
SYNTHETIC void load_module(int module, int context, bool refuses, const std::string& cubin);
SYNTHETIC void unload_module(int module);
SYNTHETIC void load_lazily(int module, int functions);
SYNTHETIC void make_stream(int stream, int context);
SYNTHETIC void destroy_stream(int stream);
SYNTHETIC void allocate(int context, Memory memory, const char* how);  // device, host, async
SYNTHETIC void release(int context, Memory memory, const char* how);   // and async_done
SYNTHETIC void launch(int stream, const Kernel& kernel, bool refused);
SYNTHETIC void make_map(int map, const std::vector<uint64_t>& image);
// As the driver's own functions are reported that find and launch kernels.
// With a cubin: its module is loaded inside of the launch, as the driver does with libraries.
SYNTHETIC void call_launch(int stream, const Kernel& kernel, const std::string& way,
                           const std::string& cubin = "");
SYNTHETIC void begin_capture(int stream, int graph);  // a second stream of one graph joins it
SYNTHETIC void end_capture(int graph);
SYNTHETIC void instantiate(int graph);  // this thread's next launch_graph launches it
// `how`: refuses (the data of launches), upload, or fails: the nodes are told of, and nothing runs.
SYNTHETIC void launch_graph(int stream, const std::vector<Kernel>& nodes, const std::string& how);
SYNTHETIC void copy(int stream, uint64_t to, uint64_t from, uint64_t size, int direction,
                    bool asynchronous);
SYNTHETIC void set(int stream, uint64_t address, uint64_t width, uint64_t height, uint32_t element,
                   uint32_t value);
// The same, and the bytes move, while other streams go on; `called`: through a function of the driver
// that is reported. With `refused` or `fails` in its place nothing moves: that function fails at once,
// or after the copy was told of.
SYNTHETIC void move(int stream, uint64_t to, uint64_t from, uint64_t size, int direction,
                    const std::string& how);
SYNTHETIC void fill(int stream, uint64_t address, uint64_t width, uint32_t element, uint32_t value,
                    bool called);
SYNTHETIC void wait_for_stream(int stream);
SYNTHETIC void wait_for_context(int context);
SYNTHETIC void run(int stream, int steps);  // some of its work, and nobody is told; -1: all
// Another thread does `work` when `place` is reached next, which waits for it; not for ever: it may
// wait for who is there. Places: begun (a launch was told of, and is not submitted), waited (for a
// context, and nobody was told), instantiating; in the tool's calls wait, patch, unpatch.
SYNTHETIC void meanwhile(const std::string& place, std::function<void()> work);
SYNTHETIC void join();  // those threads
SYNTHETIC void skip(uint64_t ms);  // the monotonic clock goes on by so much, at once
SYNTHETIC uint64_t told();  // callbacks so far, but those of memory, modules and lookups
SYNTHETIC int taken();                      // pieces of memory that the tool has
SYNTHETIC int own_callbacks();              // how often the tool's own work was reported back to it
SYNTHETIC int waits_in_nodes();             // how often the tool waited while nodes were launched

}  // namespace synthetic
