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
constexpr size_t kReplicas = 4;           // streams of a context with a page table of their own
constexpr uint64_t kGap = 2048;           // entries between two changes that go up as one
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

void* Workspace::take(size_t bytes) {
  void* memory = nullptr;
  if (!check(tool_.api.Alloc(context_, &memory, bytes), "taking memory of the GPU")) return nullptr;
  tool_.took(static_cast<int64_t>(bytes), 0);
  return memory;
}

void Workspace::give(void* memory, size_t bytes) {
  if (!memory) return;
  tool_.api.Free(context_, memory);
  tool_.took(-static_cast<int64_t>(bytes), 0);
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
  for (const auto& replica : replicas_) release(*replica);
  replicas_.clear();
  give(data_, rows_.size() * stride_);
  if (host_) {
    tool_.api.FreeHost(context_, host_);
    tool_.took(0, -static_cast<int64_t>(rows_.size() * stride_));
  }
  data_ = host_ = nullptr;
  rows_.clear();
  return build(stream);
}

bool Workspace::build(Sanitizer_StreamHandle stream) {
  const Options& options = tool_.options;
  if (options.mode == Mode::trace) {
    rows_.resize(kTracedRows);
    return build_ring(stream);
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
  data_ = static_cast<char*>(take(bytes));
  if (!data_) return false;
  void* host = nullptr;
  if (!check(tool_.api.AllocHost(context_, &host, bytes), "taking pinned memory")) return false;
  host_ = static_cast<char*>(host);
  tool_.took(0, static_cast<int64_t>(bytes));
  if (!check(tool_.api.Memset(data_, 0, bytes, stream), "clearing memory of the GPU") ||
      !check(tool_.api.StreamSynchronize(stream), "waiting for a stream")) {
    return false;
  }
  rows_.resize(rows);
  return true;
}

bool Workspace::build_ring(Sanitizer_StreamHandle stream) {
  const uint64_t capacity = tool_.options.buffer;
  const size_t bytes = capacity * sizeof(Record);
  void* records = nullptr;
  void* tail = nullptr;
  if (!check(tool_.api.AllocHost(context_, &records, bytes), "taking pinned memory") ||
      !check(tool_.api.AllocHost(context_, &tail, 4096), "taking pinned memory")) {
    return false;
  }
  tool_.took(0, static_cast<int64_t>(bytes + 4096));
  memset(records, 0, bytes);
  memset(tail, 0, 4096);
  ring_ = static_cast<RingControl*>(take(sizeof(RingControl)));
  if (!ring_) return false;
  RingControl control{};
  control.room = static_cast<int64_t>(capacity);
  control.capacity = capacity;
  control.limit_ns = tool_.options.drop ? 0 : kRingLimit;
  control.records = static_cast<Record*>(records);
  control.tail = static_cast<uint64_t*>(tail);
  if (!check(tool_.api.MemcpyHostToDeviceAsync(ring_, &control, sizeof control, stream),
             "copying to the GPU") ||
      !check(tool_.api.StreamSynchronize(stream), "waiting for a stream")) {
    return false;
  }
  consumer_ = std::make_unique<Consumer>(control.records, capacity, static_cast<uint64_t*>(tail),
                                         tool_.options.workers, tool_.options.analysis,
                                         tool_.transfer, tool_.analysis);
  return true;
}

// ---- a stream's copy of the page table ----------------------------------------------------------

void Workspace::release(Replica& replica) {
  tool_.pieces->table().detach(&replica.changes);
  for (int i = 0; i < kParts; ++i) give(replica.parts[i], part_bytes(static_cast<Part>(i)));
  give(replica.states, rows_.size() * sizeof(State));
}

Workspace::Replica* Workspace::replica_of(Lock& lock, Sanitizer_StreamHandle stream) {
  Replica* oldest = nullptr;
  for (const auto& replica : replicas_) {
    if (replica->owned && replica->owner == stream) return replica.get();
    const bool better = !oldest || (oldest->owned && !replica->owned) ||
                        (oldest->owned == replica->owned && replica->used < oldest->used);
    if (better) oldest = replica.get();
  }
  if (!oldest || (oldest->owned && replicas_.size() < kReplicas)) {
    auto fresh = std::make_unique<Replica>();
    if (!fill(*fresh, stream)) return nullptr;
    replicas_.push_back(std::move(fresh));
    oldest = replicas_.back().get();
  } else if (oldest->owned) {
    // Kernels of the old owner may still read the copy.
    const Sanitizer_StreamHandle owner = oldest->owner;
    const uint64_t start = now_ns();
    lock.unlock();
    const SanitizerResult result = tool_.api.StreamSynchronize(owner);
    lock.lock();
    tool_.collection.add(start);
    if (!check(result, "waiting for a stream")) return nullptr;
  }
  oldest->owner = stream;
  oldest->owned = true;
  return oldest;
}

bool Workspace::fill(Replica& replica, Sanitizer_StreamHandle stream) {
  PageTable& table = tool_.pieces->table();
  std::vector<State> states(rows_.size());
  if (uses_table()) {
    for (int i = 0; i < kParts; ++i) {
      const size_t bytes = part_bytes(static_cast<Part>(i));
      if (bytes == 0) continue;
      replica.parts[i] = take(bytes);
      if (!replica.parts[i] || !check(tool_.api.Memset(replica.parts[i], 0, bytes, stream),
                                      "clearing memory of the GPU")) {
        return false;
      }
    }
  }
  for (size_t i = 0; i < states.size(); ++i) {
    State& state = states[i];
    state = State{};
    state.table.base = table.base();
    state.table.low = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::low)]);
    state.table.high = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::high)]);
    state.table.leaves = static_cast<uint32_t*>(replica.parts[static_cast<int>(Part::leaves)]);
    state.table.fine = static_cast<Fine*>(replica.parts[static_cast<int>(Part::fine)]);
    state.table.low_blocks = state.table.low ? kWindowBlocks : 0;
    state.table.high_blocks = state.table.high ? kWindowBlocks : 0;
    state.flags = reinterpret_cast<uint8_t*>(data_ + i * stride_);
    state.counts = reinterpret_cast<uint64_t*>(data_ + i * stride_);
    state.ring = ring_;
    state.row = static_cast<uint32_t>(i);
    state.slots = row_slots_;
  }
  replica.states = static_cast<State*>(take(states.size() * sizeof(State)));
  if (!replica.states ||
      !check(tool_.api.MemcpyHostToDeviceAsync(replica.states, states.data(),
                                               states.size() * sizeof(State), stream),
             "copying to the GPU")) {
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

bool Workspace::upload(Replica& replica, Sanitizer_StreamHandle stream) {
  if (!uses_table() || replica.changes.empty()) return true;
  const PageTable& table = tool_.pieces->table();
  const uint64_t start = now_ns();
  for (const Part part : {Part::fine, Part::leaves, Part::low, Part::high}) {
    const size_t bytes = PageTable::entry_bytes(part);
    const char* from = static_cast<const char*>(table.data(part));
    char* to = static_cast<char*>(replica.parts[static_cast<int>(part)]);
    for (const Range& range : replica.changes.take(part, kGap)) {
      const size_t offset = range.begin * bytes;
      if (!check(tool_.api.MemcpyHostToDeviceAsync(to + offset, const_cast<char*>(from) + offset,
                                                   (range.end - range.begin) * bytes, stream),
                 "copying to the GPU")) {
        return false;
      }
    }
  }
  tool_.transfer.add(start);
  return true;
}

}  // namespace accel_trace
