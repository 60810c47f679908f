// Compares the page table with a plain map of bytes, on random paintings; and a copy that is kept
// up to date by uploading changes with the table itself. Arguments: first and last seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "../page_table.h"

using namespace accel_trace;

namespace {

constexpr uint64_t kHigh = 0x7f1234000000;

// The model: non-overlapping ranges by start.
class Model {
 public:
  void paint(uint64_t begin, uint64_t end, uint32_t slot) {
    std::map<uint64_t, std::pair<uint64_t, uint32_t>> next;
    for (const auto& [start, range] : ranges_) {
      if (start < begin) next[start] = {std::min(range.first, begin), range.second};
      if (range.first > end) next[std::max(start, end)] = range;
    }
    if (slot) next[begin] = {end, slot};
    ranges_ = next;
  }
  uint32_t find(uint64_t address) const {
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) return 0;
    --at;
    return address < at->second.first ? at->second.second : 0;
  }

 private:
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> ranges_;
};

// What a GPU would hold: changed only by the ranges that the table says have changed.
class Copy {
 public:
  explicit Copy(PageTable& table) : table_(table) { table.attach(&changes_); }
  void upload(uint64_t gap) {
    for (int i = 0; i < kParts; ++i) {
      const Part part = static_cast<Part>(i);
      const size_t bytes = PageTable::entry_bytes(part);
      parts_[i].resize(table_.entries(part) * bytes);
      for (const Range& range : changes_.take(part, gap)) {
        memcpy(parts_[i].data() + range.begin * bytes,
               static_cast<const char*>(table_.data(part)) + range.begin * bytes,
               (range.end - range.begin) * bytes);
      }
    }
  }
  uint32_t find(uint64_t address) const {
    Table view = table_.view();
    const auto at = [&](Part part) { return parts_[static_cast<int>(part)].data(); };
    view.rest.low = reinterpret_cast<const uint32_t*>(at(Part::low));
    view.high = reinterpret_cast<const uint32_t*>(at(Part::high));
    view.leaves = reinterpret_cast<const uint32_t*>(at(Part::leaves));
    view.rest.fine = reinterpret_cast<const Fine*>(at(Part::fine));
    return find_slot(view, address);
  }

 private:
  PageTable& table_;
  Changes changes_;
  std::vector<char> parts_[kParts];
};

bool check(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](uint64_t n) { return random() % n; };
  PageTable table;
  Model model;
  Copy copy(table);
  std::vector<uint64_t> edges;
  for (int step = 0; step < 120; ++step) {
    const uint64_t bases[] = {kHigh, kHigh, kHigh + (3ull << 30), 0x302000000};
    const uint64_t units[] = {1, 16, 256, 512, 4096, kBlock / 2, kBlock};
    const uint64_t unit = units[below(7)];
    uint64_t begin = bases[below(4)] + below(64) * unit;
    if (!edges.empty() && below(3) == 0) begin = edges[below(edges.size())];  // adjacent, or again
    const uint64_t end = begin + (1 + below(40)) * units[below(7)];
    const uint32_t slot = below(4) == 0 ? 0 : static_cast<uint32_t>(1 + below(5000));
    table.paint(begin, end, slot);
    model.paint(begin, end, slot);
    edges.push_back(begin);
    edges.push_back(end);
    if (below(3) == 0) copy.upload(below(2) ? 0 : 4096);
  }
  copy.upload(2048);
  for (int i = 0; i < 4000; ++i) {
    uint64_t address = edges[below(edges.size())];
    const uint64_t spread[] = {1, 3, 300, 5000, 3 * kBlock};
    address += below(2 * spread[below(5)]) - spread[below(5)];
    const uint32_t want = model.find(address);
    if (table.find(address) != want || copy.find(address) != want) {
      printf("seed %llu address %#llx: model %u, table %u, copy %u\n",
             static_cast<unsigned long long>(seed), static_cast<unsigned long long>(address), want,
             table.find(address), copy.find(address));
      return false;
    }
  }
  return true;
}

// Leaves and lists come back when memory is freed: a long run does not grow.
bool check_growth() {
  PageTable table;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t begin = kHigh + static_cast<uint64_t>(i % 50) * kBlock / 2 + 100;
    table.paint(begin, begin + 5000, 7);
    table.paint(begin, begin + 5000, 0);
  }
  const bool good = table.entries(Part::leaves) <= 64 * kLeafEntries && table.entries(Part::fine) < 64;
  if (!good) printf("the table grew\n");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t first = argc > 1 ? strtoull(argv[1], nullptr, 0) : 0;
  const uint64_t last = argc > 2 ? strtoull(argv[2], nullptr, 0) : 10;
  if (!check_growth()) return 1;
  for (uint64_t seed = first; seed < last; ++seed) {
    if (!check(seed)) return 1;
  }
  printf("%llu seeds\n", static_cast<unsigned long long>(last - first));
  return 0;
}
