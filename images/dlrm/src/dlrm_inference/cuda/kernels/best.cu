// `best`: ours, free of the paper's design space. Whole rows by 16-byte loads, many rows in
// flight, and every bag's rows read in the order in which they lie in the table.
//
// Launch   block SPLIT * BAGS warps, grid (ceil(bags / BAGS), tables): SPLIT warps share a bag, a
//          block serves BAGS bags, and blocks of one table are started before those of the next.
// Traffic  indices and offsets once, rows * row bytes gathered, outputs once.
// Limit    DRAM bandwidth on scattered rows, the L1 on hot ones.
//
// Why in table order: all bags of a batch are resident at once and walk at about one pace, so at
// any moment the whole GPU reads a narrow band of the table. A row that several bags want is then
// wanted by all of them within that band, while it is still in the L2 (or L1), where random order
// would have fetched it from DRAM again; and DRAM pages and the TLB see neighbours.
//
// Compile-time choices:
//   INDEX     int or long long                 ELEMENT  0 float, 1 half, 2 bfloat16
//   DIM       columns                          VECTOR   bytes per load: 16, 8, 4 or 2
//   SPLIT     warps per bag                    BAGS     bags per block
//   DEPTH     16-byte loads in flight per lane STAGES   parts they are issued and consumed in
//   KEYS      indices a lane holds             BUCKETS  bands of the table, 1 for arrival order
//   TABLES    tables a launch can serve        HINT     suffix of the row load
//   HEAD     1: the first rows of a bag are read in the order they come
//   CHECK     0: ids are taken as they are, to see what looking at them costs
//   MIN_BLOCKS  least blocks per SM for the register allocator, 0 for no wish
//
// The sum's order is fixed by the data: two runs give the same bits. It is not index order.

#define ELEMENT_BYTES (ELEMENT == 0 ? 4 : 2)
#define COLUMNS (VECTOR / ELEMENT_BYTES)               // of one load
#define UNITS (DIM * ELEMENT_BYTES / VECTOR)           // loads that make a row
#define POW2(n) ((n) <= 1 ? 1 : (n) <= 2 ? 2 : (n) <= 4 ? 4 : (n) <= 8 ? 8 : (n) <= 16 ? 16 : 32)
#define LANES POW2(UNITS)                              // that share a row
#define GROUPS (32 / LANES)                            // rows a warp reads with one instruction
#define PARTS ((UNITS + LANES - 1) / LANES)            // loads per lane and row
#define FLIGHT (DEPTH / PARTS > STAGES ? DEPTH / PARTS / STAGES : 1)  // rows per stage and group
#define WORDS (VECTOR >= 4 ? VECTOR / 4 : 1)
#define CHUNK (32 * KEYS)
#define FULL 0xffffffffu

struct Table {
  const char* weight;
  const INDEX* indices;
  const INDEX* offsets;  // bags + 1
  char* out;
  unsigned long long rows;
  unsigned long long row_stride;  // bytes
  unsigned long long out_stride;  // bytes
  long long total;                // indices of all bags
  int average;                    // total / bags: where a bag would start if all were alike
  int shift;                      // row >> shift is a row's band, below BUCKETS
  unsigned long long number;      // the table's, in the upper half (cuda/report.py)
};

struct Arguments {
  Table tables[TABLES];
  int bags;
  int mean;
  unsigned long long* report;  // gets table and bag of an id out of range
};

struct Load {
  unsigned word[WORDS];
};

__device__ __forceinline__ Load load(const char* address) {
  Load v;
#if VECTOR == 16
  asm("ld.global.nc" HINT ".v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
      : "l"(address));
#elif VECTOR == 8
  asm("ld.global.nc" HINT ".v2.u32 {%0, %1}, [%2];"
      : "=r"(v.word[0]), "=r"(v.word[1])
      : "l"(address));
#elif VECTOR == 4
  asm("ld.global.nc" HINT ".u32 %0, [%1];" : "=r"(v.word[0]) : "l"(address));
#else
  unsigned short half;
  asm("ld.global.nc" HINT ".u16 %0, [%1];" : "=h"(half) : "l"(address));
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

__device__ __forceinline__ void add(float (&sum)[COLUMNS], const Load& v) {
#if ELEMENT == 0
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) sum[c] += __uint_as_float(v.word[c]);
#else
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) sum[c] += widen(c % 2 ? v.word[c / 2] >> 16 : v.word[c / 2]);
#endif
}

