// PyTorch's operators and its CUDA allocator, reported as they happen.
//
// Compiled against the headers of the PyTorch that the target uses (torch_native.py), loaded into
// the target by ctypes. What it sees goes to the accel_trace_* functions of the injection library,
// found by name; without that library only the listener and the numbered pieces (uvm/replay.py)
// are served. PASTA, section 3.1: operators by a global callback, tensors by the allocator.
//
// A tensor ends at FREE_COMPLETED, not at FREE_REQUESTED: between the two the block may still be
// read by work on another stream (record_stream), and the allocator does not hand it out. On the
// stream that allocated it both come together. So the running total is the allocator's "active"
// bytes; its "allocated" bytes fall a little earlier where record_stream is used.
//
// The allocator calls with its lock held, perhaps with the GIL held too: nothing here takes the
// GIL, calls CUDA, or calls PyTorch.
#include <ATen/record_function.h>

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#ifndef ACCEL_TRACE_NO_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include "blocks.h"

namespace {

using TensorFunction = void (*)(int, uint64_t, uint64_t, uint64_t, uint64_t, int, uint64_t);
using OperatorFunction = void (*)(int, const char*);
using Listener = void (*)(int, const char*, uint64_t);
using Inside = int (*)(uint64_t);

constexpr uint64_t kLarge = 1 << 20;  // pieces above this are numbered (PASTA, section on UVM)

// Functions of the injection library. It may be loaded late, at the first CUDA call.
struct Library {
  std::atomic<TensorFunction> tensor{nullptr};
  std::atomic<OperatorFunction> op{nullptr};
  std::atomic<uint32_t> misses{0};

  static void* find(const char* name) {
    if (void* found = dlsym(RTLD_DEFAULT, name)) return found;
    const char* path = std::getenv("CUDA_INJECTION64_PATH");
    void* handle = path ? dlopen(path, RTLD_NOLOAD | RTLD_LAZY) : nullptr;
    return handle ? dlsym(handle, name) : nullptr;
  }

  void look() {
    tensor = reinterpret_cast<TensorFunction>(find("accel_trace_tensor"));
    op = reinterpret_cast<OperatorFunction>(find("accel_trace_operator"));
  }

  // Looking costs microseconds, so a library that is not there is looked for seldom.
  OperatorFunction operators() {
    OperatorFunction found = op.load(std::memory_order_acquire);
    if (found == nullptr && misses.fetch_add(1, std::memory_order_relaxed) % 256 == 0) {
      look();
      found = op.load();
    }
    return found;
  }
};

// Never destroyed: the allocator still frees while the process ends.
Library& library() {
  static Library* const it = new Library;
  return *it;
}

thread_local std::string last_error;
struct Open {
  uint64_t number;
  const char* name;  // lives as long as the operator is open
};
thread_local std::vector<Open> open_operators;  // reported and not ended
std::mutex report_lock;
uint64_t reported_operators = 0;
std::atomic<Listener> listener{nullptr};
std::atomic<uint64_t> outermost{0};
thread_local int depth = 0;

struct Entered : at::ObserverContext {
  Entered(bool told, bool first, uint64_t at) : reported(told), outer(first), index(at) {}
  bool reported;
  bool outer;
  uint64_t index;
};

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  // The way into a dispatch mode, such as our own, is no operator of the program.
  if (std::strcmp(function.name(), "PythonDispatchMode") == 0) return nullptr;
  const OperatorFunction report = library().operators();
  const bool outer = depth++ == 0;
  const uint64_t index = outer ? outermost.fetch_add(1) : 0;
  if (report != nullptr) {
    // The library counts operators as they arrive; the lock keeps this count the same as its.
    const std::lock_guard<std::mutex> held(report_lock);
    report(1, function.name());
    open_operators.push_back({reported_operators++, function.name()});
  }
  if (outer) {
    if (const Listener call = listener.load()) call(1, function.name(), index);
  }
  return std::make_unique<Entered>(report != nullptr, outer, index);
}

void leave(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* entered = static_cast<Entered*>(context);
  if (entered == nullptr) return;
  if (depth > 0) --depth;
  if (entered->outer) {
    if (const Listener call = listener.load()) call(0, function.name(), entered->index);
  }
  const OperatorFunction report = library().op.load();
  if (entered->reported && report != nullptr) {
    report(0, function.name());
    if (!open_operators.empty()) open_operators.pop_back();
  }
}

