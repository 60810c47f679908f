#include "consumer.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>

#include "log.h"

namespace accel_trace {
namespace {

constexpr uint64_t kGiveUp = 1'000'000'000;  // ns without a record, after the kernel has ended
constexpr uint32_t kReadFlag = 1, kWriteFlag = 2;  // as the patches put them into a record

void count_sized(Tally& tally, uint32_t kind, uint32_t size, uint64_t lanes) {
  tally.counters[kind * kSizes + (log2_of(size) & (kSizes - 1))] += lanes;
}

void count_record(const Record& record, uint64_t lanes, Tally& tally) {
  const uint32_t flags = record.flags & 0xffffff;
  const bool reads = flags & kReadFlag, writes = flags & kWriteFlag;
  switch (record.flags >> 24) {
    case kRecordGlobal:
      count_sized(tally, reads && writes ? kGlobalAtomic : writes ? kGlobalWrite : kGlobalRead,
                  record.size, lanes);
      break;
    case kRecordShared:
      if (reads) count_sized(tally, kSharedRead, record.size, lanes);
      if (writes) count_sized(tally, kSharedWrite, record.size, lanes);
      break;
    case kRecordLocal:
      if (reads) count_sized(tally, kLocalRead, record.size, lanes);
      if (writes) count_sized(tally, kLocalWrite, record.size, lanes);
      break;
    case kRecordAsync:
      tally.counters[kAsyncCopies] += lanes;
      tally.counters[kAsyncBytes] += lanes * record.size;
      break;
    default:
      tally.counters[kBulkCopies] += 1;
      tally.counters[kBulkBytes] += record.size;
  }
}

void touch_range(const Index& index, uint64_t begin, uint64_t end, Tally& tally) {
  uint64_t at = begin;
  for (size_t i = index.first_after(begin); at < end; ++i) {
    if (i == index.spans.size() || index.spans[i].begin > at) {
      tally.outside_touched = true;
      if (i == index.spans.size() || index.spans[i].begin >= end) return;
    }
    tally.spans[i] = 1;
    at = index.spans[i].end;
  }
}

}  // namespace

void StageTime::add(uint64_t since) {
  ns.fetch_add(now_ns() - since, std::memory_order_relaxed);
  count.fetch_add(1, std::memory_order_relaxed);
}

void Tally::add(const Tally& other) {
  if (spans.size() < other.spans.size()) spans.resize(other.spans.size());
  for (size_t i = 0; i < other.spans.size(); ++i) spans[i] |= other.spans[i];
  outside_touched |= other.outside_touched;
  tensor_copies |= other.tensor_copies;
  for (const auto& [block, count] : other.blocks) blocks[block] += count;
  for (uint32_t i = 0; i < kCounters; ++i) counters[i] += other.counters[i];
  records += other.records;
}

size_t Index::first_after(uint64_t address) const {
  const auto at = std::upper_bound(spans.begin(), spans.end(), address,
                                   [](uint64_t a, const Span& span) { return a < span.end; });
  return static_cast<size_t>(at - spans.begin());
}

const Span* Index::find(uint64_t address) const {
  const size_t i = first_after(address);
  return i < spans.size() && spans[i].begin <= address ? &spans[i] : nullptr;
}

void tally_record(const Record& record, const Index& index, Analysis analysis, Tally& tally) {
  ++tally.records;
  const uint32_t type = record.flags >> 24;
  const uint64_t lanes = bits_of(record.mask);
  if (type == kRecordTensorCopy) {
    tally.counters[kBulkCopies] += 1;
    tally.tensor_copies = true;
    return;
  }
  if (analysis == Analysis::count) count_record(record, lanes, tally);
  if (type == kRecordShared || type == kRecordLocal) return;  // offsets, not addresses
  if (type == kRecordAsync && record.size == 0) return;       // zeros only: nothing was read
  const bool bulk = type == kRecordBulkRead || type == kRecordBulkWrite;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if (!(record.mask >> lane & 1)) continue;
    const uint64_t address = record.address[lane];
    if (bulk && analysis == Analysis::touch) {
      touch_range(index, address, address + record.size, tally);
      continue;
    }
    const Span* span = index.find(address);
    if (analysis == Analysis::touch) {
      if (span) {
        tally.spans[static_cast<size_t>(span - index.spans.data())] = 1;
      } else {
        tally.outside_touched = true;
      }
    } else if (analysis == Analysis::count) {
      if (!span) tally.counters[kOutside] += 1;
    } else {
      // As on the GPU: the address's block counts where an object lies in the block.
      const uint64_t block = address >> kBlockBits;
      const size_t near = index.first_after(block << kBlockBits);
      bool known = false;
      for (size_t i = near; i < index.spans.size(); ++i) {
        if (index.spans[i].begin >= (block + 1) << kBlockBits) break;
        if (index.spans[i].object.id) known = true;
        if (known) break;
      }
      tally.blocks[known ? block : 0] += 1;
    }
  }
}

