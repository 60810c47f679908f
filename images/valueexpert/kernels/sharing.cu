// Turns of CPU and GPU in managed memory, a number of each on every page: before, the two lie on one
// page, and the page goes back and forth although no number does; after, each side's numbers have
// pages of their own. In both, `total` is truly shared, and both read `factors`.
// SIZE: pages; 1000000 and more: so many less 1000000, 2 MiB apart.
#include "mini.h"

static constexpr int kRounds = 8;

KERNEL advance(float* numbers, size_t stride, int count, const float* factors, float* total,
               float* copy, int round) {
  const int i = THREAD;
  if (i >= count) return;
  const float last = round ? LD(numbers, i * stride) : 0.0f;
  const float next = last * LD(factors, 0) + LD(factors, 1);
  ST(numbers, i * stride, next);
  ST(copy, i, next);
  if (i == 0) ST(total, 0, next + LD(total, 1));
}

Result mini(Device& device, const std::string& variant, int size) {
  const bool apart = size >= 1000000;
  const int count = size % 1000000;
  const size_t stride = (apart ? size_t{2} << 20 : 4096) / sizeof(float);
  const bool together = variant == "before";
  float* const gpu = device.managed<float>(count * stride, together ? "cells" : "GPU's cells");
  float* const cpu = together ? gpu + 16 : device.managed<float>(count * stride, "CPU's cells");
  float* const factors = device.managed<float>(2, "factors");
  float* const total = device.managed<float>(2, "total");
  float* const copy = device.alloc<float>(count, "copy");  // in the GPU's own memory
  device.turn("first values", [=] {
    HOST_ST(factors, 0, 0.5f);
    HOST_ST(factors, 1, 3.0f);
    HOST_ST(total, 1, 0.0f);
    for (int i = 0; i < count; ++i) HOST_ST(cpu, i * stride, any_float(i));
    return true;
  });
  Host<float> mine(count), found(count);
  for (int i = 0; i < count; ++i) mine[i] = any_float(i);
  float theirs = 0, sum = 0;
  for (int round = 0; round < kRounds; ++round) {
    RUN(device, advance, count, 32, gpu, stride, count, factors, total, copy, round);
    theirs = theirs * 0.5f + 3.0f;
    const float wanted = theirs + sum;
    sum = wanted * 0.25f;
    for (float& one : mine) one += 3.0f;
    const Host<float> right = mine;
    device.turn("CPU's turn", [=] {
      bool same = HOST_LD(total, 0) == wanted;
      HOST_ST(total, 1, wanted * 0.25f);
      for (int i = 0; i < count; ++i) {
        const float next = HOST_LD(cpu, i * stride) + HOST_LD(factors, 1);
        HOST_ST(cpu, i * stride, next);
        same = same && next == right[static_cast<size_t>(i)];
      }
      return same;
    });
  }
  device.download(found.data(), copy, count, "download copy");
  Result result;
  result.take(mine);
  result.take(found);
  result.compare(found, Host<float>(count, theirs));
  return result;
}
