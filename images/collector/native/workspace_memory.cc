// Workspace: memory of the GPU, and the streams' copies of the page table.
#include "workspace.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace accel_trace {
namespace {

constexpr size_t kDataBytes = 4 << 20;    // for the data of rows
constexpr size_t kMostRows = 1024;
constexpr size_t kFewestRows = 8;
constexpr size_t kTracedRows = 256;
constexpr uint32_t kFirstSlots = 4096;
constexpr uint64_t kFirstLeaves = 64ull << kLeafBits;
constexpr uint64_t kFirstFine = 4096;
constexpr size_t kReplicas = 16;          // streams of a context with a page table of their own
constexpr uint64_t kGap = 2048;           // entries between two changes that go up as one
// Of one copy to the GPU. The driver takes small ones from pageable memory at once; before larger
// ones it may wait for the stream.
constexpr size_t kCopyBytes = 32 << 10;
constexpr uint64_t kRingLimit = 5'000'000'000;  // ns that a kernel waits for a dead consumer
constexpr auto kOpenRows = std::chrono::seconds(2);  // that other threads have to submit theirs

uint64_t power_of_two(uint64_t least, uint64_t from) {
  while (from < least) from *= 2;
  return from;
}

}  // namespace

Workspace::Workspace(Tool& tool, CUcontext context) : tool_(tool), context_(context) {}

Workspace::~Workspace() {
  consumer_.reset();  // before the ring that it reads
  for (const auto& replica : replicas_) tool_.pieces->table().detach(&replica->changes);
}

bool Workspace::check(SanitizerResult result, const char* what) {
  if (result == SANITIZER_SUCCESS) return true;
  if (!broken_) {
    tool_.note(2, std::string("launches are not analysed any more: ") + what + " failed with " +
                      tool_.api.words(result));
  }
  broken_ = true;
  return false;
}

// ---- the Sanitizer's functions, without the mutex --------------------------------------------------

void* Workspace::take(Lock& lock, size_t bytes) {
  void* memory = nullptr;
  if (!check(unlocked(lock, [&] { return tool_.api.Alloc(context_, &memory, bytes); }),
             "taking memory of the GPU")) {
    return nullptr;
  }
  tool_.took(static_cast<int64_t>(bytes), 0);
  return memory;
}

void* Workspace::take_pinned(Lock& lock, size_t bytes) {
  void* memory = nullptr;
  if (!check(unlocked(lock, [&] { return tool_.api.AllocHost(context_, &memory, bytes); }),
             "taking pinned memory")) {
    return nullptr;
  }
  tool_.took(0, static_cast<int64_t>(bytes));
  return memory;
}

void Workspace::give(Lock& lock, void* memory, size_t bytes) {
  if (!memory) return;
  unlocked(lock, [&] { return tool_.api.Free(context_, memory); });
  tool_.took(-static_cast<int64_t>(bytes), 0);
}

bool Workspace::zero(Lock& lock, void* memory, size_t bytes, Sanitizer_StreamHandle stream) {
  return check(unlocked(lock, [&] { return tool_.api.Memset(memory, 0, bytes, stream); }),
               "clearing memory of the GPU");
}

// The order of the stream is kept; `from` may be used again afterwards.
bool Workspace::send(Lock& lock, void* to, const void* from, size_t bytes,
                     Sanitizer_StreamHandle stream) {
  char* const target = static_cast<char*>(to);
  char* const source = static_cast<char*>(const_cast<void*>(from));
  const SanitizerResult result = unlocked(lock, [&] {
    for (size_t at = 0; at < bytes; at += kCopyBytes) {
      const SanitizerResult one = tool_.api.MemcpyHostToDeviceAsync(
          target + at, source + at, std::min(kCopyBytes, bytes - at), stream);
      if (one != SANITIZER_SUCCESS) return one;
    }
    return SANITIZER_SUCCESS;
  });
  return check(result, "copying to the GPU");
}

bool Workspace::fetch(Lock& lock, void* to, void* from, size_t bytes,
                      Sanitizer_StreamHandle stream) {
  return check(
      unlocked(lock, [&] { return tool_.api.MemcpyDeviceToHost(to, from, bytes, stream); }),
      "copying from the GPU");
}

bool Workspace::wait(Lock& lock, Sanitizer_StreamHandle stream) {
  return check(unlocked(lock, [&] { return tool_.api.StreamSynchronize(stream); }),
               "waiting for a stream");
}

// ---- layout -----------------------------------------------------------------------------------

