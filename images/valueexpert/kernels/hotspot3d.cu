// Heat in a box, whose temperatures agree in their first bits. after: every second step is skipped, with
// the error that this makes.
#include "mini.h"

KERNEL heat(const float* from, const float* power, float* to, int n) {
  const int at = THREAD;
  if (at >= n * n * n) return;
  const int x = at % n, y = at / n % n, z = at / n / n;
  const float own = LD(from, at);
  const float west = x > 0 ? LD(from, at - 1) : own;
  const float east = x + 1 < n ? LD(from, at + 1) : own;
  const float north = y > 0 ? LD(from, at - n) : own;
  const float south = y + 1 < n ? LD(from, at + n) : own;
  const float below = z > 0 ? LD(from, at - n * n) : own;
  const float above = z + 1 < n ? LD(from, at + n * n) : own;
  ST(to, at, own + 0.05f * (west + east + north + south + below + above - 6 * own) +
                 0.0001f * LD(power, at));
}

Result mini(Device& device, const std::string& variant, int n) {
  const int count = n * n * n, steps = 8, stride = variant == "after" ? 2 : 1;
  Host<float> heat_map(count), power(count);
  for (int i = 0; i < count; ++i) {
    heat_map[i] = 323.1f + 0.5f * any_float(i);
    power[i] = any_float(i + 1000000);
  }
  Host<float> wanted = heat_map;
  for (int step = 0; step < steps; ++step) {
    const Host<float> old = wanted;
    for (int at = 0; at < count; ++at) {
      const int x = at % n, y = at / n % n, z = at / n / n;
      const float own = old[at];
      const float west = x > 0 ? old[at - 1] : own, east = x + 1 < n ? old[at + 1] : own;
      const float north = y > 0 ? old[at - n] : own, south = y + 1 < n ? old[at + n] : own;
      const float below = z > 0 ? old[at - n * n] : own;
      const float above = z + 1 < n ? old[at + n * n] : own;
      wanted[at] = own + 0.05f * (west + east + north + south + below + above - 6 * own) +
                   0.0001f * power[at];
    }
  }
  float* from = device.alloc<float>(count, "temperatures");
  float* to = device.alloc<float>(count, "next temperatures");
  float* device_power = device.alloc<float>(count, "power");
  device.upload(from, heat_map.data(), count, "upload temperatures");
  device.upload(device_power, power.data(), count, "upload power");
  for (int step = 0; step < steps; step += stride) {
    RUN(device, heat, count, 256, from, device_power, to, n);
    float* other = from;
    from = to;
    to = other;
  }
  device.download(heat_map.data(), from, count, "download temperatures");
  Result result;
  result.take(heat_map);
  result.compare(heat_map, wanted);
  result.allowed = variant == "after" ? 0.001 : 0;
  return result;
}
