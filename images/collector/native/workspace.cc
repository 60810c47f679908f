// Workspace: rows of launches, from being bound to being drained.
#include "workspace.h"

#include <algorithm>
#include <chrono>

#include "report.h"

namespace accel_trace {
namespace {

constexpr auto kTurn = std::chrono::seconds(10);  // that one thread waits for another's

}  // namespace

Workspace::Turn::Turn(Workspace& workspace, Lock& lock)
    : workspace_(workspace),
      mine_(workspace.tool_.settled.wait_for(lock, kTurn, [&] { return !workspace.busy_; })) {
  if (mine_) {
    workspace_.busy_ = true;
  } else {
    workspace_.tool_.note_once("turn", 2,
                               "launches were not analysed: another thread of the program waited "
                               "for the GPU for too long");
  }
}

Workspace::Turn::~Turn() {
  if (!mine_) return;
  workspace_.busy_ = false;
  workspace_.tool_.settled.notify_all();
}

// A free row, or rows_.size(). Rows are taken in turn, so that those that are drained adjoin.
size_t Workspace::free_row() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    cursor_ = cursor_ + 1 < rows_.size() ? cursor_ + 1 : 0;
    if (rows_[cursor_].use == Use::free) return cursor_;
  }
  return rows_.size();
}

void* Workspace::bind(Lock& lock, uint64_t launch, Sanitizer_StreamHandle stream, bool in_graph,
                      uint32_t& row) {
  Turn turn(*this, lock);
  for (int attempt = 0; attempt < 16 && turn && !broken_; ++attempt) {
    if (!fits()) {
      if (!rebuild(lock, stream, in_graph)) return nullptr;
      continue;  // the lock may have been released: look again
    }
    // Slots of pieces that have ended come back with a drain; without one, rows would only grow.
    if (tool_.pieces->slots().epoch() - drained_epoch_ > row_slots_ / 2 && uses_table()) {
      if (!drain_rows(lock)) return nullptr;
      drained_epoch_ = tool_.pieces->slots().epoch();
      continue;
    }
    const size_t free = free_row();
    if (free == rows_.size()) {
      const bool any = std::any_of(rows_.begin(), rows_.end(),
                                   [](const Row& r) { return r.use == Use::closed; });
      if (!any || tool_.options.mode == Mode::trace) {
        tool_.note_once("full", 2,
                        "launches were not analysed: more were under way at once than there is "
                        "room for (nodes of one large CUDA graph, say)");
        return nullptr;
      }
      if (!drain_rows(lock)) return nullptr;
      continue;
    }
    Replica* replica = replica_of(lock, stream);
    if (!replica) return nullptr;
    if (!fits()) continue;
    // Open before the lock is released: slots that the table shows now are not used again meanwhile.
    const Slots& slots = tool_.pieces->slots();
    rows_[free] = {Use::open, launch, stream, slots.epoch(), slots.moment()};
    if (!upload(lock, *replica, stream)) {
      rows_[free].use = Use::free;
      return nullptr;
    }
    replica->used = ++uses_;
    row = static_cast<uint32_t>(free);
    if (consumer_) consumer_->start(row, tool_.index());
    return replica->states + row;
  }
  return nullptr;
}

void Workspace::close(uint32_t row) {
  if (row < rows_.size() && rows_[row].use == Use::open) {
    rows_[row].use = Use::closed;
    rows_[row].closed = ++tool_.closed;
  }
  if (busy_) tool_.settled.notify_all();  // somebody may wait for this row
}

void Workspace::cancel(uint32_t row) {
  if (row < rows_.size() && rows_[row].use == Use::open) rows_[row].use = Use::free;
  if (busy_) tool_.settled.notify_all();
}

void Workspace::oldest(uint64_t& epoch, uint64_t& moment) const {
  for (const Row& row : rows_) {
    if (row.use == Use::free) continue;
    epoch = std::min(epoch, row.epoch);
    moment = std::min(moment, row.moment);
  }
}

