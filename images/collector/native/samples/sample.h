// What the samples share: checks, and a list of the memory that they take, for the tests to compare.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t error_ = (call);                                                       \
    if (error_ != cudaSuccess) {                                                             \
      printf("%s: %s\n", #call, cudaGetErrorString(error_));                                 \
      exit(3);                                                                               \
    }                                                                                        \
  } while (0)

// Writes a line `NAME ADDRESS SIZE` into the file that SAMPLE_PIECES names.
inline void piece(const char* name, const void* address, size_t size) {
  const char* path = getenv("SAMPLE_PIECES");
  FILE* file = path ? fopen(path, "a") : nullptr;
  if (!file) return;
  fprintf(file, "%s %llu %zu\n", name, (unsigned long long)(size_t)address, size);
  fclose(file);
}

template <class T>
T* device_array(const char* name, size_t count) {
  T* memory = nullptr;
  CHECK(cudaMalloc(&memory, count * sizeof(T)));
  CHECK(cudaMemset(memory, 0, count * sizeof(T)));
  piece(name, memory, count * sizeof(T));
  return memory;
}

template <class T>
double sum_of(const T* device, size_t count) {
  T* host = (T*)malloc(count * sizeof(T));
  CHECK(cudaMemcpy(host, device, count * sizeof(T), cudaMemcpyDeviceToHost));
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (double)host[i];
  free(host);
  return sum;
}
