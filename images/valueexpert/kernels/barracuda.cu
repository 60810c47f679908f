// Reads are aligned in batches. before: sequences are uploaded again for a batch that has none, and every
// thread writes its whole array of positions, most of which nobody touched. after: neither.
#include "mini.h"

constexpr int kSlots = 24;

template <bool touched_only>
KERNEL align(const int* sequence, int* out, int count) {
  const int n = THREAD;
  if (n >= count) return;
  const int read = LD(sequence, n);
  int local[kSlots] = {0};
  local[static_cast<unsigned>(read) % kSlots] = read;
  for (int i = 0; i < kSlots; ++i) {
    if (!touched_only || local[i] != 0) ST(out, n * kSlots + i, local[i]);
  }
}

Result mini(Device& device, const std::string& variant, int count) {
  const bool after = variant == "after";
  Host<int> sequence(count), out(count * kSlots, -1), wanted(out.size(), 0);
  for (int n = 0; n < count; ++n) {
    sequence[n] = any_int(n) | 1;
    wanted[n * kSlots + static_cast<unsigned>(sequence[n]) % kSlots] = sequence[n];
  }
  int* device_sequence = device.alloc<int>(count, "sequences");
  int* device_out = device.alloc<int>(out.size(), "alignments");
  const int in_batch[] = {count, 0};
  device.fill(device_out, 0, out.size(), "clear alignments");
  for (const int number : in_batch) {
    if (number != 0 || !after) {
      device.upload(device_sequence, sequence.data(), count, "upload sequences");
    }
    if (number == 0) continue;
    if (after) RUN(device, align<true>, count, 64, device_sequence, device_out, count);
    else RUN(device, align<false>, count, 64, device_sequence, device_out, count);
  }
  device.download(out.data(), device_out, out.size(), "download alignments");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
