// Reads sequences, one a line, of numbers; prints where iterations end, then the length that is found.
#include <iostream>
#include <sstream>
#include <string>

#include "../repeats.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    accel_trace::Repeats repeats;
    std::istringstream in(line);
    uint64_t count = 0;
    for (uint64_t launch; in >> launch;) {
      ++count;
      if (repeats.add(launch)) std::cout << count << " ";
    }
    std::cout << "length " << repeats.length() << " lost " << repeats.lost() << "\n";
  }
  return 0;
}