// Large tensors by number, for the replay: `inside` says which addresses count.
struct Piece {
  uint64_t address;
  uint64_t size;
  bool live;
};

struct Pieces {
  std::mutex lock;
  std::atomic<Inside> inside{nullptr};
  std::vector<Piece> all;

  void begin(uint64_t address, uint64_t size) {
    const Inside counts = inside.load();
    if (counts == nullptr || size <= kLarge || counts(address) == 0) return;
    const std::lock_guard<std::mutex> held(lock);
    all.push_back({address, size, true});
  }

  void end(uint64_t address) {
    if (inside.load() == nullptr) return;
    const std::lock_guard<std::mutex> held(lock);
    for (auto piece = all.rbegin(); piece != all.rend(); ++piece) {
      if (piece->address == address && piece->live) {
        piece->live = false;
        return;
      }
    }
  }
};

Pieces& pieces() {
  static Pieces* const it = new Pieces;
  return *it;
}

#ifndef ACCEL_TRACE_NO_CUDA
namespace allocator = c10::cuda::CUDACachingAllocator;
using Entry = allocator::TraceEntry;

struct Device {
  accel_trace::Blocks blocks;
  uint64_t allocs = 0;
  uint64_t frees = 0;
  uint64_t requested = 0;
};

struct Devices {
  std::mutex lock;
  bool attached = false;
  std::vector<std::unique_ptr<Device>> all;

  Device& at(int index) {
    while (all.size() <= static_cast<size_t>(index)) all.push_back(std::make_unique<Device>());
    return *all[static_cast<size_t>(index)];
  }
};

Devices& devices() {
  static Devices* const it = new Devices;
  return *it;
}

void tell(int alloc, int index, const Device& device, uint64_t address, uint64_t size,
          uint64_t stream) {
  if (const TensorFunction report = library().tensor.load()) {
    report(alloc, address, size, device.blocks.allocated, device.blocks.reserved, index, stream);
  }
}

void begin(int index, Device& device, uint64_t address, uint64_t size, uint64_t stream) {
  ++device.allocs;
  tell(1, index, device, address, size, stream);
  pieces().begin(address, size);
}

void end(int index, Device& device, uint64_t address, uint64_t stream) {
  const uint64_t block = device.blocks.give(address);
  if (block == 0) return;
  ++device.frees;
  tell(0, index, device, address, block, stream);
  pieces().end(address);
}

// What an entry of the trace says.
struct Change {
  Entry::Action action;
  int index;
  uint64_t address, size, stream;
};

void apply(const Change& change) {
  const auto& [action, index, address, size, stream] = change;
  Device& device = devices().at(index);
  switch (action) {
    case Entry::SEGMENT_ALLOC:
      device.blocks.add(address, size, false);
      break;
    case Entry::SEGMENT_MAP:
      device.blocks.add(address, size, true);
      break;
    case Entry::SEGMENT_FREE:
    case Entry::SEGMENT_UNMAP:
      device.blocks.remove(address, size);
      break;
    case Entry::ALLOC: {
      const uint64_t block = device.blocks.take(address, size);
      device.requested += size;
      begin(index, device, address, block, stream);
      break;
    }
    case Entry::FREE_COMPLETED:
      end(index, device, address, stream);
      break;
    default:  // FREE_REQUESTED: see above; OOM and SNAPSHOT are no allocations
      break;
  }
}

// Between iterations that are analysed the library wants nothing told: entries are passed by, and when
// it listens again the allocator's snapshot says what there is.
enum class Following { no, catching_up, yes };
std::atomic<Following> following{Following::yes};
std::vector<Change>& late() {  // that came after the snapshot was taken; with the devices' lock
  static auto* const it = new std::vector<Change>;
  return *it;
}

void traced(const Entry& entry) {
  if (following.load(std::memory_order_relaxed) == Following::no || entry.device_ < 0) return;
  const Change change{entry.action_, entry.device_, static_cast<uint64_t>(entry.addr_),
                      static_cast<uint64_t>(entry.size_),
                      (uint64_t)(uintptr_t)entry.stream_};  // its type differs by version
  const std::lock_guard<std::mutex> held(devices().lock);
  if (following.load() == Following::catching_up) {
    // An entry of its own says when a device's part is read: what came before is in it.
    auto& changes = late();
    if (change.action == Entry::SNAPSHOT) {
      changes.erase(std::remove_if(changes.begin(), changes.end(),
                                   [&](const Change& one) { return one.index == change.index; }),
                    changes.end());
    } else {
      changes.push_back(change);
    }
  } else {
    apply(change);
  }
}

