// Two steps of diffusion on an image. The coefficient is clamped to 1 everywhere, and the four arrays of
// neighbours hold i - 1, i + 1, j - 1, j + 1, clamped.
// value   the coefficient is preset once, and stored where it is another
// index   the neighbours are computed
// after   both
#include "mini.h"

KERNEL preset(float* coefficient, int count) {
  const int n = THREAD;
  if (n < count) ST(coefficient, n, 1.0f);
}

DEVICE int before_of(int n) { return n > 0 ? n - 1 : 0; }
DEVICE int after_of(int n, int count) { return n + 1 < count ? n + 1 : n; }

template <bool computed, bool eliding>
KERNEL derive(const float* image, const int* up, const int* down, const int* left,
              const int* right, float* coefficient, int rows, int columns) {
  const int n = THREAD;
  if (n >= rows * columns) return;
  const int i = n / columns, j = n % columns;
  const int north = computed ? before_of(i) : LD(up, i);
  const int south = computed ? after_of(i, rows) : LD(down, i);
  const int west = computed ? before_of(j) : LD(left, j);
  const int east = computed ? after_of(j, columns) : LD(right, j);
  const float own = LD(image, n);
  const float sum = LD(image, north * columns + j) + LD(image, south * columns + j) +
                    LD(image, i * columns + west) + LD(image, i * columns + east) - 4 * own;
  const float change = sum / own * 0.25f;
  const float spread = change * change - 4.0f;  // far below what noise of the image gives
  float c = 1.0f / (1.0f + spread * 0.05f);
  c = c > 1 ? 1.0f : c < 0 ? 0.0f : c;
  if (!eliding || c != 1.0f) ST(coefficient, n, c);
}

template <bool computed>
KERNEL diffuse(float* image, const int* down, const int* right, const float* coefficient,
               float* out, int rows, int columns) {
  const int n = THREAD;
  if (n >= rows * columns) return;
  const int i = n / columns, j = n % columns;
  const int south = computed ? after_of(i, rows) : LD(down, i);
  const int east = computed ? after_of(j, columns) : LD(right, j);
  const float own = LD(image, n), c = LD(coefficient, n);
  const float by = c * (LD(image, south * columns + j) - own) +
                   c * (LD(image, i * columns + east) - own);
  ST(out, n, own + 0.125f * by);
}

template <bool computed, bool eliding>
Result run(Device& device, int side) {
  const int rows = side, columns = side + 1, count = rows * columns;
  Host<float> image(count);
  for (int n = 0; n < count; ++n) image[n] = any_float(n) + 1.0f;
  Host<int> up(rows), down(rows), left(columns), right(columns);
  for (int i = 0; i < rows; ++i) up[i] = i > 0 ? i - 1 : 0, down[i] = i + 1 < rows ? i + 1 : i;
  for (int j = 0; j < columns; ++j) {
    left[j] = j > 0 ? j - 1 : 0;
    right[j] = j + 1 < columns ? j + 1 : j;
  }
  Host<float> wanted = image;
  for (int step = 0; step < 2; ++step) {
    const Host<float> old = wanted;
    for (int i = 0; i < rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        const float own = old[i * columns + j];
        const float by = (old[down[i] * columns + j] - own) + (old[i * columns + right[j]] - own);
        wanted[i * columns + j] = own + 0.125f * by;
      }
    }
  }
  float* now = device.alloc<float>(count, "image");
  float* next = device.alloc<float>(count, "next image");
  float* coefficient = device.alloc<float>(count, "coefficients");
  int *device_up = nullptr, *device_down = nullptr, *device_left = nullptr, *device_right = nullptr;
  device.upload(now, image.data(), count, "upload image");
  if (!computed) {
    device_up = device.alloc<int>(rows, "north");
    device_down = device.alloc<int>(rows, "south");
    device_left = device.alloc<int>(columns, "west");
    device_right = device.alloc<int>(columns, "east");
    device.upload(device_up, up.data(), rows, "upload north");
    device.upload(device_down, down.data(), rows, "upload south");
    device.upload(device_left, left.data(), columns, "upload west");
    device.upload(device_right, right.data(), columns, "upload east");
  }
  if (eliding) RUN(device, preset, count, 256, coefficient, count);
  for (int step = 0; step < 2; ++step) {
    RUN(device, (derive<computed, eliding>), count, 256, now, device_up, device_down, device_left,
        device_right, coefficient, rows, columns);
    RUN(device, diffuse<computed>, count, 256, now, device_down, device_right, coefficient, next,
        rows, columns);
    float* other = now;
    now = next;
    next = other;
  }
  device.download(image.data(), now, count, "download image");
  Result result;
  result.take(image);
  result.compare(image, wanted);
  return result;
}

Result mini(Device& device, const std::string& variant, int side) {
  if (variant == "after") return run<true, true>(device, side);
  if (variant == "index") return run<true, false>(device, side);
  return variant == "value" ? run<false, true>(device, side) : run<false, false>(device, side);
}
