// cp.async: each of 4096 threads copies 16 bytes into shared memory. Needs compute capability 8.0.
#include <cstdint>

#include "sample.h"

constexpr int kThreads = 4096;

__global__ void async_copy(const int4* in, int4* out) {
#if __CUDA_ARCH__ >= 800
  __shared__ int4 words[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t to = (uint32_t)__cvta_generic_to_shared(&words[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(in + i) : "memory");
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  out[i] = words[threadIdx.x];
#endif
}

int main() {
  int4* in = device_array<int4>("in", kThreads);
  int4* out = device_array<int4>("out", kThreads);
  CHECK(cudaMemset(in, 1, kThreads * sizeof(int4)));
  async_copy<<<kThreads / 256, 256>>>(in, out);
  CHECK(cudaDeviceSynchronize());
  printf("%.0f\n", sum_of((int*)out, kThreads * 4));
  return 0;
}
