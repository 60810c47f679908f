// The CPU's side of mode trace: threads that copy records out of the ring and find, for every
// address, the piece that it lies in. Copying is done by one thread at a time and in order;
// finding is done by all of them side by side.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "layout.h"
#include "options.h"
#include "pieces.h"

namespace accel_trace {

// What is known of one launch, or of the part of it that one thread saw.
struct Tally {
  std::vector<uint8_t> spans;  // touch: one byte per span of the launch's index
  bool outside_touched = false;
  bool tensor_copies = false;  // copies by tensor map: no address is told
  std::unordered_map<uint64_t, uint64_t> blocks;  // hot
  uint64_t counters[kCounters] = {};
  uint64_t records = 0;

  void add(const Tally& other);
};

// The live pieces as they were at a launch. Shared by launches between which nothing changed.
struct Index {
  std::vector<Span> spans;
  const Span* find(uint64_t address) const;
  size_t first_after(uint64_t address) const;  // the first span that ends after the address
};

// Adds one record to a tally.
void tally_record(const Record& record, const Index& index, Analysis analysis, Tally& tally);

struct StageTime {
  std::atomic<uint64_t> ns{0};
  std::atomic<uint64_t> count{0};
  void add(uint64_t since);  // from a time of now_ns() to now
};

class Consumer {
 public:
  // `records` and `tail` are read and written by the GPU too. `batch` runs after every batch was
  // copied, before it is looked at (tests make a slow consumer of it).
  Consumer(const Record* records, uint64_t capacity, uint64_t* tail, uint32_t workers,
           Analysis analysis, StageTime& transfer, StageTime& analysing,
           std::function<void()> batch = {});
  ~Consumer();
  Consumer(const Consumer&) = delete;
  Consumer& operator=(const Consumer&) = delete;

  void start(uint32_t row, std::shared_ptr<const Index> index);
  // Waits until `head` records have been looked at. Records that were reserved and never
  // published, by a kernel that died, are given up after a while; returns how many.
  uint64_t wait(uint64_t head);
  uint64_t copied() const { return copied_; }
  // After wait(): what was seen of a row's launch, and its index.
  Tally finish(uint32_t row, std::shared_ptr<const Index>& index);

 private:
  static constexpr uint64_t kBatch = 256;
  static constexpr uint64_t kNothing = ~0ull;
  struct Row {
    std::shared_ptr<const Index> index;
  };
  void work(size_t worker);
  size_t copy_out(size_t worker, std::vector<Record>& batch);
  bool published(uint64_t number) const;
  bool looked_at(uint64_t head) const;  // all records before it that were copied

  const Record* records_;
  uint64_t capacity_;
  uint64_t* tail_word_;
  Analysis analysis_;
  StageTime& transfer_;
  StageTime& analysing_;
  std::function<void()> batch_;

  std::mutex copying_;  // who holds it copies; guards tail_
  uint64_t tail_ = 0;
  std::atomic<uint64_t> copied_{0};
  std::atomic<bool> stop_{false};

  std::mutex rows_mutex_;  // guards rows_ and tallies_' shapes
  std::vector<Row> rows_;
  std::vector<std::vector<Tally>> tallies_;  // [worker][row]
  std::vector<std::unique_ptr<std::mutex>> tally_mutex_;  // [worker]
  std::vector<std::atomic<uint64_t>> at_;  // [worker]: the first record of its batch, or kNothing
  std::vector<std::thread> threads_;
};

}  // namespace accel_trace
