#include "pieces.h"

#include <algorithm>

namespace accel_trace {
namespace {

// The first piece that ends after `address`: it covers it, or is the next one.
std::map<uint64_t, Piece>::const_iterator from(const std::map<uint64_t, Piece>& map,
                                               uint64_t address) {
  auto at = map.upper_bound(address);
  if (at != map.begin()) {
    const auto before = std::prev(at);
    if (before->second.end() > address) return before;
  }
  return at;
}

bool overlaps(const std::map<uint64_t, Piece>& map, const Piece& piece) {
  const auto at = from(map, piece.address);
  return at != map.end() && at->second.address < piece.end();
}

}  // namespace

uint32_t Slots::take(const Slot& slot) {
  if (!free_.empty()) {
    const uint32_t number = free_.back();
    free_.pop_back();
    slots_[number] = slot;
    return number;
  }
  if (slots_.size() >= kMaxSlots) {
    ++refused_;
    return 0;
  }
  slots_.push_back(slot);
  return static_cast<uint32_t>(slots_.size() - 1);
}

void Slots::retire(uint32_t slot) {
  if (slot != 0) retired_.push_back({slot, ++epoch_});
}

bool Slot::ended_at(uint64_t moment) const {
  return (std::upper_bound(turns.begin(), turns.end(), moment) - turns.begin()) % 2 != 0;
}

void Slots::turn(uint32_t slot) {
  std::vector<uint64_t>& turns = slots_[slot].turns;
  size_t old = 0;  // an end and a beginning that nobody asks for
  while (old + 1 < turns.size() && turns[old + 1] <= asked_) old += 2;
  turns.erase(turns.begin(), turns.begin() + static_cast<ptrdiff_t>(old));
  turns.push_back(++moment_);
}

void Slots::reclaim(uint64_t epoch, uint64_t moment) {
  asked_ = std::max(asked_, std::min(moment, moment_));
  while (!retired_.empty() && retired_.front().epoch <= epoch) {
    free_.push_back(retired_.front().slot);
    retired_.pop_front();
  }
}

// Calls function(begin, end, object, tensor) for every part of [begin, end) that is known.
template <class Function>
void Pieces::sweep(uint64_t begin, uint64_t end, Function function) const {
  static const Piece none{};
  auto object = from(objects_, begin);
  auto tensor = from(tensors_, begin);
  for (uint64_t at = begin; at < end;) {
    while (object != objects_.end() && object->second.end() <= at) ++object;
    while (tensor != tensors_.end() && tensor->second.end() <= at) ++tensor;
    const bool in_object = object != objects_.end() && object->first <= at;
    const bool in_tensor = tensor != tensors_.end() && tensor->first <= at;
    uint64_t stop = end;
    if (object != objects_.end()) {
      stop = std::min(stop, in_object ? object->second.end() : object->first);
    }
    if (tensor != tensors_.end()) {
      stop = std::min(stop, in_tensor ? tensor->second.end() : tensor->first);
    }
    if (in_object || in_tensor) {
      function(at, stop, in_object ? object->second : none, in_tensor ? tensor->second : none);
    }
    at = stop;
  }
}

std::vector<Span> Pieces::spans() const {
  std::vector<Span> out;
  sweep(0, UINT64_MAX, [&](uint64_t begin, uint64_t end, const Piece& object,
                           const Piece& tensor) { out.push_back({begin, end, object, tensor}); });
  return out;
}

uint32_t Pieces::slot_of(const Piece& object, const Piece& tensor) {
  const auto key = std::make_pair(object.id, tensor.id);
  const auto found = pairs_.find(key);
  if (found != pairs_.end()) return found->second;
  const uint32_t slot = slots_.take({object, tensor, 0});
  if (slot == 0) return 0;
  pairs_.emplace(key, slot);
  if (object.id) used_[object.id].slots.push_back(slot);
  if (tensor.id) used_[tensor.id].slots.push_back(slot);
  return slot;
}

// Keeps [begin, end) in mind, put together with what it touches.
void Pieces::postpone(uint64_t begin, uint64_t end) {
  auto at = stale_.upper_bound(begin);
  if (at != stale_.begin() && std::prev(at)->second >= begin) --at;
  while (at != stale_.end() && at->first <= end) {
    if (at->first <= begin && at->second >= end) return;
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = stale_.erase(at);
  }
  stale_.emplace(begin, end);
}

void Pieces::resume() {
  paused_ = false;
  for (const auto& [begin, end] : stale_) repaint(begin, end);
  for (const uint64_t id : gone_) retire(id);
  stale_.clear();
  gone_.clear();
}

void Pieces::repaint(uint64_t begin, uint64_t end) {
  ++version_;
  if (painting_ != Painting::pieces) return;
  if (paused_) return postpone(begin, end);
  uint64_t at = begin;
  sweep(begin, end, [&](uint64_t first, uint64_t last, const Piece& object, const Piece& tensor) {
    if (first > at) table_.paint(at, first, 0);
    table_.paint(first, last, slot_of(object, tensor));
    at = last;
  });
  if (at < end) table_.paint(at, end, 0);
}

// After the piece's memory was painted anew: nothing shows its slots any more.
void Pieces::retire(uint64_t id) {
  const auto found = used_.find(id);
  if (found == used_.end()) return;
  if (paused_) return gone_.push_back(id);
  for (const uint32_t slot : found->second.slots) {
    const Slot& info = slots_[slot];
    const auto pair = pairs_.find({info.object.id, info.tensor.id});
    // The other of the pair may have ended before, and the slot with it.
    if (pair != pairs_.end() && pair->second == slot) {
      pairs_.erase(pair);
      slots_.retire(slot);
    }
    const uint64_t other = info.object.id == id ? info.tensor.id : info.object.id;
    const auto partner = other ? used_.find(other) : used_.end();
    if (partner != used_.end()) {
      auto& slots = partner->second.slots;
      slots.erase(std::remove(slots.begin(), slots.end(), slot), slots.end());
    }
  }
  used_.erase(found);
}

void Pieces::heat(const Piece& object, bool live) {
  for (uint64_t block = object.address >> kBlockBits; block <= (object.end() - 1) >> kBlockBits;
       ++block) {
    auto [at, fresh] = hot_.try_emplace(block, Hot{0, 0});
    if (live) {
      if (fresh) {
        Slot slot;
        slot.block = block;
        at->second.slot = slots_.take(slot);
        table_.paint(block << kBlockBits, (block + 1) << kBlockBits, at->second.slot);
      }
      ++at->second.objects;
    } else if (--at->second.objects == 0) {
      table_.paint(block << kBlockBits, (block + 1) << kBlockBits, 0);
      slots_.retire(at->second.slot);
      hot_.erase(at);
    }
  }
}

// Leaves a tensor that has ended as it is painted. False where it cannot be told from others so.
bool Pieces::keep_ended(const Piece& tensor) {
  const auto used = used_.find(tensor.id);
  if (painting_ != Painting::pieces || paused_ || used == used_.end() ||
      used->second.slots.size() != 1) {
    return false;
  }
  const uint32_t slot = used->second.slots.front();
  const Piece& object = slots_[slot].object;
  if (!object.id || tensor.address < object.address || tensor.end() > object.end()) return false;
  slots_.turn(slot);
  ended_.emplace(tensor.address, tensor);
  ++version_;
  return true;
}

// Whether the tensor is one that has ended, again: then it gets its number, and is painted already.
bool Pieces::revive(Piece& tensor) {
  const auto found = ended_.find(tensor.address);
  if (found == ended_.end() || found->second.size != tensor.size) return false;
  tensor.id = found->second.id;
  slots_.turn(used_.at(tensor.id).slots.front());
  ended_.erase(found);
  ++version_;
  return true;
}

// Takes those in [begin, end) out; what they covered has to be painted anew, and then they retire.
std::vector<uint64_t> Pieces::forget_ended(uint64_t begin, uint64_t end) {
  std::vector<uint64_t> out;
  for (auto at = from(ended_, begin); at != ended_.end() && at->first < end;) {
    const Piece gone = at->second;
    at = ended_.erase(at);
    out.push_back(gone.id);
    if (gone.address < begin) repaint(gone.address, begin);
    if (gone.end() > end) repaint(end, gone.end());
  }
  return out;
}

// A piece that overlaps a new one of its kind has ended without our being told.
void Pieces::drop_overlaps(Map& map, const Piece& piece, std::vector<Piece>& ended) {
  while (true) {
    const auto at = from(map, piece.address);
    if (at == map.end() || at->second.address >= piece.end()) return;
    Piece out;
    if (&map == &objects_) {
      remove_object({at->first}, out);
    } else {
      remove_tensor(at->first, out);
    }
    ended.push_back(out);
  }
}

bool Pieces::add_object(Piece piece, std::vector<Piece>& ended) {
  if (piece.size == 0 || piece.end() < piece.address) return false;
  // Every context of a device is told of all memory there is, also of what others have allocated.
  const auto known = objects_.find(piece.address);
  if (known != objects_.end() && known->second.size == piece.size && piece.context &&
      known->second.context && known->second.context != piece.context) {
    std::vector<uint64_t>& others = views_[piece.address];
    if (std::find(others.begin(), others.end(), piece.context) == others.end()) {
      others.push_back(piece.context);
    }
    return false;
  }
  if (piece.peer && overlaps(objects_, piece)) return false;
  drop_overlaps(objects_, piece, ended);
  piece.id = next_id_++;
  objects_.emplace(piece.address, piece);
  const std::vector<uint64_t> ended_tensors = forget_ended(piece.address, piece.end());
  repaint(piece.address, piece.end());
  for (const uint64_t id : ended_tensors) retire(id);
  if (painting_ == Painting::blocks) heat(piece, true);
  return true;
}

bool Pieces::remove_object(const Ending& ending, Piece& out) {
  const auto found = objects_.find(ending.address);
  if (found == objects_.end()) return false;
  Piece& piece = found->second;
  if (ending.context && piece.context) {
    std::vector<uint64_t>& others = views_[ending.address];
    const auto other = std::find(others.begin(), others.end(), ending.context);
    const bool own = piece.context == ending.context;
    const bool viewed = own ? !others.empty() : other != others.end();
    if (viewed && own) {
      piece.context = others.back();
      others.pop_back();
    } else if (viewed) {
      others.erase(other);
    }
    if (others.empty()) views_.erase(ending.address);
    if (viewed) return false;
    // A peer's view ends with an event that need not say so.
    if (!own && ending.device != piece.device) return false;
  }
  if (ending.context && ending.peer && !piece.peer) return false;
  out = piece;
  objects_.erase(found);
  views_.erase(out.address);
  const std::vector<uint64_t> ended_tensors = forget_ended(out.address, out.end());
  repaint(out.address, out.end());
  for (const uint64_t id : ended_tensors) retire(id);
  if (painting_ == Painting::blocks) heat(out, false);
  retire(out.id);
  return true;
}

void Pieces::add_tensor(Piece piece) {
  if (piece.size == 0 || piece.end() < piece.address) return;
  std::vector<Piece> ended;
  drop_overlaps(tensors_, piece, ended);
  if (revive(piece)) {
    tensors_.emplace(piece.address, piece);
    return;
  }
  piece.id = next_id_++;
  tensors_.emplace(piece.address, piece);
  const std::vector<uint64_t> ended_tensors = forget_ended(piece.address, piece.end());
  repaint(piece.address, piece.end());
  for (const uint64_t id : ended_tensors) retire(id);
}

bool Pieces::remove_tensor(uint64_t address, Piece& out) {
  const auto found = tensors_.find(address);
  if (found == tensors_.end()) return false;
  out = found->second;
  tensors_.erase(found);
  if (keep_ended(out)) return true;
  repaint(out.address, out.end());
  retire(out.id);
  return true;
}

std::vector<Piece> Pieces::objects_of(uint64_t context) const {
  std::vector<Piece> out;
  for (const auto& [address, piece] : objects_) {
    const auto views = views_.find(address);
    if (piece.context == context ||
        (views != views_.end() && std::count(views->second.begin(), views->second.end(), context))) {
      out.push_back(piece);
    }
  }
  return out;
}

bool Pieces::holds(uint64_t address) const {
  const auto in = [address](const Map& map) {
    auto after = map.upper_bound(address);
    return after != map.begin() && address < (--after)->second.end();
  };
  return in(tensors_) || in(objects_);
}

}  // namespace accel_trace