bool Workspace::fits() const {
  if (rows_.empty()) return false;
  if (!uses_table()) return true;
  const PageTable& table = tool_.pieces->table();
  for (int i = 0; i < kParts; ++i) {
    if (table.entries(static_cast<Part>(i)) > capacity_[i]) return false;
  }
  return tool_.options.mode == Mode::count || row_slots_ >= tool_.pieces->slots().high();
}

bool Workspace::rebuild(Lock& lock, Sanitizer_StreamHandle stream, bool in_graph) {
  if (!drain_rows(lock)) return false;
  // Launches of other threads that have a row and are not submitted yet.
  const auto all_free = [&] {
    return std::all_of(rows_.begin(), rows_.end(), [](const Row& row) {
      return row.use == Use::free || row.use == Use::closed;
    });
  };
  const auto patience = in_graph ? std::chrono::seconds(0) : kOpenRows;  // its own rows are open
  if (!tool_.settled.wait_for(lock, patience, all_free)) {
    tool_.note_once("rows", 2,
                    "a launch was not analysed: others were under way while memory was laid out");
    return false;
  }
  if (!drain_rows(lock)) return false;
  for (const auto& replica : replicas_) release(lock, *replica);
  replicas_.clear();
  give(lock, data_, rows_.size() * stride_);
  if (host_) {
    unlocked(lock, [&] { return tool_.api.FreeHost(context_, host_); });
    tool_.took(0, -static_cast<int64_t>(rows_.size() * stride_));
  }
  data_ = host_ = nullptr;
  rows_.clear();
  return build(lock, stream);
}

bool Workspace::build(Lock& lock, Sanitizer_StreamHandle stream) {
  const Options& options = tool_.options;
  if (options.mode == Mode::trace) {
    if (!build_ring(lock, stream)) return false;
    rows_.resize(kTracedRows);
    return true;
  }
  const PageTable& table = tool_.pieces->table();
  for (int i = 0; i < kParts; ++i) {
    const Part part = static_cast<Part>(i);
    const uint64_t entries = table.entries(part);
    if (part == Part::leaves) {
      capacity_[i] = power_of_two(entries, kFirstLeaves);
    } else if (part == Part::fine) {
      capacity_[i] = power_of_two(entries, kFirstFine);
    } else {
      capacity_[i] = entries;
    }
  }
  const uint32_t high = tool_.pieces->slots().high();
  row_slots_ = static_cast<uint32_t>(power_of_two(uint64_t{high} + high / 4, kFirstSlots));
  switch (options.mode) {
    case Mode::count: stride_ = sizeof(uint64_t) * kCopies * kCounters; break;
    case Mode::hot: stride_ = sizeof(uint64_t) * (row_slots_ + 8); break;
    default: stride_ = row_slots_ + 64;
  }
  const size_t rows = std::clamp(kDataBytes / stride_, kFewestRows, kMostRows);
  const size_t bytes = rows * stride_;
  data_ = static_cast<char*>(take(lock, bytes));
  if (!data_) return false;
  host_ = static_cast<char*>(take_pinned(lock, bytes));
  if (!host_ || !zero(lock, data_, bytes, stream) || !wait(lock, stream)) return false;
  rows_.resize(rows);
  return true;
}

bool Workspace::build_ring(Lock& lock, Sanitizer_StreamHandle stream) {
  const uint64_t capacity = tool_.options.buffer;
  const size_t bytes = capacity * sizeof(Record);
  void* const records = take_pinned(lock, bytes);
  void* const tail = records ? take_pinned(lock, 4096) : nullptr;
  if (!tail) return false;
  memset(records, 0, bytes);
  memset(tail, 0, 4096);
  ring_ = static_cast<RingControl*>(take(lock, sizeof(RingControl)));
  if (!ring_) return false;
  RingControl control{};
  control.room = static_cast<int64_t>(capacity);
  control.capacity = capacity;
  control.limit_ns = tool_.options.drop ? 0 : kRingLimit;
  control.records = static_cast<Record*>(records);
  control.tail = static_cast<uint64_t*>(tail);
  if (!send(lock, ring_, &control, sizeof control, stream) || !wait(lock, stream)) return false;
  consumer_ = std::make_unique<Consumer>(control.records, capacity, static_cast<uint64_t*>(tail),
                                         tool_.options.workers, tool_.options.analysis,
                                         tool_.transfer, tool_.analysis);
  return true;
}

// ---- a stream's copy of the page table ----------------------------------------------------------

void Workspace::release(Lock& lock, Replica& replica) {
  tool_.pieces->table().detach(&replica.changes);
  for (int i = 0; i < kParts; ++i) give(lock, replica.parts[i], part_bytes(static_cast<Part>(i)));
  give(lock, replica.states, rows_.size() * sizeof(State));
}

