// One kernel of each kind of access, with counts known by construction. Argument: which.
// 8192 threads; what each does stands beside its kernel.
#include <cstring>

#include "sample.h"

constexpr int kThreads = 8192, kStride = 33, kBins = 64, kLocal = 16;

// Reads one element of 8 bytes, writes one of 2.
__global__ void strided(const double* in, short* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = (short)in[(size_t)i * kStride];
}

// Two atomics: one whose result is used, one whose is not; and one write.
__global__ void atomics(int* bins, int* others, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = atomicAdd(&bins[i * 7 % kBins], 1) >= 0;
  atomicAdd(&others[i * 5 % kBins], 2);
}

// Writes one word of shared memory and reads another; one read and one write of global memory.
__global__ void shared_words(const int* in, int* out) {
  __shared__ volatile int words[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  words[threadIdx.x] = in[i];
  __syncthreads();
  out[i] = words[255 - threadIdx.x];
}

// Writes 16 words of local memory and reads as many; one write of global memory.
__global__ void local_words(int* out, int mask) {
  volatile int words[kLocal];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  int sum = 0;
#pragma unroll 1
  for (int j = 0; j < kLocal; ++j) words[(i + j) & mask] = j;
#pragma unroll 1
  for (int j = 0; j < kLocal; ++j) sum += words[(i - j) & mask];
  out[i] = sum;
}

__device__ int global_table[1000];

// Reads a static array of the module, and memory of the host and managed memory.
__global__ void other_memory(const int* host, const int* managed, int* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = global_table[i % 1000] + host[i] + managed[i];
}

int main(int argc, char** argv) {
  const char* which = argc > 1 ? argv[1] : "strided";
  const dim3 blocks(kThreads / 256), threads(256);
  if (!strcmp(which, "strided")) {
    double* in = device_array<double>("in", (size_t)kThreads * kStride);
    short* out = device_array<short>("out", kThreads);
    strided<<<blocks, threads>>>(in, out);
    printf("%.0f\n", sum_of(out, kThreads));
  } else if (!strcmp(which, "atomic")) {
    int* bins = device_array<int>("bins", kBins);
    int* others = device_array<int>("others", kBins);
    int* out = device_array<int>("out", kThreads);
    atomics<<<blocks, threads>>>(bins, others, out);
    printf("%.0f %.0f %.0f\n", sum_of(bins, kBins), sum_of(others, kBins), sum_of(out, kThreads));
  } else if (!strcmp(which, "shared")) {
    int* in = device_array<int>("in", kThreads);
    int* out = device_array<int>("out", kThreads);
    shared_words<<<blocks, threads>>>(in, out);
    printf("%.0f\n", sum_of(out, kThreads));
  } else if (!strcmp(which, "local")) {
    int* out = device_array<int>("out", kThreads);
    local_words<<<blocks, threads>>>(out, kLocal - 1);
    printf("%.0f\n", sum_of(out, kThreads));
  } else if (!strcmp(which, "memory")) {
    int* out = device_array<int>("out", kThreads);
    int *host = nullptr, *managed = nullptr;
    CHECK(cudaMallocHost(&host, kThreads * sizeof(int)));
    CHECK(cudaMallocManaged(&managed, kThreads * sizeof(int)));
    piece("host", host, kThreads * sizeof(int));
    piece("managed", managed, kThreads * sizeof(int));
    for (int i = 0; i < kThreads; ++i) host[i] = managed[i] = 1;
    other_memory<<<blocks, threads>>>(host, managed, out);
    printf("%.0f\n", sum_of(out, kThreads));
    CHECK(cudaFreeHost(host));
    CHECK(cudaFree(managed));
  } else {
    return 2;
  }
  CHECK(cudaDeviceSynchronize());
  return 0;
}
