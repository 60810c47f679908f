// Five variables of every cell begin with the same five numbers. before: arrays of them, uploaded twice.
// after: the kernel takes the five by the variable's index, and there is no second copy.
#include "mini.h"

constexpr int kVariables = 5;

template <bool folded>
KERNEL flux(const float* variables, const float* weight, float* out, int cells) {
  const int n = THREAD;
  if (n >= cells) return;
  float sum = 0;
  for (int k = 0; k < kVariables; ++k) {
    sum += LD(variables, folded ? k : k * cells + n) * LD(weight, k * cells + n);
  }
  ST(out, n, sum);
}

Result mini(Device& device, const std::string& variant, int cells) {
  const bool folded = variant == "after";
  Host<float> start(kVariables), whole(kVariables * cells), weight(kVariables * cells);
  Host<float> out(cells), wanted(cells, 0.0f);
  for (int k = 0; k < kVariables; ++k) start[k] = any_float(k);
  for (int i = 0; i < kVariables * cells; ++i) {
    whole[i] = start[i / cells];
    weight[i] = any_float(i + 1000);
  }
  for (int k = 0; k < kVariables; ++k) {
    for (int n = 0; n < cells; ++n) wanted[n] += whole[k * cells + n] * weight[k * cells + n];
  }
  float* device_weight = device.alloc<float>(weight.size(), "weights");
  float* device_out = device.alloc<float>(cells, "flux");
  device.upload(device_weight, weight.data(), weight.size(), "upload weights");
  float* variables = device.alloc<float>(folded ? kVariables : whole.size(), "variables");
  if (folded) {
    device.upload(variables, start.data(), start.size(), "upload start");
    RUN(device, flux<true>, cells, 256, variables, device_weight, device_out, cells);
  } else {
    float* old = device.alloc<float>(whole.size(), "old variables");
    device.upload(variables, whole.data(), whole.size(), "upload variables");
    device.upload(old, whole.data(), whole.size(), "upload old variables");
    RUN(device, flux<false>, cells, 256, variables, device_weight, device_out, cells);
  }
  device.download(out.data(), device_out, cells, "download flux");
  Result result;
  result.take(out);
  result.compare(out, wanted);
  return result;
}
