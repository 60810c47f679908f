// Backward of padding by the edge: every gradient is added to the element that it was copied from. before:
// the sum begins from zeros that are filled twice. after: once.
#include "mini.h"

KERNEL scatter(const float* from, float* to, int rows, int columns, int pad) {
  const int wide = columns + 2 * pad, n = THREAD;
  if (n >= rows) return;  // a thread for a row: sums have one order
  for (int j = 0; j < wide; ++j) {
    const int at = j < pad ? 0 : j >= pad + columns ? columns - 1 : j - pad;
    ST(to, n * columns + at, LD(to, n * columns + at) + LD(from, n * wide + j));
  }
}

Result mini(Device& device, const std::string& variant, int rows) {
  const int columns = 32, pad = 3, wide = columns + 2 * pad;
  Host<float> from(rows * wide), to(rows * columns), wanted(rows * columns, 0.0f);
  for (int i = 0; i < rows * wide; ++i) {
    from[i] = any_float(i);
    const int j = i % wide, at = j < pad ? 0 : j >= pad + columns ? columns - 1 : j - pad;
    wanted[i / wide * columns + at] += from[i];
  }
  float* device_from = device.alloc<float>(from.size(), "grad output");
  float* device_to = device.alloc<float>(to.size(), "grad input");
  device.upload(device_from, from.data(), from.size(), "upload grad output");
  device.fill(device_to, 0, to.size(), "zeros_like");
  if (variant != "after") device.fill(device_to, 0, to.size(), "zero_");
  RUN(device, scatter, rows, 64, device_from, device_to, rows, columns, pad);
  device.download(to.data(), device_to, to.size(), "download grad input");
  Result result;
  result.take(to);
  result.compare(to, wanted);
  return result;
}
