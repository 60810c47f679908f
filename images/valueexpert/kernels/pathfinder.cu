// Cheapest way down a grid. Walls are 0 to 9 and sums below 256, so that a byte holds them: before
// int32, after uint8. A sum may leave the byte once rows * 9 exceeds 255: after checks its range.
#include "mini.h"

template <class T>
KERNEL step(const T* wall, const T* from, T* to, int columns, int row) {
  const int x = THREAD;
  if (x >= columns) return;
  int best = LD(from, x);
  if (x > 0) {
    const int left = LD(from, x - 1);
    best = left < best ? left : best;
  }
  if (x + 1 < columns) {
    const int right = LD(from, x + 1);
    best = right < best ? right : best;
  }
  ST(to, x, static_cast<T>(best + LD(wall, row * columns + x)));
}

template <class T>
Result search(Device& device, int columns, int rows) {
  Host<T> wall(static_cast<size_t>(rows) * columns), found(columns);
  for (size_t i = 0; i < wall.size(); ++i) wall[i] = static_cast<T>(hash_of(i) % 10);
  Host<int> sum(wall.begin(), wall.begin() + columns), next(columns);
  int most = 0;
  for (int row = 1; row < rows; ++row) {
    for (int x = 0; x < columns; ++x) {
      int best = sum[x];
      if (x > 0 && sum[x - 1] < best) best = sum[x - 1];
      if (x + 1 < columns && sum[x + 1] < best) best = sum[x + 1];
      next[x] = best + wall[static_cast<size_t>(row) * columns + x];
      most = next[x] > most ? next[x] : most;
    }
    sum.swap(next);
  }
  Result result;
  if (sizeof(T) == 1 && most > 255) {
    result.refused = true;
    result.why = "a sum of " + std::to_string(most) + " does not fit into a byte; take fewer rows";
    return result;
  }
  T* device_wall = device.alloc<T>(wall.size(), "wall");
  T* from = device.alloc<T>(columns, "sums");
  T* to = device.alloc<T>(columns, "other sums");
  device.upload(device_wall, wall.data(), wall.size(), "upload wall");
  device.upload(from, wall.data(), columns, "upload first row");
  for (int row = 1; row < rows; ++row) {
    RUN(device, step<T>, columns, 256, device_wall, from, to, columns, row);
    T* other = from;
    from = to;
    to = other;
  }
  device.download(found.data(), from, columns, "download sums");
  result.take(found);
  result.compare(found, sum);
  return result;
}

Result mini(Device& device, const std::string& variant, int size) {
  const int rows = size > 1000000 ? size / 1000000 : 24, columns = size % 1000000;
  return variant == "after" ? search<uint8_t>(device, columns, rows)
                            : search<int>(device, columns, rows);
}
