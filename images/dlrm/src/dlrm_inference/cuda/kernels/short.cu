// `best` for short bags: the lanes of one row sum a whole bag, no order, nothing shared.
//
// Launch   block WARPS warps, grid (ceil(bags / (WARPS * GROUPS * PER)), tables): a group of lanes
//          has PER bags at a time. Bags above `cut` are shared (rows.cuh).
// Traffic  as best.cu. Limit: three latencies a bag, of which the guess saves one.
//
// Why: a bag of one row is an id, a row and an output. To put ids in order, or to join the sums of
// groups, would take longer than to read them.
//
// Compile-time choices as in best.cu, and
//   WARPS     of a block                       PER      bags of a group at a time
//   FLIGHT    rows of a bag in flight
//
// Rows are added in the order of their indices.

#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS, MIN_BLOCKS)
    best(const __grid_constant__ Arguments a) {
  const int lane = threadIdx.x % 32;
  const int unit = lane % LANES;
  const int table = TABLES == 1 ? 0 : blockIdx.y;
  const Table& t = a.tables[table];
  const int first = (blockIdx.x * (32 * WARPS) + threadIdx.x) / LANES * PER;

  // Asked for where they lie if all bags are alike, before the offsets are known.
  INDEX row[PER][FLIGHT];
#pragma unroll
  for (int p = 0; p < PER; ++p)
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f) {
      const long long i = GUESS(a, table, first + p) + f;
      const bool here = f < AVERAGE(a, t) && first + p < a.bags;
      row[p][f] = here ? __ldg(INDICES(a, t) + i) : 0;
    }
  long long edge[PER + 1];
#pragma unroll
  for (int p = 0; p <= PER; ++p) {
    const int bag = first + p < a.bags ? first + p : a.bags;
    const long long offset = __ldg(OFFSETS(a, table) + bag);
    edge[p] = min(max(offset, 0ll), TOTAL(a, t));
  }
  const INDEX* ids[PER];
  int length[PER];  // -1: shared, -2: too long and not shared
  int most = 0;
  bool asks = SHARE && threadIdx.x / 32 % ASK == 0;
#pragma unroll
  for (int p = 0; p < PER; ++p) {
    ids[p] = INDICES(a, t) + edge[p];
    length[p] = edge[p + 1] > edge[p] ? static_cast<int>(edge[p + 1] - edge[p]) : 0;
    unsigned long_bags = SHARE ? __ballot_sync(FULL, length[p] > a.cut && unit == 0) : 0;
    for (; long_bags; long_bags &= long_bags - 1) {
      const int from = __ffs(long_bags) - 1;
      const int bag = __shfl_sync(FULL, first + p, from);
      const long long begin = __shfl_sync(FULL, edge[p], from);
      const int rows = __shfl_sync(FULL, length[p], from);
      const bool shared = offer(a, bag, table, begin, rows);
      asks |= shared;
      if (lane / LANES == from / LANES) length[p] = shared ? -1 : -2;
    }
    const bool guessed = edge[p] == GUESS(a, table, first + p);
#pragma unroll
    for (int f = 0; f < FLIGHT; ++f)
      if (f < length[p] && !(guessed && f < AVERAGE(a, t))) row[p][f] = __ldg(ids[p] + f);
    if (length[p] > most) most = length[p];
  }

  // On its way while rows are: to wait for it after them would be one latency more of three or four.
  const unsigned open = asks ? open_jobs(a) : 0;

  const char* weight = t.weight + unit * VECTOR;
  Sum sum[PER];
#pragma unroll
  for (int p = 0; p < PER; ++p) clear(sum[p]);
#pragma unroll 1
  for (int at = 0; at < most; at += FLIGHT) {
    Load flight[PER][FLIGHT][PARTS];
#pragma unroll
    for (int p = 0; p < PER; ++p)
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const bool here = at + f < length[p];
        const bool wrong = here && outside(t, row[p][f]);
        if (wrong) *a.report = t.number | static_cast<unsigned>(first + p);
        const unsigned key = wrong ? 0 : static_cast<unsigned>(row[p][f]);
        load_row(flight[p][f], weight + key * t.row_stride, unit, here);
      }
#pragma unroll
    for (int p = 0; p < PER; ++p)  // the next ids, while these rows are on their way
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) {
        const int i = at + FLIGHT + f;
        if (i < length[p]) row[p][f] = __ldg(ids[p] + i);
      }
#pragma unroll
    for (int p = 0; p < PER; ++p)
#pragma unroll
      for (int f = 0; f < FLIGHT; ++f) add(sum[p], flight[p][f]);
  }
  __syncwarp();
#pragma unroll
  for (int p = 0; p < PER; ++p)
    if (first + p < a.bags && length[p] >= 0)
      store(a, table, first + p, unit, scale_of(a, length[p]), sum[p]);
#if SHARE
  bool left = false;
#pragma unroll
  for (int p = 0; p < PER; ++p) left |= length[p] == -2;
  if (__any_sync(FULL, left)) {  // apart: kept over a call, `open` would lie in memory, waited for
#pragma unroll
    for (int p = 0; p < PER; ++p) {
      unsigned bags = __ballot_sync(FULL, length[p] == -2 && unit == 0);
      for (; bags; bags &= bags - 1)
        alone(a, table, __shfl_sync(FULL, first + p, __ffs(bags) - 1));
    }
    if (asks) help(a);
    return;
  }
  if (__any_sync(FULL, open)) help(a);
#endif
}