void Workspace::drain(Lock& lock) {
  Turn turn(*this, lock);
  if (turn) drain_rows(lock);
}

// A graph's nodes find memory, room and the page table ready: they cannot be drained while it is
// launched, and nobody says what the driver allows meanwhile.
void Workspace::prepare(Lock& lock, Sanitizer_StreamHandle stream) {
  Turn turn(*this, lock);
  if (!turn || broken_) return;
  if (!fits() && !rebuild(lock, stream, false)) return;
  const auto used = std::count_if(rows_.begin(), rows_.end(),
                                  [](const Row& row) { return row.use != Use::free; });
  if (static_cast<size_t>(used) > rows_.size() / 2 && !drain_rows(lock)) return;
  Replica* replica = replica_of(lock, stream);
  if (replica && fits() && upload(lock, *replica, stream)) replica->used = ++uses_;
}

void Workspace::stop_consumer(Lock& lock) {
  Turn turn(*this, lock);
  if (turn) consumer_.reset();
}

// The rows of submitted launches, of one stream or of all.
std::vector<uint32_t> Workspace::submitted(Sanitizer_StreamHandle stream, uint64_t closed) {
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].use != Use::closed || rows_[i].closed > closed) continue;
    if (stream && rows_[i].stream != stream) continue;
    rows_[i].use = Use::draining;
    rows.push_back(i);
  }
  return rows;
}

bool Workspace::drain_rows(Lock& lock) {
  if (tool_.options.mode == Mode::trace) return !broken_;
  const std::vector<uint32_t> rows = submitted(nullptr, UINT64_MAX);
  if (rows.empty()) return !broken_;
  std::vector<Sanitizer_StreamHandle> streams;
  for (const uint32_t row : rows) {
    if (std::find(streams.begin(), streams.end(), rows_[row].stream) == streams.end()) {
      streams.push_back(rows_[row].stream);
    }
  }
  const uint64_t start = now_ns();
  lock.unlock();
  SanitizerResult result = SANITIZER_SUCCESS;
  for (const Sanitizer_StreamHandle stream : streams) {
    const SanitizerResult one = tool_.api.StreamSynchronize(stream);
    if (result == SANITIZER_SUCCESS) result = one;
  }
  lock.lock();
  tool_.collection.add(start);
  check(result, "waiting for a stream");
  return take_in(lock, rows);
}

// What is waited for is over: its data can be had at once, and a program that is killed later has lost
// none of it. Where another thread drains, it takes these rows too.
void Workspace::drain_waited(Lock& lock, Sanitizer_StreamHandle stream, uint64_t closed) {
  if (busy_ || tool_.options.mode == Mode::trace) return;
  Turn turn(*this, lock);
  if (!turn) return;
  const std::vector<uint32_t> rows = submitted(stream, closed);
  if (!rows.empty()) take_in(lock, rows);
}

// Writes the events of rows whose kernels have ended, and frees the rows.
bool Workspace::take_in(Lock& lock, const std::vector<uint32_t>& rows) {
  const Sanitizer_StreamHandle stream = rows_[rows.back()].stream;
  bool good = !broken_;
  uint64_t start = now_ns();
  if (good) {
    const size_t first = rows.front() * stride_, end = (rows.back() + 1) * stride_;
    good = fetch(lock, host_ + first, data_ + first, end - first, stream);
    tool_.transfer.add(start);
  }
  start = now_ns();
  for (const uint32_t row : rows) {
    if (good) {
      report(rows_[row], host_ + row * stride_);
    } else {
      lost(rows_[row].launch);
    }
  }
  if (good) {
    tool_.analysis.add(start);
    good = clear(lock, rows, stream);
  }
  for (const uint32_t row : rows) rows_[row].use = Use::free;
  tool_.reclaim();
  return good;
}

void Workspace::give_up() {
  for (Row& row : rows_) {
    if (row.use != Use::free) lost(row.launch);
    row.use = Use::free;
  }
}

