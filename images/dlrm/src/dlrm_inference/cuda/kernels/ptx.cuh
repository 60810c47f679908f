// What `best` says in PTX, apart from all else: tests run the rest on a CPU, with loads of theirs.

__device__ __forceinline__ Load load(const char* address) {
  Load v;
#if VECTOR == 16
  asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
      : "l"(address));
#elif VECTOR == 8
  asm("ld.global.nc.v2.u32 {%0, %1}, [%2];"
      : "=r"(v.word[0]), "=r"(v.word[1])
      : "l"(address));
#elif VECTOR == 4
  asm("ld.global.nc.u32 %0, [%1];" : "=r"(v.word[0]) : "l"(address));
#else
  unsigned short half;
  asm("ld.global.nc.u16 %0, [%1];" : "=h"(half) : "l"(address));
  v.word[0] = half;
#endif
  return v;
}

__device__ __forceinline__ float widen(unsigned bits) {  // the low 16 bits
#if ELEMENT == 1
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
#else
  return __uint_as_float(bits << 16);
#endif
}

__device__ __forceinline__ unsigned narrow(float value) {
  unsigned short bits;
#if ELEMENT == 1
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#endif
  return bits;
}

// The places of a block and a thread, asked for again: a value that is kept costs a register.
__device__ __forceinline__ unsigned block_anew() {
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

__device__ __forceinline__ unsigned thread_anew() {
  unsigned x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}