Consumer::Consumer(const Record* records, uint64_t capacity, uint64_t* tail, uint32_t workers,
                   Analysis analysis, StageTime& transfer, StageTime& analysing,
                   std::function<void()> batch)
    : records_(records),
      capacity_(capacity),
      tail_word_(tail),
      analysis_(analysis),
      transfer_(transfer),
      analysing_(analysing),
      batch_(std::move(batch)),
      tallies_(workers),
      at_(workers) {
  // The target's signals are not for these threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (uint32_t i = 0; i < workers; ++i) {
    tally_mutex_.push_back(std::make_unique<std::mutex>());
    at_[i] = kNothing;
  }
  for (uint32_t i = 0; i < workers; ++i) threads_.emplace_back([this, i] { work(i); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Consumer::~Consumer() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void Consumer::start(uint32_t row, std::shared_ptr<const Index> index) {
  std::lock_guard<std::mutex> guard(rows_mutex_);
  if (rows_.size() <= row) rows_.resize(row + 1);
  rows_[row].index = std::move(index);
}

bool Consumer::published(uint64_t number) const {
  const Record& record = records_[number & (capacity_ - 1)];
  return __atomic_load_n(&record.sequence, __ATOMIC_ACQUIRE) == number + 1;
}

size_t Consumer::copy_out(size_t worker, std::vector<Record>& batch) {
  std::lock_guard<std::mutex> guard(copying_);
  const uint64_t start = now_ns();
  size_t count = 0;
  for (; count < kBatch && published(tail_ + count); ++count) {
    batch[count] = records_[(tail_ + count) & (capacity_ - 1)];
  }
  if (count == 0) return 0;
  at_[worker].store(tail_, std::memory_order_release);  // before others can see that it was copied
  tail_ += count;
  copied_.store(tail_, std::memory_order_release);
  __atomic_store_n(tail_word_, tail_, __ATOMIC_RELEASE);
  transfer_.add(start);
  return count;
}

void Consumer::work(size_t worker) {
  std::vector<Record> batch(kBatch);
  uint32_t idle = 0;
  while (!stop_) {
    const size_t count = copy_out(worker, batch);
    if (count == 0) {
      // A short wait at first, then longer ones: most of the time nothing is traced.
      const auto pause = std::chrono::microseconds(std::min<uint32_t>(++idle, 50) * 20);
      std::this_thread::sleep_for(pause);
      continue;
    }
    idle = 0;
    if (batch_) batch_();
    const uint64_t start = now_ns();
    {
      std::lock_guard<std::mutex> guard(*tally_mutex_[worker]);
      std::vector<Tally>& tallies = tallies_[worker];
      uint32_t row = ~0u;
      std::shared_ptr<const Index> index;
      for (size_t i = 0; i < count; ++i) {
        if (batch[i].row != row) {
          row = batch[i].row;
          std::lock_guard<std::mutex> rows(rows_mutex_);
          index = row < rows_.size() ? rows_[row].index : nullptr;
          if (tallies.size() <= row) tallies.resize(row + 1);
          if (index) tallies[row].spans.resize(index->spans.size());
        }
        if (index) tally_record(batch[i], *index, analysis_, tallies[row]);
      }
    }
    analysing_.add(start);
    at_[worker].store(kNothing, std::memory_order_release);
  }
}

bool Consumer::looked_at(uint64_t head) const {
  return std::all_of(at_.begin(), at_.end(), [&](const std::atomic<uint64_t>& first) {
    return first.load(std::memory_order_acquire) >= head;
  });
}

uint64_t Consumer::wait(uint64_t head) {
  uint64_t last = copied_, since = now_ns(), lost = 0;
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
    const uint64_t copied = copied_.load(std::memory_order_acquire);
    if (copied >= head && looked_at(head)) return lost;
    if (copied >= head || copied != last || !looked_at(copied)) {
      last = copied;
      since = now_ns();
    } else if (now_ns() - since > kGiveUp) {
      std::lock_guard<std::mutex> guard(copying_);
      if (tail_ != copied || published(tail_)) continue;
      lost = head - tail_;
      tail_ = head;
      copied_ = head;
      __atomic_store_n(tail_word_, tail_, __ATOMIC_RELEASE);
    }
  }
}

Tally Consumer::finish(uint32_t row, std::shared_ptr<const Index>& index) {
  Tally total;
  for (size_t worker = 0; worker < tallies_.size(); ++worker) {
    std::lock_guard<std::mutex> guard(*tally_mutex_[worker]);
    if (tallies_[worker].size() <= row) continue;
    total.add(tallies_[worker][row]);
    tallies_[worker][row] = Tally{};
  }
  std::lock_guard<std::mutex> guard(rows_mutex_);
  index = row < rows_.size() ? rows_[row].index : nullptr;
  if (row < rows_.size()) rows_[row].index = nullptr;
  if (index) total.spans.resize(index->spans.size());
  return total;
}

}  // namespace accel_trace
