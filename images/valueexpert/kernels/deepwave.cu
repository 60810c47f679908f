// A wave spreads in a field that is mostly zero, and zeros are written over zeros. after: where a point and
// its neighbours are zero, nothing is written.
#include "mini.h"

template <bool tested>
KERNEL propagate(const float* field, const float* speed, float* next, int n) {
  const int at = THREAD;
  if (at >= n * n) return;
  const int x = at % n, y = at / n;
  if (x == 0 || y == 0 || x == n - 1 || y == n - 1) return;
  const float own = LD(field, at), west = LD(field, at - 1), east = LD(field, at + 1);
  const float north = LD(field, at - n), south = LD(field, at + n);
  if (tested && own == 0 && west == 0 && east == 0 && north == 0 && south == 0) return;
  ST(next, at, own + 0.1f * LD(speed, at) * (west + east + north + south - 4 * own));
}

Result mini(Device& device, const std::string& variant, int n) {
  const int count = n * n, steps = 3;
  Host<float> field(count, 0.0f), speed(count);
  for (int i = 0; i < count; ++i) speed[i] = any_float(i);
  field[n / 2 * n + n / 2] = 1.0f;
  Host<float> wanted = field;
  for (int step = 0; step < steps; ++step) {
    const Host<float> old = wanted;
    for (int y = 1; y < n - 1; ++y) {
      for (int x = 1; x < n - 1; ++x) {
        const int at = y * n + x;
        wanted[at] = old[at] + 0.1f * speed[at] *
                                   (old[at - 1] + old[at + 1] + old[at - n] + old[at + n] - 4 * old[at]);
      }
    }
  }
  float* now = device.alloc<float>(count, "field");
  float* next = device.alloc<float>(count, "next field");
  float* device_speed = device.alloc<float>(count, "speed");
  device.upload(device_speed, speed.data(), count, "upload speed");
  device.fill(now, 0, count, "clear field");
  device.fill(next, 0, count, "clear next field");
  device.upload(now + n / 2 * n + n / 2, field.data() + n / 2 * n + n / 2, 1, "source");
  for (int step = 0; step < steps; ++step) {
    if (variant == "after") {
      RUN(device, propagate<true>, count, 256, now, device_speed, next, n);
    } else {
      RUN(device, propagate<false>, count, 256, now, device_speed, next, n);
    }
    float* other = now;
    now = next;
    next = other;
  }
  field.assign(count, -1.0f);
  device.download(field.data(), now, count, "download field");
  Result result;
  result.take(field);
  result.compare(field, wanted);
  return result;
}
