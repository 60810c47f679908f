// Prints what cubin.cc reads from each file: name, uses, and ordinal:size of its large parameters.
#include "../cubin.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

int main(int count, char** words) {
  for (int i = 1; i < count; ++i) {
    std::ifstream file(words[i], std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    // Every shorter file is cut off somewhere: none may be read beyond its end.
    for (size_t size = 0; size < bytes.size(); size += 97) {
      const std::string part(bytes, 0, size);
      accel_trace::CubinCode none;
      accel_trace::read_cubin(part.data(), part.size(), size % 2, none);
    }
    accel_trace::CubinCode kernels;
    if (!accel_trace::read_cubin(bytes.data(), bytes.size(), false, kernels)) return 1;
    const std::map<std::string, accel_trace::KernelCode> sorted(kernels.begin(), kernels.end());
    for (const auto& [name, code] : sorted) {
      std::cout << name << " " << code.uses;
      for (const auto& parameter : code.parameters) {
        std::cout << " " << parameter.ordinal << ":" << parameter.size;
      }
      std::cout << "\n";
    }
  }
  return 0;
}
