// Histograms of parts are added up by atomics; most counts are zero. after: zeros are not added.
#include "mini.h"

constexpr int kBins = 256;

template <bool tested>
KERNEL add_up(const unsigned* part, unsigned* total, int count) {
  const int n = THREAD;
  if (n >= count) return;
  const unsigned by = LD(part, n);
  if (!tested || by != 0) ADD_ATOMIC(total, n % kBins, by);
}

Result mini(Device& device, const std::string& variant, int parts) {
  const int count = parts * kBins;
  // `total` holds what no bin can count to: zeros would be nearly what comes from the GPU.
  Host<unsigned> part(count, 0), total(kBins, ~0u), wanted(kBins, 0);
  for (int p = 0; p < parts; ++p) {
    for (int i = 0; i < 8; ++i) part[p * kBins + hash_of(p * 8 + i) % 160] += 1 + any_int(p) % 1000;
  }
  for (int i = 0; i < count; ++i) wanted[i % kBins] += part[i];
  unsigned* device_part = device.alloc<unsigned>(count, "parts");
  unsigned* device_total = device.alloc<unsigned>(kBins, "total");
  device.upload(device_part, part.data(), count, "upload parts");
  device.fill(device_total, 0, kBins, "clear total");
  if (variant == "after") RUN(device, add_up<true>, count, 256, device_part, device_total, count);
  else RUN(device, add_up<false>, count, 256, device_part, device_total, count);
  device.download(total.data(), device_total, kBins, "download total");
  Result result;
  result.take(total);
  result.compare(total, wanted);
  return result;
}
