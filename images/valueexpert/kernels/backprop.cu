// Weights of a layer are adjusted by delta and by the last change, both of which are zero here.
// before  loads and stores all the same, in double precision, as 0.3 is a double
// floats  the same with 0.3f
// after   the host sees that delta is zero and takes a kernel without it; the kernel sees that the last
//         change is zero and stores nothing
#include "mini.h"

template <class Real>
KERNEL adjust(const float* delta, const float* input, float* weight, float* change, int hidden,
              int inputs, Real eta, Real momentum) {
  const int n = THREAD;
  if (n >= hidden * inputs) return;
  const int to = n % hidden + 1, from = n / hidden + 1, at = from * (hidden + 1) + to;
  const float old = LD(change, at);
  const float by = static_cast<float>(eta * LD(delta, to) * LD(input, from) + momentum * old);
  ST(weight, at, LD(weight, at) + by);
  ST(change, at, by);
}

KERNEL adjust_by_change(float* weight, float* change, int hidden, int inputs, float momentum) {
  const int n = THREAD;
  if (n >= hidden * inputs) return;
  const int at = (n / hidden + 1) * (hidden + 1) + n % hidden + 1;
  const float old = LD(change, at);
  if (old == 0) return;
  const float by = momentum * old;
  ST(weight, at, LD(weight, at) + by);
  ST(change, at, by);
}

Result mini(Device& device, const std::string& variant, int inputs) {
  const int hidden = 16;
  Host<float> delta(hidden + 1, 0.0f), input(inputs + 1), weight((inputs + 1) * (hidden + 1));
  for (size_t i = 0; i < input.size(); ++i) input[i] = any_float(i);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = any_float(i + 1000000);
  const Host<float> wanted = weight;
  float* device_delta = device.alloc<float>(delta.size(), "delta");
  float* device_input = device.alloc<float>(input.size(), "input");
  float* device_weight = device.alloc<float>(weight.size(), "weights");
  float* change = device.alloc<float>(weight.size(), "last change");
  bool zero = true;
  for (const float one : delta) zero = zero && one == 0;
  const bool skip = variant == "after" && zero;
  if (!skip) device.upload(device_delta, delta.data(), delta.size(), "upload delta");
  device.upload(device_input, input.data(), input.size(), "upload input");
  device.upload(device_weight, weight.data(), weight.size(), "upload weights");
  device.fill(change, 0, weight.size(), "clear last change");
  const int threads = hidden * inputs;
  if (skip) {
    RUN(device, adjust_by_change, threads, 256, device_weight, change, hidden, inputs, 0.3f);
  } else if (variant == "floats") {
    RUN(device, adjust<float>, threads, 256, device_delta, device_input, device_weight, change,
        hidden, inputs, 0.3f, 0.3f);
  } else {
    RUN(device, adjust<double>, threads, 256, device_delta, device_input, device_weight, change,
        hidden, inputs, 0.3, 0.3);
  }
  weight.assign(weight.size(), -1.0f);
  device.download(weight.data(), device_weight, weight.size(), "download weights");
  Result result;
  result.take(weight);
  result.compare(weight, wanted);
  return result;
}
