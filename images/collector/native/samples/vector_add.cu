// c = a + b: per element two reads and a write of 4 bytes. Argument: elements.
#include "sample.h"

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}

__global__ void fill(float* a, float value, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) a[i] = value;
}

int main(int argc, char** argv) {
  const int n = argc > 1 ? atoi(argv[1]) : 100000;
  const int blocks = (n + 255) / 256;
  float* a = device_array<float>("a", n);
  float* b = device_array<float>("b", n);
  float* c = device_array<float>("c", n);
  fill<<<blocks, 256>>>(a, 1.0f, n);
  fill<<<blocks, 256>>>(b, 2.0f, n);
  vector_add<<<blocks, 256>>>(a, b, c, n);
  CHECK(cudaDeviceSynchronize());
  printf("sum %.0f\n", sum_of(c, n));
  return 0;
}
