// `best` for bags of some length: whole rows by 16-byte loads, many rows in flight, and every bag's
// rows read in the order in which they lie in the table. short.cu is its form for short bags.
//
// Launch   block BAGS warps, grid (ceil(bags / BAGS), tables): a warp a bag, and blocks of one table
//          are started before those of the next. Bags above `cut` are shared (rows.cuh).
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
//   TABLES    tables a launch can serve
//   PLACE     bytes to share long bags in      PIECE    rows of them that a warp takes at a time
//   BAGS      bags per block                   AHEAD    rows of a piece in flight
//   KEYS      indices a lane holds             DEPTH    16-byte loads in flight per lane
//   BUCKETS   bands of the table, 1 for arrival order
//   HEAD      1: the first rows of a bag are read in the order they come
//   SHARE     0: no bag of the launch is long enough to be shared, and no code is there for it
//   JOIN      loads in flight where sums of pieces are added
//   SPREAD    1: warps begin at different ones of several long bags
//   ASK       every ASK-th warp of a block helps with long bags: all ask at one address, which one
//             slice of the L2 answers
//   MIN_BLOCKS  least blocks per SM for the register allocator
//   CHECK     0: ids are taken as they are, to see what looking at them costs
//
// The sum's order is fixed by the data: two runs give the same bits. It is not index order.

#include "rows.cuh"

#define FLIGHT (DEPTH / PARTS > 1 ? DEPTH / PARTS : 1)  // rows per group
#define CHUNK (32 * KEYS)

// Writes rows first ... n - 1 of `key` (lane l holds rows l, l + 32, ...) to `list`, band by band.
__device__ __forceinline__ void order(const unsigned (&key)[KEYS], int first, int n, int shift,
                                      int lane, unsigned* list, int* start) {
  if (BUCKETS == 1) {
#pragma unroll
    for (int k = 0; k < KEYS; ++k)
      if (k * 32 + lane >= first && k * 32 + lane < n) list[k * 32 + lane - first] = key[k];
    __syncwarp();
    return;
  }
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
}

extern "C" __global__ void __launch_bounds__(32 * BAGS, MIN_BLOCKS)
    best(const __grid_constant__ Arguments a) {
  __shared__ unsigned lists[BAGS][CHUNK];
  __shared__ int starts[BAGS][BUCKETS];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int unit = lane % LANES;
  const int group = lane / LANES;
  const int bag = blockIdx.x * BAGS + warp;
  if (bag >= a.bags) return;
  const int table = TABLES == 1 ? 0 : blockIdx.y;
  const Table& t = a.tables[table];
  bool asks = SHARE && warp % ASK == 0;
  unsigned open = 0;

  // Indices are asked for where they lie if all bags are alike, before the offsets are known: one
  // memory latency less at the start of every bag.
  const long long guess = GUESS(a, table, bag);
  INDEX early[KEYS];
#pragma unroll
  for (int k = 0; k < KEYS; ++k) {
    const long long i = guess + k * 32 + lane;
    early[k] = i < TOTAL(a, t) ? __ldg(INDICES(a, t) + i) : 0;
  }
  const INDEX* offsets = OFFSETS(a, table);
  long long at = __ldg(offsets + bag), last = __ldg(offsets + bag + 1);
  if (at < 0) at = 0;
  if (last > TOTAL(a, t)) last = TOTAL(a, t);
  const long long length = last > at ? last - at : 0;
  float scale = scale_of(a, length);
  if (SHARE && length > a.cut) {
    const bool shared = offer(a, bag, table, at, length);
    asks |= shared;
    if (!shared) {
      alone(a, table, bag);
      if (asks) help(a);
      return;
    }
    last = at;
    scale = 0.0f;  // written by whom the pieces' sums are added by
  }

  Sum sum;
  clear(sum);
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
      if (i < n) row = guessed ? early[k] : __ldg(INDICES(a, t) + at + i);
      const bool out = outside(t, row);
      wrong |= out;
      key[k] = out ? 0 : static_cast<unsigned>(row);
    }
#if CHECK
    // What names the bag is worked out anew: kept, it would cost registers on the path of all ids.
    if (wrong && n > 0) {
      *a.report = t.number | (block_anew() * BAGS + thread_anew() / 32);
    }
#endif
    guessed = false;

    Load flight[FLIGHT][PARTS];
    auto consume = [&]() {
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) add(sum, flight[f]);
    };
    const int step = GROUPS * FLIGHT;
    // The first rows are asked for as they come, before the others are put in order: memory is
    // busy meanwhile.
    int head = 0;
#if HEAD && GROUPS * FLIGHT <= 32
    if (n >= step) {
      head = step;
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const unsigned row = __shfl_sync(FULL, key[0], f * GROUPS + group);
        load_row(flight[f], weight + row * t.row_stride, unit, true);
      }
    }
#endif
    order(key, head, n, t.shift, lane, list, starts[warp]);
    if (head) consume();
    n -= head;
    int i = 0;
#pragma unroll 1
    for (; i + step <= n; i += step) {
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f)
        load_row(flight[f], weight + list[i + f * GROUPS + group] * t.row_stride, unit, true);
      consume();
    }
    if (i < n) {
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const int k = i + f * GROUPS + group;
        const bool here = k < n;
        load_row(flight[f], weight + (here ? list[k] : 0) * t.row_stride, unit, here);
      }
      consume();
    }
    __syncwarp();
  }
  if (asks) open = open_jobs(a);  // on its way while the bag is written
  join(sum);
  if (group == 0 && scale != 0.0f) store(a, table, bag, unit, scale, sum);
  if (SHARE && __any_sync(FULL, open)) help(a);
}
