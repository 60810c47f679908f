// What is the same in a patch on the GPU and in the tests' driver on the host, where a warp has
// one lane, or those that AT_LANES brings: words for the few intrinsics that the patches use.
#pragma once

#include <cstdint>

#ifdef __CUDACC__

#define AT_BOTH static __host__ __device__ __forceinline__
#define AT_BOTH_MEMBER __host__ __device__ __forceinline__
#define AT_DEVICE static __device__ __forceinline__
#define AT_PATCH extern "C" __device__ __noinline__

namespace accel_trace {
namespace lanes {

AT_DEVICE uint32_t active() { return __activemask(); }
AT_DEVICE uint32_t own() {
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
AT_DEVICE uint32_t first(uint32_t mask) { return static_cast<uint32_t>(__ffs(mask)) - 1; }
AT_DEVICE uint32_t count(uint32_t mask) { return static_cast<uint32_t>(__popc(mask)); }
AT_DEVICE uint32_t vote(uint32_t mask, bool yes) { return __ballot_sync(mask, yes); }
AT_DEVICE uint32_t take(uint32_t mask, uint32_t value, uint32_t lane) {
  return __shfl_sync(mask, value, static_cast<int>(lane));
}
AT_DEVICE uint64_t take(uint32_t mask, uint64_t value, uint32_t lane) {
  return __shfl_sync(mask, static_cast<unsigned long long>(value), static_cast<int>(lane));
}
// Whether all have the same value.
AT_DEVICE bool same(uint32_t mask, uint32_t value) {
  int all;
  __match_all_sync(mask, value, &all);
  return all != 0;
}
AT_DEVICE bool same(uint32_t mask, uint64_t value) {
  int all;
  __match_all_sync(mask, static_cast<unsigned long long>(value), &all);
  return all != 0;
}
AT_DEVICE void meet(uint32_t mask) { __syncwarp(mask); }
// A number that spreads the warps of a GPU over copies of a counter.
AT_DEVICE uint32_t spread() {
  uint32_t sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm;
}
AT_DEVICE uint32_t block() {  // flat, in the grid
  return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
AT_DEVICE uint32_t thread() {  // flat, in the block
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

}  // namespace lanes

// All that patches are handed lies in global memory, also what is pinned on the host. Said to the
// compiler, loads and atomics need not ask which space a pointer is of.
template <class T>
AT_BOTH T* global(T* pointer) {
#ifdef __CUDA_ARCH__
  __builtin_assume(__isGlobal(pointer));
#endif
  return pointer;
}

// Of memory that nobody writes while the kernel runs.
AT_BOTH uint32_t load_fixed(const uint32_t* where) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(where));
  return word;
#else
  return *where;
#endif
}
// Two words of such memory. Asked for where it stands, not where the compiler finds that they are
// needed: loads that follow each other so run side by side.
template <class A, class B>
AT_DEVICE void load_fixed(const A* where, A& first, B& second) {
  static_assert(sizeof(A) == 8 && sizeof(B) == 8, "two words");
  uint64_t words[2];
  asm volatile("ld.global.nc.v2.u64 {%0, %1}, [%2];"
               : "=l"(words[0]), "=l"(words[1])
               : "l"(where));
  first = (A)words[0];
  second = (B)words[1];
}

AT_DEVICE uint64_t atomic_add(uint64_t* where, uint64_t value) {
  where = global(where);
  return atomicAdd(reinterpret_cast<unsigned long long*>(where),
                   static_cast<unsigned long long>(value));
}
AT_DEVICE uint64_t atomic_max(uint64_t* where, uint64_t value) {
  where = global(where);
  return atomicMax(reinterpret_cast<unsigned long long*>(where),
                   static_cast<unsigned long long>(value));
}
template <class T>
AT_DEVICE T load(const T* where) {
  return *static_cast<const volatile T*>(where);
}
template <class T>
AT_DEVICE void store(T* where, T value) {
  *static_cast<volatile T*>(where) = value;
}
AT_DEVICE void fence_system() { __threadfence_system(); }
AT_DEVICE void pause() {
#if __CUDA_ARCH__ >= 700
  __nanosleep(500);
#endif
}
AT_DEVICE uint64_t clock_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
AT_DEVICE uint32_t log2_of(uint32_t value) { return 31u - static_cast<uint32_t>(__clz(value | 1)); }
AT_DEVICE uint32_t bits_of(uint32_t value) { return static_cast<uint32_t>(__popc(value)); }

}  // namespace accel_trace

#else

#include <time.h>

#include <cstring>

#define AT_BOTH static inline
#define AT_BOTH_MEMBER
#define AT_DEVICE static inline
#define AT_PATCH extern "C" __attribute__((visibility("default"), used))

#ifdef AT_LANES  // a header
#include AT_LANES
#else
namespace accel_trace {
namespace lanes {

inline uint32_t active() { return 1; }
inline uint32_t own() { return 0; }
inline uint32_t first(uint32_t) { return 0; }
inline uint32_t count(uint32_t mask) { return static_cast<uint32_t>(__builtin_popcount(mask)); }
inline uint32_t vote(uint32_t, bool yes) { return yes ? 1 : 0; }
inline uint32_t take(uint32_t, uint32_t value, uint32_t) { return value; }
inline uint64_t take(uint32_t, uint64_t value, uint32_t) { return value; }
inline bool same(uint32_t, uint32_t) { return true; }
inline bool same(uint32_t, uint64_t) { return true; }
inline void meet(uint32_t) {}
inline uint32_t spread() { return 5; }
inline uint32_t block() { return 0; }
inline uint32_t thread() { return 0; }

}  // namespace lanes
}  // namespace accel_trace
#endif

namespace accel_trace {

template <class T>
inline T* global(T* pointer) {
  return pointer;
}

inline uint32_t load_fixed(const uint32_t* where) { return *where; }
template <class A, class B>
inline void load_fixed(const A* where, A& first, B& second) {
  first = where[0];
  memcpy(&second, where + 1, sizeof second);
}

inline uint64_t atomic_add(uint64_t* where, uint64_t value) {
  return __atomic_fetch_add(where, value, __ATOMIC_ACQ_REL);
}
inline uint64_t atomic_max(uint64_t* where, uint64_t value) {
  uint64_t old = __atomic_load_n(where, __ATOMIC_ACQUIRE);
  while (old < value &&
         !__atomic_compare_exchange_n(where, &old, value, false, __ATOMIC_ACQ_REL,
                                      __ATOMIC_ACQUIRE)) {
  }
  return old;
}
template <class T>
inline T load(const T* where) {
  return __atomic_load_n(where, __ATOMIC_ACQUIRE);
}
template <class T>
inline void store(T* where, T value) {
  __atomic_store_n(where, value, __ATOMIC_RELEASE);
}
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void pause() {
  const timespec little{0, 20000};
  nanosleep(&little, nullptr);
}
inline uint64_t clock_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}
inline uint32_t log2_of(uint32_t value) {
  return 31u - static_cast<uint32_t>(__builtin_clz(value | 1));
}
inline uint32_t bits_of(uint32_t value) {
  return static_cast<uint32_t>(__builtin_popcount(value));
}

}  // namespace accel_trace

#endif
