// Layers of a network. before: each output is made by uploading zeros, filled with zeros before each use,
// and added to by the product. after: filled on the device once, and overwritten by the product.
#include "mini.h"

constexpr int kInner = 8;

template <bool adding>
KERNEL gemm(const float* weight, const float* in, float* out, int rows, int columns) {
  const int n = THREAD;
  if (n >= rows * columns) return;
  const int i = n / columns, j = n % columns;
  float sum = adding ? LD(out, n) : 0.0f;
  for (int k = 0; k < kInner; ++k) sum += LD(weight, i * kInner + k) * LD(in, k * columns + j);
  ST(out, n, sum);
}

Result mini(Device& device, const std::string& variant, int columns) {
  const int layers = 4, rows = kInner, count = rows * columns;
  const bool adding = variant != "after";
  const char* const names[] = {"output 1", "output 2", "output 3", "output 4"};
  const char* const uploads[] = {"zeros to 1", "zeros to 2", "zeros to 3", "zeros to 4"};
  const char* const fills[] = {"fill 1", "fill 2", "fill 3", "fill 4"};
  Host<float> image(count), weight(layers * rows * kInner), zeros(count, 0.0f);
  for (int i = 0; i < count; ++i) image[i] = any_float(i);
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = any_float(i + 1000000) - 0.9f;
  Host<float> wanted = image;
  for (int layer = 0; layer < layers; ++layer) {
    const Host<float> in = wanted;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        float sum = 0;
        for (int k = 0; k < kInner; ++k) {
          sum += weight[(layer * rows + i) * kInner + k] * in[k * columns + j];
        }
        wanted[i * columns + j] = sum;
      }
    }
  }
  float* device_weight = device.alloc<float>(weight.size(), "weights");
  float* in = device.alloc<float>(count, "image");
  float* out[layers];
  device.upload(device_weight, weight.data(), weight.size(), "upload weights");
  device.upload(in, image.data(), count, "upload image");
  for (int layer = 0; layer < layers; ++layer) {
    out[layer] = device.alloc<float>(count, names[layer]);
    if (adding) device.upload(out[layer], zeros.data(), count, uploads[layer]);
    else device.fill(out[layer], 0, count, fills[layer]);
  }
  for (int layer = 0; layer < layers; ++layer) {
    const float* own = device_weight + layer * rows * kInner;
    if (adding) {
      device.fill(out[layer], 0, count, fills[layer]);
      RUN(device, gemm<true>, count, 256, own, in, out[layer], rows, columns);
    } else {
      RUN(device, gemm<false>, count, 256, own, in, out[layer], rows, columns);
    }
    in = out[layer];
  }
  device.download(image.data(), in, count, "download output");
  Result result;
  result.take(image);
  result.compare(image, wanted);
  return result;
}
