// The ring between producers (the patches' side, compiled for the host) and the consumer.
// Arguments: policy (wait, drop, dead or behind) capacity producers records workers delay_us.
// behind: as wait, but only the first batch takes the delay; each producer has a row of its own and
// begins when the records of the one before were copied; the first one's are waited for and counted.
// Prints: written dropped counted lost outside touched, and milliseconds.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "../consumer.h"
#include "../log.h"
#include "../ring.h"

using namespace accel_trace;

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const bool behind = !strcmp(argv[1], "behind"), dead = !strcmp(argv[1], "dead");
  const bool wait = behind || !strcmp(argv[1], "wait");
  const uint64_t capacity = strtoull(argv[2], nullptr, 0);
  const uint64_t producers = strtoull(argv[3], nullptr, 0);
  const uint64_t records = strtoull(argv[4], nullptr, 0);
  const uint32_t workers = static_cast<uint32_t>(atoi(argv[5]));
  const long delay = atol(argv[6]);

  std::vector<Record> memory(capacity);
  uint64_t tail = 0;
  RingControl control{};
  control.room = static_cast<int64_t>(capacity);
  control.capacity = capacity;
  control.limit_ns = dead ? 100'000'000 : wait ? 60'000'000'000 : 0;
  control.records = memory.data();
  control.tail = &tail;
  State state{};
  state.ring = &control;

  StageTime transfer, analysis;
  std::unique_ptr<Consumer> consumer;
  auto index = std::make_shared<Index>();
  Piece object;
  object.address = 0x1000;
  object.size = 0x1000;
  object.id = 1;
  index->spans.push_back({object.address, object.end(), object, Piece{}});
  const uint64_t start = now_ns();
  std::atomic<bool> first{true};
  if (!dead) {
    consumer = std::make_unique<Consumer>(
        memory.data(), capacity, &tail, workers, Analysis::count, transfer, analysis, [&] {
          const bool slow = first.exchange(false) || !behind;
          if (delay && slow) std::this_thread::sleep_for(std::chrono::microseconds(delay));
        });
    for (uint32_t row = 0; row < (behind ? producers : 1); ++row) consumer->start(row, index);
  }
  std::vector<std::thread> threads;
  for (uint64_t p = 0; p < producers; ++p) {
    threads.emplace_back([&, p] {
      State own = state;
      own.row = behind ? static_cast<uint32_t>(p) : 0;
      for (uint64_t i = 0; i < records; ++i) {
        // Every fourth address lies outside of the one object.
        const uint64_t address = i % 4 == 3 ? 0x5000 + p : 0x1000 + i % 0x1000;
        write_record(&own, address, 4, 1, 1);
      }
    });
    if (!behind) continue;
    threads.back().join();
    while (consumer->copied() < control.head) std::this_thread::yield();
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  uint64_t lost = 0, counted = 0, outside = 0;
  if (consumer) {
    lost = consumer->wait(behind ? records : control.head);
    std::shared_ptr<const Index> used;
    const Tally tally = consumer->finish(0, used);
    counted = tally.records;
    outside = tally.counters[kOutside];
  }
  printf("%llu %llu %llu %llu %llu %llu\n", static_cast<unsigned long long>(control.head),
         static_cast<unsigned long long>(control.dropped), static_cast<unsigned long long>(counted),
         static_cast<unsigned long long>(lost), static_cast<unsigned long long>(outside),
         static_cast<unsigned long long>((now_ns() - start) / 1'000'000));
  return 0;
}
