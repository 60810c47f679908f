// Mode copies, where a budget is given: in place of copies and fills, launches are looked at. Memory that
// a kernel gets by its arguments is copied on the GPU before the launch and compared after it, in the
// order of the launch's stream. Nothing is patched; the launch is waited for.
#pragma once

#include <cuda.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "compare.h"
#include "cubin.h"
#include "tool.h"

namespace accel_trace {

// How it is known that a kernel writes a piece.
enum class Writes : uint32_t {
  no,        // its type says that it is const: looked at, and not compared
  may,       // its type is a pointer to what is not const
  argument,  // it is an address in a structure, or of a kernel whose types are not known
};

struct Target {
  uint64_t address, size;
  Writes writes;
  uint64_t id;        // of the piece: another one may be there later
  uint64_t copy = 0;  // where in the buffer
};

class Snapshots {
 public:
  explicit Snapshots(Tool& tool) : tool_(tool) {}

  // Whether this launch is looked at. With the mutex, on the way into the driver; the same string for
  // the same kernel.
  bool wants(const std::string& kernel);
  // What it gets is not known: another launch of its calling context takes its turn. With the mutex.
  void not_known();
  // Asks the driver for the parameters of a library's kernel; without the mutex, as what follows.
  bool parameters_of(const void* kernel, std::vector<KernelCode::Parameter>& out) const;
  // Copies what fits into the budget, before the launch.
  void before(CUstream stream, std::vector<Target> targets);
  // Compares, waits and writes events, after the launch, where it was made.
  void after(bool launched, uint64_t launch);
  void forget(CUcontext context);  // it ends, and its memory with it; with the mutex
  void write_last();

 private:
  struct Device {
    CUfunction compare = nullptr;
    CUdeviceptr copies = 0, stage = 0, sums = 0;
  };
  Device* device();
  bool check(CUresult result, const char* what);
  bool copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  bool lives(const Target& target) const;
  void left_out(const Target& target);
  bool compare(const Target& target, uint64_t out);
  bool compare(uint64_t launch);

  Tool& tool_;
  std::map<CUcontext, Device> devices_;
  // Launches by calling context.
  std::map<std::tuple<const std::string*, Text, Text>, uint64_t> seen_;
  uint64_t* turn_ = nullptr;  // that of the launch that is under way
  std::atomic<bool> busy_{false};  // a launch is under way
  bool broken_ = false;
  std::thread::id thread_;  // whose launch is under way
  CUstream stream_ = nullptr;
  Device* at_ = nullptr;
  std::vector<Target> targets_;
  bool copying_ = false;  // into the buffer, in the stream
  uint64_t looked_ = 0, left_bytes_ = 0, captured_ = 0, others_ = 0, unknown_ = 0;
  uint64_t freed_ = 0, refused_ = 0;  // bytes: they ended meanwhile; the driver does not read them
};

// The pieces of memory of the GPU to which a launch's arguments point, each once. With the mutex.
std::vector<Target> targets_of(const std::string& kernel,
                               const std::vector<KernelCode::Parameter>& parameters,
                               void** arguments);

}  // namespace accel_trace
