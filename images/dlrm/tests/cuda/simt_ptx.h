// What kernels/ptx.cuh says in PTX, for a CPU.
inline Load load(const char* address) {
  Load v = {};
  memcpy(v.word, address, VECTOR);
  return v;
}
inline float widen(unsigned bits) {
#if ELEMENT == 1
  return static_cast<float>(simt::unpack<_Float16>(bits));
#else
  return __uint_as_float(bits << 16);
#endif
}
inline unsigned narrow(float value) {
  static_assert(ELEMENT != 2, "results of bfloat16 are not run on a CPU");
  return static_cast<unsigned>(simt::pack(static_cast<_Float16>(value)));
}
inline unsigned block_anew() { return blockIdx.x; }
inline unsigned thread_anew() { return threadIdx.x; }
