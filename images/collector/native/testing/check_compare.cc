// Prints what comparing two files says, by the arithmetic that the GPU has too: check_compare NOW BEFORE.
#include "../compare.h"

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

int main(int, char** words) {
  std::string bytes[2];
  for (int i = 0; i < 2; ++i) {
    std::ifstream file(words[i + 1], std::ios::binary);
    bytes[i].assign(std::istreambuf_iterator<char>(file), {});
  }
  accel_trace::Sums sums{};
  const uint64_t size = bytes[0].size();
  for (uint64_t i = 0; 8 * i < size; ++i) {
    uint64_t now = 0, before = 0;
    const size_t part = size - 8 * i < 8 ? size - 8 * i : 8;
    memcpy(&now, bytes[0].data() + 8 * i, part);
    memcpy(&before, bytes[1].data() + 8 * i, part);
    accel_trace::add_word(sums, now, before, i, size);
  }
  printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(sums.unchanged),
         static_cast<unsigned long long>(sums.others), static_cast<unsigned long long>(sums.low),
         static_cast<unsigned long long>(sums.high));
}
