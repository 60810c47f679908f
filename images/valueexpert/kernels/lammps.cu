// Atoms are added to an array that grows. before: by a fixed step, after: by a share of its size. All that
// was there is copied each time.
#include "mini.h"

KERNEL append(float* atoms, int from, int count) {
  const int n = THREAD;
  if (n < count) ST(atoms, from + n, static_cast<float>((from + n) * 7 % 1021) + 0.25f);
}

Result mini(Device& device, const std::string& variant, int chunks) {
  const int chunk = 16;
  int held = 0, room = chunk;
  float* atoms = device.alloc<float>(room, "atoms");
  for (int i = 0; i < chunks; ++i) {
    if (held + chunk > room) {
      const int step = variant == "after" ? (room * 4 / 5 + chunk - 1) / chunk * chunk : chunk;
      float* more = device.alloc<float>(room + step, "atoms");
      device.copy(more, atoms, held, "grow");
      atoms = more;
      room += step;
    }
    RUN(device, append, chunk, 32, atoms, held, chunk);
    held += chunk;
  }
  Host<float> found(held), wanted(held);
  for (int n = 0; n < held; ++n) wanted[n] = static_cast<float>(n * 7 % 1021) + 0.25f;
  device.download(found.data(), atoms, held, "download atoms");
  Result result;
  result.take(found);
  result.compare(found, wanted);
  return result;
}