bool Workspace::awaits(Sanitizer_StreamHandle stream) const {
  return std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
    return row.use == Use::open && row.stream == stream;
  });
}

Workspace::Replica* Workspace::replica_of(Lock& lock, Sanitizer_StreamHandle stream) {
  Replica* oldest = nullptr;
  for (const auto& replica : replicas_) {
    if (replica->owned && replica->owner == stream) return replica.get();
    // A launch of another thread that is not submitted yet will read it: no wait is for that one.
    if (replica->owned && awaits(replica->owner)) continue;
    const bool better = !oldest || (oldest->owned && !replica->owned) ||
                        (oldest->owned == replica->owned && replica->used < oldest->used);
    if (better) oldest = replica.get();
  }
  if (!oldest || (oldest->owned && replicas_.size() < kReplicas)) {
    auto fresh = std::make_unique<Replica>();
    if (!fill(lock, *fresh, stream)) return nullptr;
    replicas_.push_back(std::move(fresh));
    oldest = replicas_.back().get();
  } else if (oldest->owned) {
    // Kernels of the old owner may still read the copy.
    const uint64_t start = now_ns();
    if (!wait(lock, oldest->owner)) return nullptr;
    tool_.collection.add(start);
    ++tool_.table_moves;
  }
  oldest->owner = stream;
  oldest->owned = true;
  return oldest;
}

bool Workspace::fill(Lock& lock, Replica& replica, Sanitizer_StreamHandle stream) {
  PageTable& table = tool_.pieces->table();
  std::vector<State> states(rows_.size());
  if (uses_table()) {
    for (int i = 0; i < kParts; ++i) {
      const size_t bytes = part_bytes(static_cast<Part>(i));
      if (bytes == 0) continue;
      replica.parts[i] = take(lock, bytes);
      if (!replica.parts[i] || !zero(lock, replica.parts[i], bytes, stream)) return false;
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    State& state = states[i];
    state = State{};
    state.table.base = table.base();
    state.table.high = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::high)]);
    state.table.leaves = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::leaves)]);
    state.table.data = data_ + i * stride_;
    Seldom& rest = state.table.rest;
    rest.fine = static_cast<Fine*>(replica.parts[static_cast<int>(Part::fine)]);
    rest.low = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::low)]);
    rest.low_blocks = rest.low ? kWindowBlocks : 0;
    state.ring = ring_;
    state.row = static_cast<uint32_t>(i);
    state.slots = row_slots_;
  }
  const size_t state_bytes = states.size() * sizeof(State);
  replica.states = static_cast<State*>(take(lock, state_bytes));
  if (!replica.states || !send(lock, replica.states, states.data(), state_bytes, stream)) {
    return false;
  }
  if (!uses_table()) return true;
  for (int i = 0; i < kParts; ++i) {
    const Range extent = table.extent(static_cast<Part>(i));
    if (extent.end > extent.begin) {
      replica.changes.mark(static_cast<Part>(i), extent.begin, extent.end);
    }
  }
  table.attach(&replica.changes);
  return true;
}

// Sends a copy of the entries that changed: other threads change the table on.
bool Workspace::upload(Lock& lock, Replica& replica, Sanitizer_StreamHandle stream) {
  if (!uses_table() || replica.changes.empty()) return true;
  const PageTable& table = tool_.pieces->table();
  const uint64_t start = now_ns();
  struct Copy {
    void* to;
    size_t at, bytes;
  };
  std::vector<Copy> copies;
  std::vector<char> entries;
  for (const Part part : {Part::fine, Part::leaves, Part::low, Part::high}) {
    const size_t size = PageTable::entry_bytes(part);
    const char* from = static_cast<const char*>(table.data(part));
    char* to = static_cast<char*>(replica.parts[static_cast<int>(part)]);
    for (const Range& range : replica.changes.take(part, kGap)) {
      const size_t bytes = (range.end - range.begin) * size;
      copies.push_back({to + range.begin * size, entries.size(), bytes});
      entries.insert(entries.end(), from + range.begin * size, from + range.end * size);
    }
  }
  for (const Copy& copy : copies) {
    if (!send(lock, copy.to, entries.data() + copy.at, copy.bytes, stream)) return false;
    tool_.table_copies += (copy.bytes + kCopyBytes - 1) / kCopyBytes;
  }
  tool_.collection.add(start);  // mostly waiting for room in the stream's queue
  return true;
}

}  // namespace accel_trace