__device__ __forceinline__ void store(char* address, const float (&sum)[COLUMNS]) {
#if VECTOR == 2
  *reinterpret_cast<unsigned short*>(address) = narrow(sum[0]);
#else
  unsigned word[WORDS];
#pragma unroll
  for (int w = 0; w < WORDS; ++w)
#if ELEMENT == 0
    word[w] = __float_as_uint(sum[w]);
#else
    word[w] = narrow(sum[2 * w]) | narrow(sum[2 * w + 1]) << 16;
#endif
#if VECTOR == 16
  *reinterpret_cast<uint4*>(address) = make_uint4(word[0], word[1], word[2], word[3]);
#elif VECTOR == 8
  *reinterpret_cast<uint2*>(address) = make_uint2(word[0], word[1]);
#else
  *reinterpret_cast<unsigned*>(address) = word[0];
#endif
#endif
}

// Writes rows first ... n - 1 of `key` (lane l holds rows l, l + 32, ...) to `list`, band by band.
__device__ __forceinline__ void order(const unsigned (&key)[KEYS], int first, int n, int shift,
                                      int lane, unsigned* list, int* start) {
#if BUCKETS == 1
#pragma unroll
  for (int k = 0; k < KEYS; ++k)
    if (k * 32 + lane >= first && k * 32 + lane < n) list[k * 32 + lane - first] = key[k];
  __syncwarp();
#else
  int place[KEYS];
  if (lane < BUCKETS) start[lane] = 0;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < KEYS; ++k) {
    const bool valid = k * 32 + lane >= first && k * 32 + lane < n;
    const unsigned band = valid ? key[k] >> shift : BUCKETS;
    const unsigned peers = __match_any_sync(FULL, band);
    const int leader = __ffs(peers) - 1;
    int before = 0;
    if (valid && lane == leader) before = atomicAdd(start + band, __popc(peers));
    place[k] = __shfl_sync(FULL, before, leader) + __popc(peers & ((1u << lane) - 1));
  }
  __syncwarp();
  const int count = lane < BUCKETS ? start[lane] : 0;
  int sum = count;
#pragma unroll
  for (int step = 1; step < BUCKETS; step *= 2) {
    const int other = __shfl_up_sync(FULL, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane < BUCKETS) start[lane] = sum - count;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < KEYS; ++k)
    if (k * 32 + lane >= first && k * 32 + lane < n)
      list[start[key[k] >> shift] + place[k]] = key[k];
  __syncwarp();
#endif
}

extern "C" __global__ void
#if MIN_BLOCKS > 0
__launch_bounds__(32 * SPLIT * BAGS, MIN_BLOCKS)
#else
__launch_bounds__(32 * SPLIT * BAGS)
#endif
    best(const __grid_constant__ Arguments a) {
  __shared__ unsigned lists[SPLIT * BAGS][CHUNK];
  __shared__ int starts[SPLIT * BAGS][BUCKETS];
#if SPLIT > 1
  __shared__ float partial[BAGS][SPLIT - 1][PARTS * COLUMNS][32];
#endif
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int part = warp % SPLIT;
  const int bag = blockIdx.x * BAGS + warp / SPLIT;
  if (bag >= a.bags) return;  // all warps of a bag leave together
  const Table& t = a.tables[TABLES == 1 ? 0 : blockIdx.y];
  const int unit = lane % LANES;
  const int group = lane / LANES;

  // Indices are asked for where they lie if all bags are alike, before the offsets are known: one
  // memory latency less at the start of every bag.
  const long long guess =
      static_cast<long long>(bag) * t.average + part * ((t.average + SPLIT - 1) / SPLIT);
  INDEX early[KEYS];
#pragma unroll
  for (int k = 0; k < KEYS; ++k) {
    const long long i = guess + k * 32 + lane;
    early[k] = i < t.total ? __ldg(t.indices + i) : 0;
  }
  long long begin = __ldg(t.offsets + bag);
  long long end = __ldg(t.offsets + bag + 1);
  begin = begin < 0 ? 0 : begin;
  end = end > t.total ? t.total : end;
  const long long length = end > begin ? end - begin : 0;
  const long long share = (length + SPLIT - 1) / SPLIT;
  long long at = begin + part * share;
  const long long last = at + share < end ? at + share : end;

  float sum[PARTS][COLUMNS];
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[p][c] = 0.0f;

  const char* weight = t.weight + unit * VECTOR;
  unsigned* list = lists[warp];
  bool guessed = at == guess;
  for (; at < last; at += CHUNK) {
    int n = last - at < CHUNK ? static_cast<int>(last - at) : CHUNK;
    unsigned key[KEYS];
    bool wrong = false;
#pragma unroll
    for (int k = 0; k < KEYS; ++k) {
      const int i = k * 32 + lane;
      INDEX row = 0;
      if (i < n) row = guessed ? early[k] : __ldg(t.indices + at + i);
      const bool outside =
          CHECK && static_cast<unsigned long long>(static_cast<long long>(row)) >= t.rows;
      wrong |= outside;
      key[k] = outside ? 0 : static_cast<unsigned>(row);
    }
#if CHECK
    // What names the bag is worked out anew: kept, it would cost registers on the path of all ids.
    if (wrong && n > 0) {
      unsigned x, thread;
      asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
      asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
      *a.report = t.number | (x * BAGS + thread / (32 * SPLIT));
    }
#endif
    guessed = false;

    // Stages of FLIGHT rows per group: each is refilled as soon as it is consumed.
    Load flight[STAGES][FLIGHT][PARTS];
    auto fetch = [&](int stage, int first) {
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const int i = first + f * GROUPS + group;
        const bool here = i < n;
        const char* row = weight + (here ? list[i] : 0) * t.row_stride;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
          const bool wanted = here && (UNITS % LANES == 0 || p * LANES + unit < UNITS);
          if (wanted) {
            flight[stage][f][p] = load(row + p * LANES * VECTOR);
          } else {
#pragma unroll
            for (int w = 0; w < WORDS; ++w) flight[stage][f][p].word[w] = 0;
          }
        }
      }
    };
    auto fetch_all = [&](int stage, int first) {  // as fetch, where every row is there
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const char* row = weight + list[first + f * GROUPS + group] * t.row_stride;
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
          if (UNITS % LANES == 0 || p * LANES + unit < UNITS)
            flight[stage][f][p] = load(row + p * LANES * VECTOR);
          else
#pragma unroll
            for (int w = 0; w < WORDS; ++w) flight[stage][f][p].word[w] = 0;
      }
    };
    auto consume = [&](int stage) {
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f)
#pragma unroll
        for (int p = 0; p < PARTS; ++p) add(sum[p], flight[stage][f][p]);
    };
    const int step = GROUPS * FLIGHT;
    // The first rows are asked for as they come, before the others are put in order: memory is
    // busy meanwhile.
    int head = 0;
