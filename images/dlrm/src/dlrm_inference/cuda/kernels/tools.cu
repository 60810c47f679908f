// What measuring needs beside the gathers. Each is a kernel of its own in one module.

// Limit of the memory: reads and writes every byte once.
// Launch   block 512, grid 8 per SM, grid-stride, 4 independent 16-byte loads per thread and turn.
// Traffic  2 * 16 * count bytes. Limit: DRAM bandwidth, buffers being many times the L2.
extern "C" __global__ void __launch_bounds__(512) copy(const float4* from, float4* to,
                                                       unsigned long long count) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const float4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < count; i += step) to[i] = from[i];
}

// Reads every byte once; the sum is written only if it is a value no sum of these floats takes.
// Launch, limit: as copy. Traffic: 16 * count bytes.
extern "C" __global__ void __launch_bounds__(512) read(const float4* from, float* sink,
                                                       unsigned long long count) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  unsigned long long i = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
  float sum = 0.0f;
  for (; i + 3 * step < count; i += 4 * step) {
    const float4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    sum += (a.x + a.y + a.z + a.w) + (b.x + b.y + b.z + b.w) + (c.x + c.y + c.z + c.w) +
           (d.x + d.y + d.z + d.w);
  }
  if (sum == 123456789.0f) *sink = sum;
}

// Holds the stream until the host writes to `door`, so that everything queued behind it is
// already on the device when it starts: no host latency between the events of a sample.
// Launch   one thread. Gives up after `patience` nanoseconds and says so in `late`.
extern "C" __global__ void gate(volatile int* door, volatile int* late,
                                unsigned long long patience) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  while (*door == 0) {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    if (now - start > patience) {
      *late = 1;
      return;
    }
    __nanosleep(500);
  }
}

// Does nothing: what an event pair measures around a launch of no work.
extern "C" __global__ void nothing() {}
