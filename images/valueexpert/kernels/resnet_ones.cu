// A convolution as im2col and a product, without cuDNN: a vector of ones is filled in every call, to add a
// bias that is not there. after: it is filled only where there is a bias.
#include "mini.h"

KERNEL fill_ones(float* ones, int count) {
  const int n = THREAD;
  if (n < count) ST(ones, n, 1.0f);
}

KERNEL product(const float* weight, const float* columns, float* out, int inner, int count) {
  const int n = THREAD;
  if (n >= count) return;
  float sum = 0;
  for (int k = 0; k < inner; ++k) sum += LD(weight, k) * LD(columns, k * count + n);
  ST(out, n, sum);
}

Result mini(Device& device, const std::string& variant, int count) {
  const int inner = 9, batch = 3;
  Host<float> weight(inner), columns(batch * inner * count), out(batch * count);
  Host<float> wanted(out.size(), 0.0f);
  for (int k = 0; k < inner; ++k) weight[k] = any_float(k);
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = any_float(i + 1000);
  for (int b = 0; b < batch; ++b) {
    for (int k = 0; k < inner; ++k) {
      for (int n = 0; n < count; ++n) {
        wanted[b * count + n] += weight[k] * columns[(b * inner + k) * count + n];
      }
    }
  }
  float* device_weight = device.alloc<float>(inner, "weights");
  float* device_columns = device.alloc<float>(columns.size(), "columns");
  float* device_out = device.alloc<float>(out.size(), "output");
  float* ones = device.alloc<float>(count, "ones");
  device.upload(device_weight, weight.data(), inner, "upload weights");
  device.upload(device_columns, columns.data(), columns.size(), "upload columns");
  for (int b = 0; b < batch; ++b) {
    if (variant != "after") RUN(device, fill_ones, count, 256, ones, count);
    RUN(device, product, count, 256, device_weight, device_columns + b * inner * count,
        device_out + b * count, inner, count);
  }
  device.download(out.data(), device_out, out.size(), "download output");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
