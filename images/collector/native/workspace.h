// What one context holds on its GPU: rows, one for each launch that was not drained yet, and for
// every stream that launches analysed kernels a copy of the page table. A stream's copy changes in
// the order of that stream, so that a kernel sees memory as it was at its launch, and no stream
// waits for another. No launch is made synchronous, but in mode trace.
#pragma once

#include <memory>
#include <vector>

#include "tool.h"

namespace accel_trace {

class Workspace {
 public:
  Workspace(Tool& tool, CUcontext context);
  ~Workspace();

  // The state for a launch on a stream, in device memory, or null when it cannot be analysed.
  // May release the lock meanwhile, to wait for the GPU.
  void* bind(Lock& lock, uint64_t launch, Sanitizer_StreamHandle stream, bool in_graph,
             uint32_t& row);
  void close(uint32_t row);   // the launch was submitted
  void cancel(uint32_t row);  // it was not
  // Waits for the launches submitted so far, writes their events, and frees their rows.
  void drain(Lock& lock);
  // The same for launches that the program has waited for: of a stream or, with null, of all; of
  // the rows that were closed first, so many.
  void drain_waited(Lock& lock, Sanitizer_StreamHandle stream, uint64_t closed);
  // Mode trace, after the stream was synchronised: the events of its submitted launches.
  void finish_traced(Lock& lock, Sanitizer_StreamHandle stream);
  void stream_ends(Lock& lock, Sanitizer_StreamHandle stream);
  void prepare(Lock& lock, Sanitizer_StreamHandle stream);  // before a graph is launched
  void stop_consumer(Lock& lock);                           // nothing is traced any more
  void give_up();  // whatever is not drained is lost
  void oldest(uint64_t& epoch, uint64_t& moment) const;     // of rows in use

 private:
  enum class Use : uint8_t { free, open, closed, draining };
  struct Row {
    Use use = Use::free;
    uint64_t launch = 0;
    Sanitizer_StreamHandle stream = nullptr;
    uint64_t epoch = 0;
    uint64_t moment = 0;
    uint64_t closed = 0;  // its number among all that were
  };
  struct Replica {  // a stream's copy of the page table, and the states of all rows that use it
    Sanitizer_StreamHandle owner = nullptr;
    bool owned = false;
    uint64_t used = 0;
    void* parts[kParts] = {};
    State* states = nullptr;
    Changes changes;
  };
  // Holds the workspace for one thread, also through waits in which the mutex is released. False
  // where another thread kept it too long: that one may wait for what the driver gives only after
  // this callback.
  class Turn {
   public:
    Turn(Workspace& workspace, Lock& lock);
    ~Turn();
    explicit operator bool() const { return mine_; }

   private:
    Workspace& workspace_;
    const bool mine_;
  };

  bool fits() const;
  bool rebuild(Lock& lock, Sanitizer_StreamHandle stream, bool in_graph);
  bool build(Lock& lock, Sanitizer_StreamHandle stream);
  bool build_ring(Lock& lock, Sanitizer_StreamHandle stream);
  size_t free_row();
  bool drain_rows(Lock& lock);
  std::vector<uint32_t> submitted(Sanitizer_StreamHandle stream, uint64_t closed);
  bool take_in(Lock& lock, const std::vector<uint32_t>& rows);
  void said_nothing(uint64_t launch);
  void report(const Row& row, const char* data);
  void lost(uint64_t launch);
  bool clear(Lock& lock, const std::vector<uint32_t>& rows, Sanitizer_StreamHandle stream);
  bool awaits(Sanitizer_StreamHandle stream) const;  // a launch that has its row
  Replica* replica_of(Lock& lock, Sanitizer_StreamHandle stream);
  bool fill(Lock& lock, Replica& replica, Sanitizer_StreamHandle stream);
  bool upload(Lock& lock, Replica& replica, Sanitizer_StreamHandle stream);
  void release(Lock& lock, Replica& replica);
  void* take(Lock& lock, size_t bytes);
  void* take_pinned(Lock& lock, size_t bytes);
  void give(Lock& lock, void* memory, size_t bytes);
  bool zero(Lock& lock, void* memory, size_t bytes, Sanitizer_StreamHandle stream);
  bool send(Lock& lock, void* to, const void* from, size_t bytes, Sanitizer_StreamHandle stream);
  bool fetch(Lock& lock, void* to, void* from, size_t bytes, Sanitizer_StreamHandle stream);
  bool wait(Lock& lock, Sanitizer_StreamHandle stream);
  bool check(SanitizerResult result, const char* what);
  size_t part_bytes(Part part) const {
    return capacity_[static_cast<int>(part)] * PageTable::entry_bytes(part);
  }
  bool uses_table() const { return tool_.options.mode != Mode::trace; }

  Tool& tool_;
  CUcontext context_;
  bool broken_ = false;
  bool busy_ = false;
  uint64_t uses_ = 0;

  uint64_t capacity_[kParts] = {};  // entries of each part that copies have room for
  uint32_t row_slots_ = 0;
  size_t stride_ = 0;  // bytes of a row's data
  std::vector<Row> rows_;
  size_t cursor_ = 0;
  uint64_t drained_epoch_ = 0;
  char* data_ = nullptr;  // on the GPU: rows_.size() * stride_
  char* host_ = nullptr;  // where it is copied to: pinned
  std::vector<std::unique_ptr<Replica>> replicas_;

  RingControl* ring_ = nullptr;  // on the GPU
  uint64_t dropped_ = 0;         // as the ring counted so far
  std::unique_ptr<Consumer> consumer_;
};

}  // namespace accel_trace
