// Slopes are multiplied by a limiter that is mostly 1. after: where it is 1, nothing is loaded or stored.
#include "mini.h"

template <bool guarded>
KERNEL limit(const float* limiter, float* first, float* second, int cells) {
  const int n = THREAD;
  if (n >= cells) return;
  const float a = LD(limiter, n);
  if (guarded && a == 1.0f) return;
  ST(first, n, LD(first, n) * a);
  ST(second, n, LD(second, n) * a);
}

Result mini(Device& device, const std::string& variant, int cells) {
  Host<float> limiter(cells), first(cells), second(cells);
  for (int n = 0; n < cells; ++n) {
    limiter[n] = hash_of(n) % 25 == 0 ? 0.5f * any_float(n) : 1.0f;
    first[n] = any_float(n + 1000000);
    second[n] = any_float(n + 2000000);
  }
  Host<float> wanted = first, also = second;
  for (int n = 0; n < cells; ++n) wanted[n] *= limiter[n], also[n] *= limiter[n];
  float* device_limiter = device.alloc<float>(cells, "limiter");
  float* device_first = device.alloc<float>(cells, "slopes in x");
  float* device_second = device.alloc<float>(cells, "slopes in y");
  device.upload(device_limiter, limiter.data(), cells, "upload limiter");
  device.upload(device_first, first.data(), cells, "upload slopes in x");
  device.upload(device_second, second.data(), cells, "upload slopes in y");
  if (variant == "after") {
    RUN(device, limit<true>, cells, 256, device_limiter, device_first, device_second, cells);
  } else {
    RUN(device, limit<false>, cells, 256, device_limiter, device_first, device_second, cells);
  }
  first.assign(cells, -1.0f);
  second.assign(cells, -1.0f);
  device.download(first.data(), device_first, cells, "download slopes in x");
  device.download(second.data(), device_second, cells, "download slopes in y");
  Result result;
  result.take(first);
  result.take(second);
  result.compare(first, wanted);
  result.compare(second, also);
  return result;
}
