// Live pieces of memory: objects (the driver's allocations) and tensors (a framework's blocks) by
// address, with checks of start and end, and the slots that stand for them in the page table.
// A slot stands for one pair (object, tensor): the part of a tensor that lies in an object, or
// the part of an object that no tensor covers, or a tensor in no known object. In mode hot a slot
// stands for a 2 MiB block. A slot is used again only when no undrained launch can have seen it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "page_table.h"

namespace accel_trace {

struct Piece {
  uint64_t address = 0;
  uint64_t size = 0;
  uint64_t id = 0;  // 0: none
  uint32_t device = 0;
  uint32_t flags = 0;     // as the driver's allocation has them
  uint64_t context = 0;
  bool peer = false;      // seen only as another device's memory
  uint64_t end() const { return address + size; }
};

struct Ending {  // of a context's view of an object; context 0: of the object, whoever views it
  uint64_t address = 0;
  uint64_t context = 0;
  uint32_t device = 0;
  bool peer = false;
};

struct Slot {
  Piece object;
  Piece tensor;
  uint64_t block = 0;  // mode hot
  // Moments at which its tensor ended, began again, and so on. A tensor that has ended is painted until
  // something else lies there: most often it is the same again, and nothing has to be sent to the GPU.
  std::vector<uint64_t> turns{};
  bool ended_at(uint64_t moment) const;
};

class Slots {
 public:
  Slots() : slots_(1) {}  // slot 0: no piece
  uint32_t take(const Slot& slot);  // 0 when there are too many
  void retire(uint32_t slot);
  // Slots retired at or before `epoch` may be used again, and nobody asks for what was before `moment`.
  void reclaim(uint64_t epoch, uint64_t moment);
  uint64_t epoch() const { return epoch_; }
  void turn(uint32_t slot);  // its tensor ends, or begins again
  uint64_t moment() const { return moment_; }
  uint32_t high() const { return static_cast<uint32_t>(slots_.size()); }
  const Slot& operator[](uint32_t slot) const { return slots_[slot]; }
  uint64_t refused() const { return refused_; }

 private:
  struct Retired {
    uint32_t slot;
    uint64_t epoch;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  std::deque<Retired> retired_;
  uint64_t epoch_ = 0;
  uint64_t moment_ = 0;
  uint64_t asked_ = 0;  // moments before it are not asked for any more
  uint64_t refused_ = 0;
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

  bool holds(uint64_t address) const;  // whether it is in a piece that is known
  std::vector<Span> spans() const;  // all of memory that is known, in order
  uint64_t version() const { return version_; }
  size_t objects() const { return objects_.size(); }

  PageTable& table() { return table_; }
  Slots& slots() { return slots_; }

 private:
  using Map = std::map<uint64_t, Piece>;
  struct Used {  // slots that stand for a piece
    std::vector<uint32_t> slots;
  };
  struct Hot {
    uint32_t slot;
    uint32_t objects;
  };
  template <class Function>
  void sweep(uint64_t begin, uint64_t end, Function function) const;
  void repaint(uint64_t begin, uint64_t end);
  uint32_t slot_of(const Piece& object, const Piece& tensor);
  void postpone(uint64_t begin, uint64_t end);
  void retire(uint64_t id);
  void heat(const Piece& object, bool live);
  bool keep_ended(const Piece& tensor);
  bool revive(Piece& tensor);
  std::vector<uint64_t> forget_ended(uint64_t begin, uint64_t end);
  void drop_overlaps(Map& map, const Piece& piece, std::vector<Piece>& ended);

  Painting painting_;
  PageTable table_;
  Slots slots_;
  Map objects_;
  Map tensors_;
  Map ended_;  // tensors that have ended and are painted still; each in one object, with one slot
  std::unordered_map<uint64_t, std::vector<uint64_t>> views_;  // address -> contexts beside its own
  bool paused_ = false;
  std::map<uint64_t, uint64_t> stale_;  // what is to be painted, from begin to end
  std::vector<uint64_t> gone_;          // pieces that ended since, whose slots are painted
  uint64_t next_id_ = 1;
  uint64_t version_ = 0;
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> pairs_;  // (object, tensor) -> slot
  std::unordered_map<uint64_t, Used> used_;                  // piece -> its slots
  std::unordered_map<uint64_t, Hot> hot_;                    // block -> its slot
};

}  // namespace accel_trace
