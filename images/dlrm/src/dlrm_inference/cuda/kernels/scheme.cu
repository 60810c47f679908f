// The paper's design space: one thread per (bag, column), one warp per 32-column slice of a bag.
//
// Launch   block (32, 8) = 8 warps, grid 1024, grid-stride over bags * ceil(columns / 32) slices,
//          as the operator of PyTorch 2.1 (docs/papers/dlrm.md, 3.1). At 2048 bags of 128 columns
//          the 8192 slices fill 1024 blocks exactly once.
// Traffic  per element: one index (8 or 4 bytes, the same address across the warp), one 4-byte
//          weight per thread (128 bytes per warp, contiguous when column stride is 1), and, by
//          column 0, one offset2bag entry. Per bag: two offsets, `columns` outputs.
// Limit    latency: a warp has one row slice in flight unless a prefetch scheme adds more, so the
//          resident warps (the register count) and the prefetch distance set the bandwidth.
//
// Compile-time choices (a macro each; one kernel per compilation, so a register cap given to the
// compiler applies to this kernel alone):
//   INDEX      int or long long
//   SCHEME     0 none (base, optmt, l2p)   1 registers (rpf)     2 shared memory (smpf)
//              3 shared memory by cp.async 4 L1 prefetch (l1dpf) 5 local memory (lmpf)
//   DISTANCE   rows ahead
//   BALLAST    registers held alive on a path that no launch takes, 0 for none: it lowers the
//              occupancy to a wanted number of warps and leaves the L1 cache its size
//
// The bounds check stands in the loop, before every row load, as in PyTorch 2.1 to 2.9. Where
// theirs asserts (and kills the context), ours calls a function that is not inlined, reports the id
// and goes on with row 0: the same branch and call in the loop, and an error the host can raise.

#define SLICE 32
#define WARPS 8

struct Arguments {
  const float* weight;
  const INDEX* indices;
  const INDEX* offsets;  // bags + 1
  float* out;
  INDEX* offset_to_bag;         // one entry per index, or null
  const float* sample_weights;  // one per index, or null
  long long bags;
  long long columns;
  long long rows;
  long long row_stride;
  long long column_stride;
  long long out_stride;
  long long padding_row;  // this row counts for nothing; -1 for none
  int mean;
  unsigned long long table;    // its number, in the upper half (cuda/report.py)
  unsigned long long* report;  // gets table and bag of an id out of range
  float* ballast;              // always null
};

__device__ __noinline__ void report_out_of_range(unsigned long long* report,
                                                 unsigned long long place) {
  *report = place;
}

__device__ __forceinline__ long long checked(const Arguments& a, long long bag, long long row) {
  if (row < 0 || row >= a.rows) {
    report_out_of_range(a.report, a.table | bag);
    row = 0;
  }
  return row;
}

__device__ __forceinline__ void add(const Arguments& a, long long row, long long element,
                                    float value, float& sum, long long& count) {
  if (row == a.padding_row) return;
  if (a.sample_weights) value *= a.sample_weights[element];
  sum += value;
  ++count;
}

#if SCHEME == 4
// One prefetch per 128-byte line: by the first lane, and by lanes whose address opens a line.
__device__ __forceinline__ void prefetch_l1(const float* address) {
  if (threadIdx.x == 0 || (reinterpret_cast<unsigned long long>(address) & 127) < 4)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(address) : "memory");
}
#endif

#if SCHEME == 3
__device__ __forceinline__ void copy_async(float* shared, const float* global) {
  unsigned where = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(where), "l"(global) : "memory");
}
#endif

