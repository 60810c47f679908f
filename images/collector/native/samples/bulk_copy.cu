// Bulk copies: each of 64 blocks brings 4096 bytes into shared memory with one instruction, and
// writes them back with another. Needs compute capability 9.0.
#include <cstdint>

#include "sample.h"

constexpr int kBlocks = 64, kWords = 1024;

__global__ void bulk_copy(const int* in, int* out) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) int words[kWords];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t data = (uint32_t)__cvta_generic_to_shared(words);
  const uint32_t bar = (uint32_t)__cvta_generic_to_shared(&barrier);
  const uint32_t bytes = kWords * sizeof(int);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(data), "l"(in + blockIdx.x * kWords), "r"(bytes), "r"(bar)
        : "memory");
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
          " selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(bar)
          : "memory");
    }
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     out + blockIdx.x * kWords),
                 "r"(data), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
#endif
}

int main() {
  int* in = device_array<int>("in", kBlocks * kWords);
  int* out = device_array<int>("out", kBlocks * kWords);
  CHECK(cudaMemset(in, 1, kBlocks * kWords * sizeof(int)));
  bulk_copy<<<kBlocks, 32>>>(in, out);
  CHECK(cudaDeviceSynchronize());
  printf("%.0f\n", sum_of(out, kBlocks * kWords));
  return 0;
}