// Not nothing: unknown.
void Workspace::lost(uint64_t launch) {
  event::Lost event{};
  event.launch = launch;
  tool_.log.add(event);
  tool_.note_once("lost", 2, "what launches had touched or counted was lost with the GPU's context");
}

void Workspace::report(const Row& row, const char* data) {
  const Slots& slots = tool_.pieces->slots();
  const uint64_t before = tool_.log.events();
  bool tensor_copies = false;
  switch (tool_.options.mode) {
    case Mode::count:
      tensor_copies =
          report_counts(tool_.log, row.launch, reinterpret_cast<const uint64_t*>(data));
      break;
    case Mode::hot:
      tensor_copies = report_hot(tool_.log, row.launch, slots,
                                 reinterpret_cast<const uint64_t*>(data), row_slots_);
      break;
    default:
      tensor_copies = report_touched(tool_.log, row.launch, slots, row.moment,
                                     reinterpret_cast<const uint8_t*>(data), row_slots_);
  }
  if (tool_.log.events() == before) said_nothing(row.launch);
  if (tensor_copies) tool_.note_tensor_copies();
}

void Workspace::said_nothing(uint64_t launch) {
  event::Nothing event{};
  event.launch = launch;
  tool_.log.add(event);
}

bool Workspace::clear(Lock& lock, const std::vector<uint32_t>& rows,
                      Sanitizer_StreamHandle stream) {
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    while (end < rows.size() && rows[end] == rows[end - 1] + 1) ++end;
    if (!zero(lock, data_ + rows[i] * stride_, (end - i) * stride_, stream)) return false;
    i = end;
  }
  return wait(lock, stream);  // other streams use these rows next
}

void Workspace::finish_traced(Lock& lock, Sanitizer_StreamHandle stream) {
  Turn turn(*this, lock);
  if (!turn) return;
  std::vector<uint32_t> rows;
  for (uint32_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].use == Use::closed && rows_[i].stream == stream) {
      rows_[i].use = Use::draining;
      rows.push_back(i);
    }
  }
  if (rows.empty() || !consumer_) return;
  RingControl control{};
  const bool good = !broken_ && fetch(lock, &control, ring_, sizeof control, stream);
  const uint64_t head = good ? control.head : consumer_->copied();
  lock.unlock();
  const uint64_t given_up = consumer_->wait(head);
  lock.lock();
  const uint64_t dropped = (good ? control.dropped : dropped_) - dropped_ + given_up;
  if (good) dropped_ = control.dropped;
  if (good && control.dead) {
    tool_.note_once("dead", 2, "the GPU waited too long for room in the trace, and dropped accesses");
    const uint64_t alive = 0;
    send(lock, &ring_->dead, &alive, sizeof alive, stream);
  }
  for (const uint32_t row : rows) {
    std::shared_ptr<const Index> index;
    const Tally tally = consumer_->finish(row, index);
    const uint64_t before = tool_.log.events();
    if (!good) {
      lost(rows_[row].launch);
    } else if (index && report_tally(tool_.log, rows_[row].launch, tally, *index,
                                     tool_.options.analysis)) {
      tool_.note_tensor_copies();
    }
    if (tool_.log.events() == before) said_nothing(rows_[row].launch);
    rows_[row].use = Use::free;
  }
  if (dropped) {
    tool_.dropped_accesses += dropped;
    event::Dropped event{};
    event.what = tool_.log.text("accesses");
    event.count = tool_.dropped_accesses;
    tool_.log.add(event);
    tool_.log.count_dropped_accesses(tool_.dropped_accesses);
  }
}

void Workspace::stream_ends(Lock& lock, Sanitizer_StreamHandle stream) {
  Turn turn(*this, lock);
  if (!turn) return;
  const bool used = std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) {
    return row.use == Use::closed && row.stream == stream;
  });
  if (used) drain_rows(lock);
  for (const auto& replica : replicas_) {
    if (replica->owned && replica->owner == stream) {
      lock.unlock();
      tool_.api.StreamSynchronize(stream);
      lock.lock();
      replica->owned = false;
    }
  }
}

}  // namespace accel_trace