// No launch bounds: the compiler would then ignore the register cap it is given.
extern "C" __global__ void scheme(const __grid_constant__ Arguments a) {
#if BALLAST > 0
  if (a.ballast) {
    float held[BALLAST];
#pragma unroll
    for (int i = 0; i < BALLAST; ++i)
      asm volatile("ld.volatile.global.f32 %0, [%1];" : "=f"(held[i]) : "l"(a.ballast + i));
#pragma unroll
    for (int i = 0; i < BALLAST; ++i)
      asm volatile("st.volatile.global.f32 [%0], %1;" ::"l"(a.ballast + i),
                   "f"(held[BALLAST - 1 - i]));
  }
#endif
#if SCHEME == 2 || SCHEME == 3
  // [DISTANCE][thread]: a thread's slots are its own (no barrier) and no two threads share a bank.
  __shared__ float slots[DISTANCE][SLICE * WARPS];
  const int thread = threadIdx.y * SLICE + threadIdx.x;
#endif
  const long long slices = (a.columns + SLICE - 1) / SLICE;
  const long long work = a.bags * slices;
  for (long long item = blockIdx.x * WARPS + threadIdx.y; item < work;
       item += static_cast<long long>(gridDim.x) * WARPS) {
    const long long bag = item / slices;
    const long long column = (item % slices) * SLICE + threadIdx.x;
    if (column >= a.columns) continue;
    const float* base = a.weight + column * a.column_stride;
    const long long begin = a.offsets[bag];
    const long long end = a.offsets[bag + 1];
    float sum = 0.0f;
    long long count = 0;
    long long e = begin;

#if SCHEME == 0
#pragma unroll 1
    for (; e < end; ++e) {
      const long long row = checked(a, bag, a.indices[e]);
      const float value = base[row * a.row_stride];
      if (column == 0 && a.offset_to_bag) a.offset_to_bag[e] = bag;
      add(a, row, e, value, sum, count);
    }

#elif SCHEME == 1 || SCHEME == 2 || SCHEME == 5
    // Batched: DISTANCE independent rows are loaded, then consumed in order (bitwise equal to the
    // plain loop); the first of each batch is waited for.
#if SCHEME == 5
    float buffer[DISTANCE];  // indexed at run time, so it lives in local memory
#endif
#pragma unroll 1
    for (; e + DISTANCE <= end; e += DISTANCE) {
      long long row[DISTANCE];
      float value[DISTANCE];
#pragma unroll
      for (int i = 0; i < DISTANCE; ++i) row[i] = checked(a, bag, a.indices[e + i]);
#pragma unroll
      for (int i = 0; i < DISTANCE; ++i) value[i] = base[row[i] * a.row_stride];
#if SCHEME == 2
#pragma unroll
      for (int i = 0; i < DISTANCE; ++i) slots[i][thread] = value[i];
#elif SCHEME == 5
      const int turn = static_cast<int>(e & 1);  // a start the compiler cannot know
#pragma unroll
      for (int i = 0; i < DISTANCE; ++i) buffer[(i + turn) % DISTANCE] = value[i];
#endif
#if SCHEME == 5
#pragma unroll 1
#else
#pragma unroll
#endif
      for (int i = 0; i < DISTANCE; ++i) {
        if (column == 0 && a.offset_to_bag) a.offset_to_bag[e + i] = bag;
#if SCHEME == 1
        add(a, row[i], e + i, value[i], sum, count);
#elif SCHEME == 2
        add(a, row[i], e + i, *static_cast<volatile float*>(&slots[i][thread]), sum, count);
#else
        add(a, a.indices[e + i], e + i, buffer[(i + turn) % DISTANCE], sum, count);
#endif
      }
    }
#pragma unroll 1
    for (; e < end; ++e) {
      const long long row = checked(a, bag, a.indices[e]);
      const float value = base[row * a.row_stride];
      if (column == 0 && a.offset_to_bag) a.offset_to_bag[e] = bag;
      add(a, row, e, value, sum, count);
    }

#elif SCHEME == 3
    // Rolling: DISTANCE copies are always in flight; slot e % DISTANCE is refilled once consumed.
#pragma unroll 1
    for (int i = 0; i < DISTANCE; ++i) {
      if (begin + i < end)
        copy_async(&slots[i][thread], base + checked(a, bag, a.indices[begin + i]) * a.row_stride);
      asm volatile("cp.async.commit_group;" ::: "memory");
    }
    int slot = 0;
#pragma unroll 1
    for (; e < end; ++e) {
      asm volatile("cp.async.wait_group %0;" ::"n"(DISTANCE - 1) : "memory");
      const float value = *static_cast<volatile float*>(&slots[slot][thread]);
      if (column == 0 && a.offset_to_bag) a.offset_to_bag[e] = bag;
      add(a, a.indices[e], e, value, sum, count);
      if (e + DISTANCE < end)
        copy_async(&slots[slot][thread],
                   base + checked(a, bag, a.indices[e + DISTANCE]) * a.row_stride);
      asm volatile("cp.async.commit_group;" ::: "memory");
      slot = slot + 1 == DISTANCE ? 0 : slot + 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");

#elif SCHEME == 4
    // Rolling: row e + DISTANCE is asked for while row e is added; nothing beyond the bag is.
#pragma unroll 1
    for (int i = 0; i < DISTANCE && begin + i < end; ++i)
      prefetch_l1(base + checked(a, bag, a.indices[begin + i]) * a.row_stride);
#pragma unroll 1
    for (; e < end; ++e) {
      if (e + DISTANCE < end)
        prefetch_l1(base + checked(a, bag, a.indices[e + DISTANCE]) * a.row_stride);
      const long long row = checked(a, bag, a.indices[e]);
      const float value = base[row * a.row_stride];
      if (column == 0 && a.offset_to_bag) a.offset_to_bag[e] = bag;
      add(a, row, e, value, sum, count);
    }
#endif

    if (a.mean && count > 0) sum /= static_cast<float>(count);
    a.out[bag * a.out_stride + column] = sum;
  }
}
