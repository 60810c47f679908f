// Each thread of 32 clusters of two blocks reads a word of the other block's shared memory and writes
// one into it. Needs compute capability 9.0.
#include <cstdint>

#include "sample.h"

constexpr int kBlocks = 64, kThreads = 128;

__global__ void __cluster_dims__(2, 1, 1) exchange(int* out) {
#if __CUDA_ARCH__ >= 900
  __shared__ int words[2 * kThreads];
  const uint32_t own = (uint32_t)__cvta_generic_to_shared(words + threadIdx.x);
  uint32_t rank, other;
  int word;
  words[threadIdx.x] = blockIdx.x;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(own), "r"(rank ^ 1));
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(word) : "r"(other) : "memory");
  asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(other + 4 * kThreads), "r"(word) : "memory");
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
  out[blockIdx.x * kThreads + threadIdx.x] = word + words[kThreads + threadIdx.x];
#endif
}

int main() {
  int* out = device_array<int>("out", kBlocks * kThreads);
  exchange<<<kBlocks, kThreads>>>(out);
  CHECK(cudaDeviceSynchronize());
  printf("%.0f\n", sum_of(out, kBlocks * kThreads));
  return 0;
}