// What the allocator holds of a device, by address.
struct Held {
  struct Segment {
    uint64_t size;
    bool mapped;
  };
  struct Block {
    uint64_t size, stream;
  };
  std::map<uint64_t, Segment> segments;
  std::map<uint64_t, Block> blocks;
};

void become(int index, const Held& held) {
  Device& device = devices().at(index);
  std::vector<uint64_t> ended;
  for (const auto& [address, size] : device.blocks.handed_out()) {
    const auto now = held.blocks.find(address);
    if (now == held.blocks.end() || now->second.size != size) ended.push_back(address);
  }
  for (const uint64_t address : ended) end(index, device, address, 0);
  accel_trace::Blocks fresh;
  fresh.surprises = device.blocks.surprises;
  for (const auto& [address, segment] : held.segments) {
    fresh.add(address, segment.size, segment.mapped);
  }
  for (const auto& [address, size] : device.blocks.handed_out()) fresh.keep(address, size);
  device.blocks = std::move(fresh);
  for (const auto& [address, block] : held.blocks) {
    if (device.blocks.handed_out(address)) continue;
    device.blocks.keep(address, block.size);
    begin(index, device, address, block.size, block.stream);
  }
}

void follow(int on) {
  {
    const std::lock_guard<std::mutex> held(devices().lock);
    if (!on || following.load() != Following::no) {
      if (!on) following = Following::no;
      return;
    }
    following = Following::catching_up;
  }
  std::map<int, Held> found;
  const auto snapshot = allocator::snapshot();
  for (const auto& segment : snapshot.segments) {
    Held& held = found[segment.device];
    uint64_t address = static_cast<uint64_t>(segment.address);
    held.segments[address] = {segment.total_size, segment.is_expandable};
    for (const auto& block : segment.blocks) {
      if (block.allocated || block.active) {
        held.blocks[address] = {block.size, (uint64_t)(uintptr_t)segment.stream};
      }
      address += block.size;
    }
  }
  const std::lock_guard<std::mutex> held(devices().lock);
  for (size_t i = 0; i < devices().all.size(); ++i) found[static_cast<int>(i)];
  for (const auto& [index, what] : found) become(index, what);
  for (const Change& change : late()) apply(change);
  late().clear();
  following = Following::yes;
}

// The same, whatever the allocator says: the target goes on, and the totals at its end do not fit.
void follow_or_go_on(int on) {
  try {
    follow(on);
  } catch (const std::exception&) {
    const std::lock_guard<std::mutex> held(devices().lock);
    for (const Change& change : late()) apply(change);
    late().clear();
    following = Following::yes;
  }
}

// What the allocator holds already: usually nothing, as this is called when CUDA starts.
void seed() {
  const auto snapshot = allocator::snapshot();
  const std::lock_guard<std::mutex> held(devices().lock);
  for (const auto& segment : snapshot.segments) {
    Device& device = devices().at(segment.device);
    const uint64_t stream = (uint64_t)(uintptr_t)segment.stream;
    uint64_t address = static_cast<uint64_t>(segment.address);
    device.blocks.add(address, segment.total_size, segment.is_expandable);
    for (const auto& block : segment.blocks) {
      if (block.allocated || block.active) {
        device.blocks.keep(address, block.size);
        device.requested += block.requested_size;
        begin(segment.device, device, address, block.size, stream);
      }
      address += block.size;
    }
  }
}
#endif

}  // namespace

