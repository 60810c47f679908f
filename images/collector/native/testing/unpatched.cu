// Kernels with the instructions that no patch sees, one kind each, for the tests of cubin.cc.
#include <cuda.h>

#include <cstdint>

struct Two {
  float* out;
  CUtensorMap first, second;
  int value;
};
struct Large {
  char bytes[20000];
};

__device__ uint32_t shared_address(void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

#ifdef TENSOR_MAPS
extern "C" __global__ void loads(float* out, const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(128) float box[];
  __shared__ uint64_t barrier;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(box)),
        "l"(&map), "r"(0), "r"(0), "r"(shared_address(&barrier))
        : "memory");
  }
  __syncthreads();
  out[threadIdx.x] = box[threadIdx.x];
}

extern "C" __global__ void stores(const __grid_constant__ Two two) {
  extern __shared__ __align__(128) float box[];
  box[threadIdx.x] = two.value;
  __syncthreads();
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                   &two.second),
               "r"(0), "r"(0), "r"(shared_address(box))
               : "memory");
}

extern "C" __global__ void reduces(const __grid_constant__ Two two) {
  extern __shared__ __align__(128) float box[];
  box[threadIdx.x] = two.value;
  __syncthreads();
  asm volatile(
      "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &two.second),
      "r"(0), "r"(0), "r"(shared_address(box))
      : "memory");
}
#endif

extern "C" __global__ void textures(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex1Dfetch<float>(texture, threadIdx.x);
}
extern "C" __global__ void layers(cudaTextureObject_t texture, float* out) {
  out[threadIdx.x] = tex2DLod<float>(texture, .5f, .5f, 1.f) +
                     tex2DGrad<float>(texture, .5f, .5f, make_float2(1, 1), make_float2(1, 1)) +
                     tex2Dgather<float4>(texture, .1f, .2f, 0).x;
}
extern "C" __global__ void surfaces(cudaSurfaceObject_t surface, float* out) {
  float value;
  surf2Dread(&value, surface, threadIdx.x * 4, 0);
  out[threadIdx.x] = value;
  surf2Dwrite(value, surface, threadIdx.x * 4, 1);
}
extern "C" __global__ void large(const __grid_constant__ Large all, int at, float* out) {
  out[0] = all.bytes[at];
}
extern "C" __global__ void plain(float* out, int at) { out[at] = 1; }
struct Pair {
  float *first, *second;
};
__global__ void typed(float* out, const float* in, Pair pair) { out[0] = in[0] + pair.first[0]; }
