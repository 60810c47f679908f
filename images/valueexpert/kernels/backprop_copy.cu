// The input is uploaded, never written on the device, and downloaded again. after: is not downloaded.
#include "mini.h"

KERNEL forward(const float* input, const float* weight, float* sum, int inputs, int hidden) {
  const int j = THREAD;
  if (j >= hidden) return;
  float total = 0;
  for (int i = 0; i < inputs; ++i) total += LD(input, i) * LD(weight, i * hidden + j);
  ST(sum, j, total);
}

Result mini(Device& device, const std::string& variant, int inputs) {
  const int hidden = 32;
  Host<float> input(inputs), weight(inputs * hidden), sum(hidden), wanted(hidden, 0.0f);
  for (size_t i = 0; i < input.size(); ++i) input[i] = any_float(i);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = any_float(i + 1000000);
  for (int i = 0; i < inputs; ++i) {
    for (int j = 0; j < hidden; ++j) wanted[j] += input[i] * weight[i * hidden + j];
  }
  float* device_input = device.alloc<float>(input.size(), "input");
  float* device_weight = device.alloc<float>(weight.size(), "weights");
  float* device_sum = device.alloc<float>(hidden, "sums");
  device.upload(device_input, input.data(), input.size(), "upload input");
  device.upload(device_weight, weight.data(), weight.size(), "upload weights");
  RUN(device, forward, hidden, 32, device_input, device_weight, device_sum, inputs, hidden);
  device.download(sum.data(), device_sum, hidden, "download sums");
  if (variant != "after") device.download(input.data(), device_input, inputs, "download input");
  Result result;
  result.take(sum);
  result.take(input);
  result.compare(sum, wanted);
  return result;
}
