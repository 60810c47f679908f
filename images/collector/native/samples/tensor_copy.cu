// Copies by tensor map (TMA): one kernel brings a box in by a map among its parameters and one by a map
// in memory, another writes a box back. Needs compute capability 9.0.
#include <cuda.h>

#include <cstdint>

#include "sample.h"

constexpr int kRows = 64, kColumns = 32;

__device__ uint32_t shared_address(void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ void bring(float* box, uint64_t* barrier, const CUtensorMap* map, int times) {
  const uint32_t bar = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
               "r"(kRows * kColumns * 4)
               : "memory");
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(box)),
      "l"(map), "r"(0), "r"(0), "r"(bar)
      : "memory");
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
        " selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(times & 1)
        : "memory");
  }
}

__global__ void brings_in(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap,
                          const CUtensorMap* other, float* out) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) float box[kRows * kColumns];
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(other) : "memory");
  bring(box, &barrier, &map, 0);
  const float first = box[kRows * kColumns - 1];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  bring(box, &barrier, other, 1);
  out[0] = first + 10 * box[kRows * kColumns - 1];
#endif
}

__global__ void writes_back(const __grid_constant__ CUtensorMap map) {
#if __CUDA_ARCH__ >= 900
  __shared__ alignas(128) float box[kRows * kColumns];
  for (int i = threadIdx.x; i < kRows * kColumns; i += blockDim.x) box[i] = 3;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x != 0) return;
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(0), "r"(0), "r"(shared_address(box))
               : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

CUtensorMap map_of(float* tensor) {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000,
                                         cudaEnableDefault, &found));
  const cuuint64_t extents[] = {kColumns, kRows}, strides[] = {kColumns * sizeof(float)};
  const cuuint32_t box[] = {kColumns, kRows}, steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, tensor, extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    printf("cuTensorMapEncodeTiled: %d\n", (int)result);
    exit(3);
  }
  return map;
}

float* tensor(const char* name, float value) {
  float* memory = device_array<float>(name, kRows * kColumns);
  float* host = (float*)malloc(kRows * kColumns * sizeof(float));
  for (int i = 0; i < kRows * kColumns; ++i) host[i] = value;
  CHECK(cudaMemcpy(memory, host, kRows * kColumns * sizeof(float), cudaMemcpyHostToDevice));
  free(host);
  return memory;
}

int main() {
  float* a = tensor("a", 1);
  float* b = tensor("b", 2);
  float* unused = tensor("unused", 5);
  float* back = tensor("back", 0);
  float* out = device_array<float>("out", 1);
  CUtensorMap* inside = device_array<CUtensorMap>("map", 1);
  const CUtensorMap other = map_of(b);
  CHECK(cudaMemcpy(inside, &other, sizeof other, cudaMemcpyHostToDevice));
  brings_in<<<1, 32>>>(map_of(a), map_of(unused), inside, out);
  writes_back<<<1, 32>>>(map_of(back));
  CHECK(cudaDeviceSynchronize());
  printf("%.0f %.0f\n", sum_of(out, 1), sum_of(back, kRows * kColumns));
  return 0;
}
