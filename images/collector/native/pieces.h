// Live pieces of memory: objects (the driver's allocations) and tensors (a framework's blocks) by
// address, with checks of start and end, and the slots that stand for them in the page table.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "page_table.h"
#include "slots.h"

namespace accel_trace {

struct Ending {  // of a context's view of an object; context 0: of the object, whoever views it
  uint64_t address = 0;
  uint64_t context = 0;
  uint32_t device = 0;
  bool peer = false;
};

// A part of memory that belongs to one object, one tensor, or both.
struct Span {
  uint64_t begin;
  uint64_t end;
  Piece object;
  Piece tensor;
};

enum class Painting { none, pieces, blocks };

class Pieces {
 public:
  explicit Pieces(Painting painting) : painting_(painting) {}

  // False when it is no new object: another context's or a peer's view of one that is known. Objects
  // that it lies over have ended without our being told: they are added to `ended`.
  bool add_object(Piece piece, std::vector<Piece>& ended);
  // Takes an object out when its last view ends; false when none is live at that address, or others
  // view it still.
  bool remove_object(const Ending& ending, Piece& out);
  void add_tensor(Piece piece);
  bool remove_tensor(uint64_t address, Piece& out);
  std::vector<Piece> objects_of(uint64_t context) const;  // that it views

  // Until `resume` no kernel asks: what changes is painted then, once.
  void pause() { paused_ = true; }
  void resume();

  bool holds(uint64_t address) const { return find(address) != nullptr; }
  const Piece* find(uint64_t address) const;  // the tensor, else the object there; null: neither
  std::vector<Span> spans() const;  // all of memory that is known, in order
  uint64_t version() const { return version_; }
  size_t objects() const { return objects_.size(); }

  PageTable& table() { return table_; }
  Slots& slots() { return slots_; }

 private:
  using Map = std::map<uint64_t, Piece>;
  struct Stretch {
    uint64_t end;
    uint32_t slot;
    uint64_t object;  // 0: none
  };
  using Stretches = std::map<uint64_t, Stretch>;
  struct Hot {
    uint32_t slot;
    uint32_t objects;
  };
  template <class Function>
  void sweep(uint64_t begin, uint64_t end, Function function) const;
  void anew(uint64_t begin, uint64_t end);
  void cut(uint64_t at);
  Stretches::iterator divide(uint64_t begin, uint64_t end);
  void give(const Piece& tensor);
  void take_back(uint64_t begin, uint64_t end);
  uint32_t base_of(const Piece& object);
  void retire_base(uint64_t object);
  void object_changed(uint64_t begin, uint64_t end);
  void heat(const Piece& object, bool live);
  void drop_overlaps(Map& map, const Piece& piece, std::vector<Piece>& ended);

  Painting painting_;
  PageTable table_;
  Slots slots_;
  Map objects_;
  Map tensors_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> views_;  // address -> contexts beside its own
  bool paused_ = false;
  // What changed meanwhile, from begin to end: where tensors came and went, and where objects did.
  std::map<uint64_t, uint64_t> stale_, stale_objects_;
  std::vector<uint64_t> gone_;  // objects that ended meanwhile, which are painted still
  uint64_t next_id_ = 1;
  uint64_t version_ = 0;
  Stretches stretches_;  // that are a tensor's or were, by their begin
  size_t many_ = 0;      // so many are put together again
  std::unordered_map<uint64_t, uint32_t> bases_;  // object -> slot of what has been no tensor's
  std::unordered_map<uint64_t, Hot> hot_;                    // block -> its slot
};

}  // namespace accel_trace
