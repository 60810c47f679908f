// An allocator of managed memory for a pool of PyTorch's (torch.cuda.MemPool), with a limit.
//
// It never hands out more than the card has free, less a reserve: a program that oversubscribes
// managed memory can hang the GPU for everybody on it. The CUDA runtime is the one that PyTorch has
// loaded, found by name, so that nothing is linked and any CUDA version will do.
#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

// Last: it makes __noinline__ a macro, which libstdc++ 13 spells out as an attribute.
#include <cuda_runtime_api.h>

namespace {

struct Runtime {
  decltype(&cudaFree) free_memory;
  decltype(&cudaMemGetInfo) info;
  decltype(&cudaSetDevice) set_device;
  decltype(&cudaGetDevice) get_device;
  cudaError_t (*managed)(void**, size_t, unsigned int);
  bool whole;
};

void* find(const char* name) {
  if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
  for (const char* file : {"libcudart.so.13", "libcudart.so.12"}) {
    if (void* handle = dlopen(file, RTLD_NOLOAD | RTLD_LAZY)) {
      if (void* found = dlsym(handle, name)) return found;
    }
  }
  return nullptr;
}

template <typename Function>
bool bind(Function& function, const char* name) {
  function = reinterpret_cast<Function>(find(name));
  return function != nullptr;
}

const Runtime& runtime() {
  static const Runtime it = [] {
    Runtime found{};
    found.whole = bind(found.free_memory, "cudaFree") && bind(found.info, "cudaMemGetInfo") &&
                  bind(found.set_device, "cudaSetDevice") &&
                  bind(found.get_device, "cudaGetDevice") &&
                  bind(found.managed, "cudaMallocManaged");
    return found;
  }();
  return it;
}

struct Piece {
  uint64_t address;
  uint64_t size;
  int device;
  bool live;
};

struct Budget {
  bool known = false;
  uint64_t free_at_first = 0;  // bytes that the card had free before the first piece
  uint64_t held = 0;           // bytes of live pieces
};

struct State {
  std::mutex lock;
  std::vector<Piece> pieces;            // by number, in the order of allocation
  std::map<uint64_t, size_t> live;      // number by address
  std::map<int, Budget> budgets;        // by device
  uint64_t reserve = uint64_t{1} << 30;
  bool unlimited = false;
  uint64_t refused = 0;                 // bytes of the last request that was refused
  uint64_t room = 0;                    // bytes that there would have been
};

State& state() {
  static State* const it = new State;  // PyTorch frees while the process ends
  return *it;
}

// Bytes that may still be handed out on the current device. Managed pages that are resident count
// in what the card reports as used, so what others took is the rest of the drop.
uint64_t room(Budget& budget, uint64_t free_now) {
  if (!budget.known) {
    budget.known = true;
    budget.free_at_first = free_now;
  }
  const uint64_t drop = budget.free_at_first - std::min(free_now, budget.free_at_first);
  const uint64_t others = drop - std::min(drop, budget.held);
  const uint64_t taken = others + budget.held + state().reserve;
  return budget.free_at_first - std::min(taken, budget.free_at_first);
}

class OnDevice {
 public:
  explicit OnDevice(int device) {
    runtime().get_device(&before_);
    if (device != before_) runtime().set_device(device);
    changed_ = device != before_;
  }
  ~OnDevice() {
    if (changed_) runtime().set_device(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace

extern "C" {

// PyTorch's signature for pluggable allocators. Null: PyTorch reports an out-of-memory error.
void* accel_trace_managed_alloc(ssize_t bytes, int device, cudaStream_t) {
  if (bytes <= 0 || !runtime().whole) return nullptr;
  const uint64_t size = static_cast<uint64_t>(bytes);
  State& all = state();
  const std::lock_guard<std::mutex> held(all.lock);
  const OnDevice there(device);
  size_t free_now = 0;
  size_t total = 0;
  if (runtime().info(&free_now, &total) != cudaSuccess) return nullptr;
  Budget& budget = all.budgets[device];
  const uint64_t left = room(budget, free_now);
  if (size > left && !all.unlimited) {
    all.refused = size;
    all.room = left;
    return nullptr;
  }
  void* memory = nullptr;
  if (runtime().managed(&memory, size, cudaMemAttachGlobal) != cudaSuccess) return nullptr;
  budget.held += size;
  const uint64_t address = reinterpret_cast<uint64_t>(memory);
  all.live[address] = all.pieces.size();
  all.pieces.push_back({address, size, device, true});
  return memory;
}

void accel_trace_managed_free(void* memory, ssize_t, int, cudaStream_t) {
  State& all = state();
  const std::lock_guard<std::mutex> held(all.lock);
  const auto found = all.live.find(reinterpret_cast<uint64_t>(memory));
  if (found == all.live.end()) return;
  Piece& piece = all.pieces[found->second];
  const OnDevice there(piece.device);
  runtime().free_memory(memory);
  piece.live = false;
  Budget& budget = all.budgets[piece.device];
  budget.held -= std::min(piece.size, budget.held);
  all.live.erase(found);
}

// Bytes to leave free, and whether to hand out more than the card has.
void accel_trace_managed_limit(uint64_t reserve, int unlimited) {
  const std::lock_guard<std::mutex> held(state().lock);
  state().reserve = reserve;
  state().unlimited = unlimited != 0;
}

// 1 when a live piece holds the address.
int accel_trace_managed_inside(uint64_t address) {
  State& all = state();
  const std::lock_guard<std::mutex> held(all.lock);
  auto above = all.live.upper_bound(address);
  if (above == all.live.begin()) return 0;
  const Piece& piece = all.pieces[std::prev(above)->second];
  return address < piece.address + piece.size ? 1 : 0;
}

uint64_t accel_trace_managed_pieces() {
  const std::lock_guard<std::mutex> held(state().lock);
  return state().pieces.size();
}

// The piece of a number, in the order of allocation from 0: 1 alive, 0 gone, -1 no such number.
int accel_trace_managed_piece(uint64_t number, uint64_t* address, uint64_t* size) {
  const std::lock_guard<std::mutex> held(state().lock);
  if (number >= state().pieces.size()) return -1;
  const Piece& piece = state().pieces[number];
  *address = piece.address;
  *size = piece.size;
  return piece.live ? 1 : 0;
}

// The last request that was refused, and what was left then; 0 where none was.
uint64_t accel_trace_managed_refused(uint64_t* left) {
  const std::lock_guard<std::mutex> held(state().lock);
  *left = state().room;
  return state().refused;
}

}  // extern "C"