#if HEAD && STAGES == 1 && GROUPS * FLIGHT <= 32
    if (n >= step) {
      head = step;
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const char* row = weight + __shfl_sync(FULL, key[0], f * GROUPS + group) * t.row_stride;
#pragma unroll
        for (int p = 0; p < PARTS; ++p)
          if (UNITS % LANES == 0 || p * LANES + unit < UNITS)
            flight[0][f][p] = load(row + p * LANES * VECTOR);
          else
#pragma unroll
            for (int w = 0; w < WORDS; ++w) flight[0][f][p].word[w] = 0;
      }
    }
#endif
    order(key, head, n, t.shift, lane, list, starts[warp]);
    if (head) consume(0);
    n -= head;
#if STAGES == 1
    int i = 0;
#pragma unroll 1
    for (; i + step <= n; i += step) {
      fetch_all(0, i);
      consume(0);
    }
    if (i < n) {
      fetch(0, i);
      consume(0);
    }
#else
#pragma unroll
    for (int s = 0; s < STAGES; ++s) fetch(s, s * step);
    int i = STAGES * step;
#pragma unroll 1
    for (; i + STAGES * step <= n; i += STAGES * step) {
#pragma unroll
      for (int s = 0; s < STAGES; ++s) {
        consume(s);
        fetch_all(s, i + s * step);
      }
    }
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
      consume(s);
      fetch(s, i + s * step);
    }
#pragma unroll
    for (int s = 0; s < STAGES; ++s) consume(s);
#endif
    __syncwarp();
  }

  // Groups of a warp, then warps of a bag.
#pragma unroll
  for (int distance = LANES; distance < 32; distance *= 2)
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        sum[p][c] += __shfl_xor_sync(FULL, sum[p][c], distance);
#if SPLIT > 1
  const int local = warp / SPLIT;
  if (part > 0) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) partial[local][part - 1][p * COLUMNS + c][lane] = sum[p][c];
  }
  asm volatile("bar.sync %0, %1;" ::"r"(local + 1), "n"(32 * SPLIT) : "memory");
  if (part > 0) return;
#pragma unroll
  for (int other = 0; other < SPLIT - 1; ++other)
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sum[p][c] += partial[local][other][p * COLUMNS + c][lane];
#endif
  if (group > 0) return;
  const float scale = a.mean && length > 0 ? 1.0f / static_cast<float>(length) : 1.0f;
  char* out = t.out + bag * t.out_stride + unit * VECTOR;
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    if (UNITS % LANES != 0 && p * LANES + unit >= UNITS) continue;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[p][c] *= scale;
    store(out + p * LANES * VECTOR, sum[p]);
  }
}
