// Rows of a table are gathered. The row of the padding index is zero; before: it is looked for and filled
// with zeros once more, by two further kernels.
#include "mini.h"

constexpr int kWidth = 8;

KERNEL gather(const int* index, const float* table, float* out, int tokens) {
  const int n = THREAD;
  if (n < tokens * kWidth) ST(out, n, LD(table, LD(index, n / kWidth) * kWidth + n % kWidth));
}

KERNEL equal(const int* index, uint8_t* mask, int padding, int tokens) {
  const int n = THREAD;
  if (n < tokens) ST(mask, n, static_cast<uint8_t>(LD(index, n) == padding));
}

KERNEL masked_fill(const uint8_t* mask, float* out, int tokens) {
  const int n = THREAD;
  if (n < tokens * kWidth && LD(mask, n / kWidth)) ST(out, n, 0.0f);
}

Result mini(Device& device, const std::string& variant, int tokens) {
  const int rows = 4 * tokens, padding = 0;
  Host<int> index(tokens);
  Host<float> table(rows * kWidth), out(tokens * kWidth), wanted(out.size());
  for (size_t i = 0; i < table.size(); ++i) table[i] = i < kWidth ? 0.0f : any_float(i);
  for (int n = 0; n < tokens; ++n) {
    index[n] = hash_of(n) % 4 == 0 ? padding : 1 + any_int(n) % (rows - 1);
    for (int i = 0; i < kWidth; ++i) wanted[n * kWidth + i] = table[index[n] * kWidth + i];
  }
  int* device_index = device.alloc<int>(tokens, "tokens");
  float* device_table = device.alloc<float>(table.size(), "table");
  float* device_out = device.alloc<float>(out.size(), "embeddings");
  device.upload(device_index, index.data(), tokens, "upload tokens");
  device.upload(device_table, table.data(), table.size(), "upload table");
  RUN(device, gather, tokens * kWidth, 256, device_index, device_table, device_out, tokens);
  if (variant != "after") {
    uint8_t* mask = device.alloc<uint8_t>(tokens, "mask");
    RUN(device, equal, tokens, 256, device_index, mask, padding, tokens);
    RUN(device, masked_fill, tokens * kWidth, 256, mask, device_out, tokens);
  }
  device.download(out.data(), device_out, out.size(), "download embeddings");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
