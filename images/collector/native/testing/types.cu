// Kernels whose loads and stores are of known types, for the tests of accel_trace.sass: see
// tests/test_sass.py, which has the types of each.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <cstdint>

namespace wmma = nvcuda::wmma;

#define KERNEL extern "C" __global__ void
#define INDEX const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;

KERNEL halves(const __half* a, __half* b, int n) { INDEX b[i] = __hfma(a[i], a[i], __float2half(1.5f)); }
KERNEL half_pairs(const __half2* a, __half2* b, int n) { INDEX b[i] = __hmul2(a[i], a[i]); }
KERNEL half_to_float(const __half* a, float* b, int n) { INDEX b[i] = __half2float(a[i]); }
KERNEL brain(const __nv_bfloat16* a, __nv_bfloat16* b, int n) {
  INDEX b[i] = __float2bfloat16(__bfloat162float(a[i]) * 3.f);
}
KERNEL brain_vectors(const uint2* a, uint2* b, int n) {
  INDEX
  uint2 v = a[i];
  auto* x = reinterpret_cast<__nv_bfloat162*>(&v);
  x[0] = __hmul2(x[0], x[0]);
  x[1] = __hadd2(x[1], x[1]);
  b[i] = v;
}
KERNEL float_vectors(const float4* a, float4* b, int n) {
  INDEX
  float4 v = a[i];
  b[i] = {v.x + 1, v.y * 2, v.z - 3, v.x / v.w};
}
KERNEL relu(const float* a, float* b, int n) { INDEX b[i] = a[i] > 0 ? a[i] : 0; }
KERNEL looped(const float* a, float* b, int n) {
  INDEX
  float sum = 0;
  for (int j = i; j < n; j += gridDim.x * blockDim.x) sum += a[j];
  b[i] = sum;
}
KERNEL divided(const float* a, float* b, int n) { INDEX b[i] = a[i] / (a[i] + n); }
KERNEL double_vectors(const double2* a, double2* b, int n) { INDEX b[i] = {a[i].x + 1, a[i].y * 2}; }
KERNEL double_divided(const double* a, double* b, int n) { INDEX b[i] = a[i] / (a[i] + 3); }
KERNEL double_to_float(const double* a, float* b, int n) { INDEX b[i] = static_cast<float>(a[i]); }
KERNEL integers(const int* a, int* b, int n) { INDEX b[i] = a[i] * 3 + 1; }
KERNEL integers_to_floats(const int* a, float* b, int n) { INDEX b[i] = static_cast<float>(a[i]); }
KERNEL unsigned_to_floats(const unsigned* a, float* b, int n) {
  INDEX b[i] = static_cast<float>(a[i]);
}
KERNEL bytes(const uint8_t* a, uint8_t* b, int n) { INDEX b[i] = a[i] / 3 + 5; }
KERNEL shorts(const int16_t* a, int* b, int n) { INDEX b[i] = a[i] + 5; }
KERNEL long_index(const long long* a, int* b, int n) { INDEX b[a[i]] = n * i; }
KERNEL longs(const long long* a, long long* b, int n) { INDEX b[i] = a[i] > 7 ? a[i] : n; }
KERNEL copied(const float* a, float* b, int n) { INDEX b[i] = a[i]; }
KERNEL zeroed(const float*, float* b, int n) { INDEX b[i] = 0; }
KERNEL through_shared(const float* a, float* b, int n) {
  __shared__ float tile[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = a[i];
  __syncthreads();
  b[i] = tile[255 - threadIdx.x] * 2.f;
}

template <int M, int N, int K, class In, class Element, class Out>
__device__ void multiply(const Element* a, Out* c) {
  wmma::fragment<wmma::matrix_a, M, N, K, In, wmma::row_major> left;
  wmma::fragment<wmma::matrix_b, M, N, K, In, wmma::col_major> right;
  wmma::fragment<wmma::accumulator, M, N, K, Out> sum;
  wmma::fill_fragment(sum, Out(0));
  wmma::load_matrix_sync(left, a, K);
  wmma::load_matrix_sync(right, a + M * K, K);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, N, wmma::mem_row_major);
}
KERNEL matrix_half(const __half* a, float* c, int) { multiply<16, 16, 16, __half>(a, c); }
KERNEL matrix_brain(const __nv_bfloat16* a, float* c, int) { multiply<16, 16, 16, __nv_bfloat16>(a, c); }
KERNEL matrix_tf32(const float* a, float* c, int) { multiply<16, 16, 8, wmma::precision::tf32>(a, c); }
KERNEL matrix_bytes(const signed char* a, int* c, int) { multiply<16, 16, 16, signed char>(a, c); }
KERNEL matrix_double(const double* a, double* c, int) { multiply<8, 8, 4, double>(a, c); }
