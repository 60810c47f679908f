#include "pieces.h"

#include <algorithm>

namespace accel_trace {
namespace {

constexpr size_t kMostOfTensor = 256;  // stretches; where it would have more it becomes one
constexpr size_t kManyStretches = 8192;

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

namespace {

// Keeps [begin, end) in mind, put together with what it touches.
void postpone(std::map<uint64_t, uint64_t>& stale, uint64_t begin, uint64_t end) {
  auto at = stale.upper_bound(begin);
  if (at != stale.begin() && std::prev(at)->second >= begin) --at;
  while (at != stale.end() && at->first <= end) {
    if (at->first <= begin && at->second >= end) return;
    begin = std::min(begin, at->first);
    end = std::max(end, at->second);
    at = stale.erase(at);
  }
  stale.emplace(begin, end);
}

}  // namespace

uint32_t Pieces::base_of(const Piece& object) {
  const auto found = bases_.find(object.id);
  if (found != bases_.end()) return found->second;
  return bases_[object.id] = slots_.take({object});
}

void Pieces::retire_base(uint64_t object) {
  const auto found = bases_.find(object);
  if (found == bases_.end()) return;
  slots_.retire(found->second);
  bases_.erase(found);
}

// Has no stretch lie over `at`. The smaller part gets a slot of its own, as less is painted then.
void Pieces::cut(uint64_t at) {
  auto over = stretches_.lower_bound(at);
  if (over == stretches_.begin()) return;
  const uint64_t begin = (--over)->first;
  Stretch& first = over->second;
  if (first.end <= at) return;
  Stretch second{first.end, first.slot, first.object};
  Slot slot = slots_[first.slot];
  if (slot.owners.size() > 1) slot.owners.erase(slot.owners.begin(), slot.owners.end() - 1);
  const uint32_t fresh = slots_.take(slot);
  if (at - begin < first.end - at) {
    table_.paint(begin, at, fresh);
    first.slot = fresh;
  } else {
    table_.paint(at, first.end, fresh);
    second.slot = fresh;
  }
  first.end = at;
  stretches_.emplace(at, second);
}

// Has stretches begin and end there; returns the first that begins there or later.
Pieces::Stretches::iterator Pieces::divide(uint64_t begin, uint64_t end) {
  cut(begin);
  cut(end);
  return stretches_.lower_bound(begin);
}

// Paints [begin, end) as it is now: each part of a tensor one stretch.
void Pieces::anew(uint64_t begin, uint64_t end) {
  std::vector<uint32_t> old;
  for (auto at = divide(begin, end); at != stretches_.end() && at->first < end;) {
    old.push_back(at->second.slot);
    at = stretches_.erase(at);
  }
  uint64_t at = begin;
  sweep(begin, end, [&](uint64_t first, uint64_t last, const Piece& object, const Piece& tensor) {
    if (first > at) table_.paint(at, first, 0);
    at = last;
    if (!tensor.id) return table_.paint(first, last, base_of(object));
    const uint32_t slot = slots_.take({object});
    slots_.own(slot, tensor);
    stretches_.emplace(first, Stretch{last, slot, object.id});
    table_.paint(first, last, slot);
  });
  if (at < end) table_.paint(at, end, 0);
  for (const uint32_t slot : old) slots_.retire(slot);
}

// The stretches of a tensor, made where there are none, are its own from now on.
void Pieces::give(const Piece& tensor) {
  const uint64_t end = tensor.end();
  auto at = divide(tensor.address, end);
  std::vector<std::pair<uint64_t, uint64_t>> gaps;
  size_t count = 0;
  uint64_t next = tensor.address;
  for (; at != stretches_.end() && at->first < end; ++at, ++count) {
    if (at->first > next) gaps.emplace_back(next, at->first);
    next = at->second.end;
    if (slots_.owner(at->second.slot) != tensor.id) slots_.own(at->second.slot, tensor);
  }
  if (next < end) gaps.emplace_back(next, end);
  if (count + gaps.size() > kMostOfTensor) return anew(tensor.address, end);
  for (const auto& [from, to] : gaps) anew(from, to);
}

// No tensor lies there any more. What lies in no object is known no more.
void Pieces::take_back(uint64_t begin, uint64_t end) {
  bool known = true;
  for (auto at = divide(begin, end); at != stretches_.end() && at->first < end; ++at) {
    if (slots_.owner(at->second.slot)) slots_.own(at->second.slot, Piece{});
    known &= at->second.object != 0;
  }
  if (!known) return anew(begin, end);
  if (stretches_.size() < std::max(many_, kManyStretches)) return;
  // Too many, as where every step has other sizes: those without a tensor become memory of objects.
  const std::vector<std::pair<uint64_t, Stretch>> all(stretches_.begin(), stretches_.end());
  for (const auto& [from, stretch] : all) {
    if (!slots_.owner(stretch.slot)) anew(from, stretch.end);
  }
  many_ = 2 * stretches_.size();
}

void Pieces::object_changed(uint64_t begin, uint64_t end) {
  ++version_;
  if (painting_ != Painting::pieces) return;
  if (paused_) return postpone(stale_objects_, begin, end);
  slots_.pass();
  anew(begin, end);
}

void Pieces::resume() {
  paused_ = false;
  slots_.pass();
  for (const auto& [begin, end] : stale_objects_) anew(begin, end);
  for (const auto& [begin, end] : stale_) {
    uint64_t at = begin;
    for (auto tensor = from(tensors_, begin); tensor != tensors_.end() && tensor->first < end;
         ++tensor) {
      if (tensor->first > at) take_back(at, tensor->first);
      give(tensor->second);
      at = tensor->second.end();
    }
    if (at < end) take_back(at, end);
  }
  for (const uint64_t object : gone_) retire_base(object);
  stale_objects_.clear();
  stale_.clear();
  gone_.clear();
}

void Pieces::heat(const Piece& object, bool live) {
  for (uint64_t block = object.address >> kBlockBits; block <= (object.end() - 1) >> kBlockBits;
       ++block) {
    auto [at, fresh] = hot_.try_emplace(block, Hot{0, 0});
    if (live) {
      if (fresh) {
        at->second.slot = slots_.take({Piece{}, block});
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
  object_changed(piece.address, piece.end());
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
  object_changed(out.address, out.end());
  if (painting_ == Painting::blocks) heat(out, false);
  if (paused_) {
    gone_.push_back(out.id);
  } else {
    retire_base(out.id);
  }
  return true;
}

void Pieces::add_tensor(Piece piece) {
  if (piece.size == 0 || piece.end() < piece.address) return;
  std::vector<Piece> ended;
  drop_overlaps(tensors_, piece, ended);
  piece.id = next_id_++;
  tensors_.emplace(piece.address, piece);
  ++version_;
  if (painting_ != Painting::pieces) return;
  if (paused_) return postpone(stale_, piece.address, piece.end());
  slots_.pass();
  give(piece);
}

bool Pieces::remove_tensor(uint64_t address, Piece& out) {
  const auto found = tensors_.find(address);
  if (found == tensors_.end()) return false;
  out = found->second;
  tensors_.erase(found);
  ++version_;
  if (painting_ != Painting::pieces) return true;
  if (paused_) {
    postpone(stale_, out.address, out.end());
  } else {
    slots_.pass();
    take_back(out.address, out.end());
  }
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

const Piece* Pieces::find(uint64_t address) const {
  for (const Map* map : {&tensors_, &objects_}) {
    auto after = map->upper_bound(address);
    if (after != map->begin() && address < (--after)->second.end()) return &after->second;
  }
  return nullptr;
}

}  // namespace accel_trace