extern "C" {

// Why the last call on this thread failed.
const char* accel_trace_torch_error() { return last_error.c_str(); }

// 1 when this was compiled with CUDA.
int accel_trace_torch_has_cuda() {
#ifdef ACCEL_TRACE_NO_CUDA
  return 0;
#else
  return 1;
#endif
}

// Follow operators from now on, `backward` 1: those of the backward pass by their own names too.
int accel_trace_torch_operators(int backward) {
  static std::atomic<bool> done{false};
  if (done.exchange(true)) return 0;
  try {
    library().look();
    // The library counts anew in a forked child, and a lock that a lost thread held is no use.
    pthread_atfork([] { report_lock.lock(); }, [] { report_lock.unlock(); },
                   [] {
                     reported_operators = 0;
                     open_operators.clear();
                     report_lock.unlock();
                   });
    std::unordered_set<at::RecordScope, std::hash<at::RecordScope>> scopes{
        at::RecordScope::FUNCTION};
    if (backward != 0) scopes.insert(at::RecordScope::BACKWARD_FUNCTION);
    at::addGlobalCallback(
        at::RecordFunctionCallback(&enter, &leave).needsInputs(false).scopes(scopes));
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    done = false;
    return 2;
  }
}

// The number of the innermost operator that is open on this thread, as in OperatorStart; -1: none.
int64_t accel_trace_torch_operator() {
  return open_operators.empty() ? -1 : static_cast<int64_t>(open_operators.back().number);
}

// Its name, null for none.
const char* accel_trace_torch_operator_name() {
  return open_operators.empty() ? nullptr : open_operators.back().name;
}

// Follow the allocator from now on: 0 done, 1 CUDA has not started, 2 the allocator cannot be
// followed (cudaMallocAsync, a pluggable one).
int accel_trace_torch_allocator() {
#ifdef ACCEL_TRACE_NO_CUDA
  last_error = "this PyTorch was built without CUDA";
  return 2;
#else
  try {
    auto* const current = allocator::get();
    // Before CUDA starts there is no device's allocator, and attaching would do nothing.
    if (current == nullptr || !current->initialized()) return 1;
    {
      const std::lock_guard<std::mutex> held(devices().lock);
      if (devices().attached) return 0;
      devices().attached = true;
    }
    library().look();
    seed();
    allocator::attachAllocatorTraceTracker(&traced);
    using Follow = void (*)(int);
    const auto listen =
        reinterpret_cast<void (*)(Follow)>(Library::find("accel_trace_set_follow_callback"));
    if (listen) listen(&follow_or_go_on);
    return 0;
  } catch (const std::exception& error) {
    last_error = error.what();
    const std::lock_guard<std::mutex> held(devices().lock);
    devices().attached = false;
    return 2;
  }
#endif
}

// What was seen on a device: blocks handed out, blocks back, bytes now, reserved now, surprises,
// bytes asked for in all. Returns 0, or 1 for a device that was not seen.
int accel_trace_torch_totals(int index, uint64_t* totals) {
#ifndef ACCEL_TRACE_NO_CUDA
  follow_or_go_on(1);
  const std::lock_guard<std::mutex> held(devices().lock);
  if (index < 0 || static_cast<size_t>(index) >= devices().all.size()) return 1;
  const Device& device = *devices().all[static_cast<size_t>(index)];
  totals[0] = device.allocs;
  totals[1] = device.frees;
  totals[2] = device.blocks.allocated;
  totals[3] = device.blocks.reserved;
  totals[4] = device.blocks.surprises;
  totals[5] = device.requested;
  return 0;
#else
  (void)index;
  (void)totals;
  return 1;
#endif
}

// Call `call(start, name, index)` at the outermost operators, counted from 0; null: no more.
void accel_trace_torch_listen(Listener call) {
  outermost = 0;
  listener = call;
}

// Number the tensors above 1 MiB for which `inside` says 1, from 0; null: stop and forget.
void accel_trace_torch_number(Inside inside) {
  Pieces& known = pieces();
  const std::lock_guard<std::mutex> held(known.lock);
  known.all.clear();
  known.inside = inside;
}

// Tensors numbered so far.
uint64_t accel_trace_torch_pieces() {
  const std::lock_guard<std::mutex> held(pieces().lock);
  return pieces().all.size();
}

// The tensor of a number: 1 when it is alive (then address and size are set), else 0.
int accel_trace_torch_piece(uint64_t number, uint64_t* address, uint64_t* size) {
  const std::lock_guard<std::mutex> held(pieces().lock);
  if (number >= pieces().all.size()) return 0;
  const Piece& piece = pieces().all[number];
  *address = piece.address;
  *size = piece.size;
  return piece.live ? 1 : 0;
}

}  // extern "C"
