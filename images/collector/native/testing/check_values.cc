// Warps that fill a buffer of mode values at once, as threads with one lane each, again and again.
// Arguments: rounds threads accesses, of each thread. Prints how much was wrong, and the accesses
// that were kept and lost.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../patches.cu"

namespace {

constexpr uint64_t kBytes = sizeof(WarpAccess) + kUnit;  // what an access takes

// The records that are kept are as many as find room, of each thread the first ones, and whole.
uint64_t wrong_in(const ValueBuffer& buffer, uint64_t threads, uint64_t accesses) {
  const uint64_t cursor = std::min(buffer.cursor, buffer.full), all = threads * accesses;
  const auto* const records = reinterpret_cast<const WarpAccess*>(&buffer + 1);
  std::vector<uint64_t> next(threads);
  uint64_t wrong = records_of(cursor) != std::min(buffer.room / kBytes, all);
  wrong += units_of(cursor) != records_of(cursor) || buffer.lost != all - records_of(cursor);
  wrong += records_of(buffer.cursor) > records_of(cursor) + threads;  // each asks once in vain
  for (uint64_t i = 0; i < records_of(cursor); ++i) {
    uint64_t& turn = next[records[i].pc % threads];
    wrong += records[i].lanes != 1 || records[i].pc / threads != turn++;
    wrong += buffer.end[-int64_t{records[i].payload}] != records[i].pc;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint64_t rounds = strtoull(argv[1], nullptr, 0), threads = strtoull(argv[2], nullptr, 0);
  const uint64_t accesses = strtoull(argv[3], nullptr, 0);
  uint64_t wrong = 0, kept = 0, lost = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t room = round % (threads * accesses * kBytes / kUnit + 9) * kUnit;
    std::vector<uint64_t> words((sizeof(ValueBuffer) + room) / sizeof(uint64_t));
    auto* const buffer = reinterpret_cast<ValueBuffer*>(words.data());
    buffer->full = ~uint64_t{0};
    buffer->room = room;
    buffer->end = words.data() + words.size();
    buffer->blocks = 1;
    std::atomic<uint64_t> ready{0};
    std::vector<std::thread> all;
    for (uint64_t t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        ++ready;
        while (ready < threads) std::this_thread::yield();
        for (uint64_t i = 0; i < accesses; ++i) {
          uint64_t value = i * threads + t;
          at_values_global(buffer, value, &value, 8, kReads, nullptr);
        }
      });
    }
    for (std::thread& one : all) one.join();
    wrong += wrong_in(*buffer, threads, accesses);
    kept += records_of(std::min(buffer->cursor, buffer->full));
    lost += buffer->lost;
  }
  printf("%llu %llu %llu\n", static_cast<unsigned long long>(wrong),
         static_cast<unsigned long long>(kept), static_cast<unsigned long long>(lost));
  return 0;
}
