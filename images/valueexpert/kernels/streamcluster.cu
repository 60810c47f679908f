// A table of centres is uploaded before every pass, though it changes only once. after: when it changed.
#include "mini.h"

KERNEL gain(const float* point, const float* centre, float* out, int points, int centres) {
  const int n = THREAD;
  if (n >= points) return;
  float best = 1e30f;
  for (int c = 0; c < centres; ++c) {
    const float off = LD(point, n) - LD(centre, c);
    best = off * off < best ? off * off : best;
  }
  ST(out, n, LD(out, n) + best);
}

Result mini(Device& device, const std::string& variant, int points) {
  const int centres = 24, passes = 6;
  Host<float> point(points), centre(centres), out(points, 0.0f), wanted(points, 0.0f);
  for (int n = 0; n < points; ++n) point[n] = any_float(n), out[n] = wanted[n] = any_float(n + 7000000);
  float* device_point = device.alloc<float>(points, "points");
  float* device_centre = device.alloc<float>(centres, "centres");
  float* device_out = device.alloc<float>(points, "gains");
  device.upload(device_point, point.data(), points, "upload points");
  device.upload(device_out, out.data(), points, "upload gains");
  for (int pass = 0; pass < passes; ++pass) {
    const bool changed = pass == 0 || pass == 3;
    if (changed) {
      for (int c = 0; c < centres; ++c) centre[c] = any_float(5000000 + c + 100 * pass);
    }
    if (changed || variant != "after") {
      device.upload(device_centre, centre.data(), centres, "upload centres");
    }
    RUN(device, gain, points, 256, device_point, device_centre, device_out, points, centres);
    for (int n = 0; n < points; ++n) {
      float best = 1e30f;
      for (int c = 0; c < centres; ++c) {
        const float off = point[n] - centre[c];
        best = off * off < best ? off * off : best;
      }
      wanted[n] += best;
    }
  }
  device.download(out.data(), device_out, points, "download gains");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
