// Atoms are added to an array that grows. before: by a fixed step, after: by a share of its size. All that
// was there is copied each time.
#include "mini.h"

KERNEL append(const float* border, float* atoms, int from, int count) {
  const int n = THREAD;
  if (n < count) ST(atoms, from + n, LD(border, from + n));
}

Result mini(Device& device, const std::string& variant, int chunks) {
  const int chunk = 16;
  int held = 0, room = chunk;
  Host<float> found(chunks * chunk), wanted(found.size());
  for (size_t n = 0; n < wanted.size(); ++n) wanted[n] = any_float(n);
  float* border = device.alloc<float>(wanted.size(), "border atoms");
  device.upload(border, wanted.data(), wanted.size(), "upload border atoms");
  float* atoms = device.alloc<float>(room, "atoms");
  for (int i = 0; i < chunks; ++i) {
    if (held + chunk > room) {
      const int step = variant == "after" ? (room * 4 / 5 + chunk - 1) / chunk * chunk : chunk;
      float* more = device.alloc<float>(room + step, "atoms");
      device.copy(more, atoms, held, "grow");
      atoms = more;
      room += step;
    }
    RUN(device, append, chunk, 32, border, atoms, held, chunk);
    held += chunk;
  }
  device.download(found.data(), atoms, held, "download atoms");
  Result result;
  result.take(found);
  result.compare(found, wanted);
  return result;
}
