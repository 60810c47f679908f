// What both forms of `best` share: their arguments, loads and sums of rows, and long bags.
//
// Long bags. A bag that is far longer than the others is one warp's work too many: its warp offers
// it as a job of many pieces, and every warp that has ended its own bags takes pieces until there
// are none. The sums of pieces are added in the order of the pieces, 32 of them by the last that is
// done with one of these, and the sums of these by the last that is done with 32. When no job can be
// offered (they are bounded) the warp adds the same pieces in the same order alone: the same data
// gives the same bits.
// A place (`Help`) belongs to one launch at a time and is after it as it was before: nothing open.

#define ELEMENT_BYTES (ELEMENT == 0 ? 4 : 2)
#define COLUMNS (VECTOR / ELEMENT_BYTES)               // of one load
#define UNITS (DIM * ELEMENT_BYTES / VECTOR)           // loads that make a row
#define POW2(n) ((n) <= 1 ? 1 : (n) <= 2 ? 2 : (n) <= 4 ? 4 : (n) <= 8 ? 8 : (n) <= 16 ? 16 : 32)
#define LANES POW2(UNITS)                              // that share a row
#define GROUPS (32 / LANES)                            // rows a warp reads with one instruction
#define PARTS ((UNITS + LANES - 1) / LANES)            // loads per lane and row
#define WORDS (VECTOR >= 4 ? VECTOR / 4 : 1)
#define FULL 0xffffffffu
#define WIDTH (LANES * PARTS * COLUMNS)                // of a piece's sum, in floats
#define SLOTS ((PLACE - sizeof(Help)) / (WIDTH * sizeof(float)))
#define SHARES (TABLES < 2 ? 2 : TABLES < 32 ? TABLES : 32)  // bags as long as can be, at once
#define PIECES (SLOTS / SHARES < 32 * 32 ? SLOTS / SHARES : 32 * 32)  // of a bag: longer ones if need be

// One line of the constant cache, as parameters begin: a warp waits for it before it asks for ids.
struct Table {
  const char* weight;
  const INDEX* indices;  // these four: with JOINED those of all tables count
  const INDEX* offsets;  // bags + 1
  long long total;       // indices of all bags
  int average;           // total / bags: where a bag would start if all were alike
  int shift;             // row >> shift is a row's band, below BUCKETS
  unsigned long long rows;
  unsigned long long row_stride;  // bytes
  unsigned long long number;      // the table's, in the upper half (cuda/report.py)
};

struct Job {
  unsigned long long claim;  // its pieces in the upper half, those taken in the lower
  unsigned done;             // groups of 32 pieces
  unsigned slot;             // of its first piece
  int bag;
  int table;
  long long begin;
  long long length;
  long long piece;       // rows
  unsigned arrived[32];  // pieces that are done, of every group
};

struct Help {
  unsigned long long state;  // slots in use in the upper half, open jobs (bits) in the lower
  Job jobs[32];
};

struct Arguments {
  char* out;                      // tables side by side in a row of it
  unsigned long long out_stride;  // bytes
  unsigned long long* report;     // gets table and bag of an id out of range
  Help* help;                     // followed by the sums of pieces; PLACE bytes in all
  int bags;
  int mean;
  int cut;  // longest bag that a warp sums alone; all are, with SHARE 0
  int count;  // of tables
#if JOINED  // ids of all tables in one array, table after table
  const INDEX* indices;
  const INDEX* offsets;  // count * bags + 1
  long long total;
  long long average;
#endif
  Table tables[TABLES];
};

// What is known of a table's ids, and where a bag's begin if all are alike.
#if JOINED
#define INDICES(a, t) ((a).indices)
#define OFFSETS(a, table) ((a).offsets + static_cast<long long>(table) * (a).bags)
#define TOTAL(a, t) ((a).total)
#define AVERAGE(a, t) ((a).average)
#define GUESS(a, table, bag) ((static_cast<long long>(table) * (a).bags + (bag)) * (a).average)
#else
#define INDICES(a, t) ((t).indices)
#define OFFSETS(a, table) ((a).tables[table].offsets)
#define TOTAL(a, t) ((t).total)
#define AVERAGE(a, t) ((t).average)
#define GUESS(a, table, bag) (static_cast<long long>(bag) * (a).tables[table].average)
#endif

struct Load {
  unsigned word[WORDS];
};

#include "ptx.cuh"

// A lane's loads of one row, zeros where the row or its columns are not there.
__device__ __forceinline__ void load_row(Load (&v)[PARTS], const char* row, int unit, bool here) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
    if (here && (UNITS % LANES == 0 || p * LANES + unit < UNITS)) {
      v[p] = load(row + p * LANES * VECTOR);
    } else {
#pragma unroll
      for (int w = 0; w < WORDS; ++w) v[p].word[w] = 0;
    }
}

typedef float Sum[PARTS][COLUMNS];

__device__ __forceinline__ void clear(Sum& sum) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[p][c] = 0.0f;
}

__device__ __forceinline__ void add(Sum& sum, const Load (&v)[PARTS]) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c)
#if ELEMENT == 0
      sum[p][c] += __uint_as_float(v[p].word[c]);
#else
      sum[p][c] += widen(c % 2 ? v[p].word[c / 2] >> 16 : v[p].word[c / 2]);
#endif
}

__device__ __forceinline__ void add(Sum& sum, const Sum& other) {
#pragma unroll
  for (int p = 0; p < PARTS; ++p)
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[p][c] += other[p][c];
}

// Adds the sums of a warp's groups; afterwards all of them have it.
__device__ __forceinline__ void join(Sum& sum) {
#pragma unroll
  for (int distance = LANES; distance < 32; distance *= 2)
#pragma unroll
    for (int p = 0; p < PARTS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        sum[p][c] += __shfl_xor_sync(FULL, sum[p][c], distance);
}

// Writes a bag, times `scale`, by the lanes of one group.
__device__ __forceinline__ void store(const Arguments& a, int table, int bag, int unit, float scale,
                                      Sum& sum) {
  char* out = a.out + table * (DIM * ELEMENT_BYTES) + bag * a.out_stride + unit * VECTOR;
#pragma unroll
  for (int p = 0; p < PARTS; ++p) {
    if (UNITS % LANES != 0 && p * LANES + unit >= UNITS) continue;
    char* address = out + p * LANES * VECTOR;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[p][c] *= scale;
#if VECTOR == 2
    *reinterpret_cast<unsigned short*>(address) = narrow(sum[p][0]);
#else
    unsigned word[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; ++w)
#if ELEMENT == 0
      word[w] = __float_as_uint(sum[p][w]);
#else
      word[w] = narrow(sum[p][2 * w]) | narrow(sum[p][2 * w + 1]) << 16;
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
}

__device__ __forceinline__ float scale_of(const Arguments& a, long long length) {
  return a.mean && length > 0 ? 1.0f / static_cast<float>(length) : 1.0f;
}

__device__ __forceinline__ bool outside(const Table& t, INDEX row) {
  return CHECK && static_cast<unsigned long long>(static_cast<long long>(row)) >= t.rows;
}

// Rows of a piece of a bag.
__device__ __forceinline__ long long piece_of(long long length) {
  const long long most = PIECES;
  return length <= PIECE * most ? PIECE : (length + most - 1) / most;
}

// What is open in a place: 0 where all bags are a warp's own.
__device__ __forceinline__ unsigned open_jobs(const Arguments& a) {
  return static_cast<unsigned>(*reinterpret_cast<volatile unsigned long long*>(&a.help->state));
}

// Offers a bag as a job. All lanes of the warp, with the same bag. False where that cannot be.
__device__ __noinline__ bool offer(const Arguments& a, int bag, int table, long long begin,
                                   long long length) {
  const int lane = threadIdx.x % 32;
  const long long piece = piece_of(length);
  const unsigned pieces = static_cast<unsigned>((length + piece - 1) / piece);
  int place = -1;
  unsigned slot = 0;
  if (lane == 0) {
    unsigned long long state = *reinterpret_cast<volatile unsigned long long*>(&a.help->state);
    for (;;) {
      const unsigned open = static_cast<unsigned>(state);
      slot = static_cast<unsigned>(state >> 32);
      if (open == FULL || slot + pieces > SLOTS) break;
      const int free = __ffs(~open) - 1;
      const unsigned long long wanted =
          static_cast<unsigned long long>(slot + pieces) << 32 | open | 1u << free;
      const unsigned long long was = atomicCAS(&a.help->state, state, wanted);
      if (was == state) {
        place = free;
        break;
      }
      state = was;
    }
  }
  place = __shfl_sync(FULL, place, 0);
  if (place < 0) return false;
  Job& job = a.help->jobs[place];
  job.arrived[lane] = 0;
  if (lane == 0) {
    job.done = 0;
    job.slot = slot;
    job.bag = bag;
    job.table = table;
    job.begin = begin;
    job.length = length;
    job.piece = piece;
  }
  __threadfence();
  __syncwarp();
  // Until here nobody gets a piece: as many are taken as the place's last job had, or more.
  if (lane == 0) atomicExch(&job.claim, static_cast<unsigned long long>(pieces) << 32);
  return true;
}

__device__ __forceinline__ float* slot_of(const Arguments& a, unsigned slot, int unit) {
  return reinterpret_cast<float*>(a.help + 1) + slot * WIDTH + unit;
}

__device__ __forceinline__ void put(const Arguments& a, unsigned slot, int lane, const Sum& sum) {
  if (lane < LANES) {
    float* to = slot_of(a, slot, lane);
#pragma unroll
    for (int i = 0; i < PARTS * COLUMNS; ++i) __stcg(to + i * LANES, sum[i / COLUMNS][i % COLUMNS]);
  }
  __threadfence();
  __syncwarp();
}

// Adds `count` slots, `step` apart, in their order, JOIN loads at a time. Every lane that shares a
// unit gets the sum.
__device__ __forceinline__ void gather(const Arguments& a, unsigned slot, unsigned count,
                                       unsigned step, int lane, Sum& sum) {
  __threadfence();
  clear(sum);
  constexpr int AT_ONCE = JOIN / PARTS > 1 ? JOIN / PARTS : 1;
#pragma unroll 1
  for (unsigned s = 0; s < count; s += AT_ONCE) {
    Sum flight[AT_ONCE];
#pragma unroll
    for (int f = 0; f < AT_ONCE; ++f) {
      const float* from = slot_of(a, slot + (s + f) * step, lane % LANES);
#pragma unroll
      for (int i = 0; i < PARTS * COLUMNS; ++i)
        flight[f][i / COLUMNS][i % COLUMNS] = s + f < count ? __ldcg(from + i * LANES) : 0.0f;
    }
#pragma unroll
    for (int f = 0; f < AT_ONCE; ++f) add(sum, flight[f]);
  }
}

// True for the one warp that is the last of `count` to come.
__device__ __forceinline__ bool is_last(unsigned* counter, unsigned count, int lane) {
  unsigned before = 0;
  if (lane == 0) before = atomicAdd(counter, 1u);
  return __shfl_sync(FULL, before, 0) == count - 1;
}

// Sums `n` rows of a bag, whose indices begin at `ids`, by a whole warp. All lanes that share a unit
// get the sum.
__device__ __forceinline__ void sum_rows(const Arguments& a, const Table& t, int bag,
                                         const INDEX* ids, int n, int lane, Sum& sum) {
  const int unit = lane % LANES;
  const int group = lane / LANES;
  const char* weight = t.weight + unit * VECTOR;
  clear(sum);
  constexpr int AT_ONCE = AHEAD / PARTS > 1 ? AHEAD / PARTS : 1;
  INDEX row = lane < n ? __ldg(ids + lane) : 0;
  for (int at = 0; at < n; at += 32) {
    const bool wrong = at + lane < n && outside(t, row);
    if (wrong) *a.report = t.number | static_cast<unsigned>(bag);
    const unsigned key = wrong ? 0 : static_cast<unsigned>(row);
    if (at + 32 + lane < n) row = __ldg(ids + at + 32 + lane);
#pragma unroll 1
    for (int i = 0; i < 32; i += GROUPS * AT_ONCE) {
      Load flight[AT_ONCE][PARTS];
#pragma unroll
      for (int f = 0; f < AT_ONCE; ++f) {
        const int k = i + f * GROUPS + group;
        const unsigned one = __shfl_sync(FULL, key, k % 32);
        load_row(flight[f], weight + one * t.row_stride, unit, k < 32 && at + k < n);
      }
#pragma unroll
      for (int f = 0; f < AT_ONCE; ++f) add(sum, flight[f]);
    }
  }
  join(sum);
}

// Sums a bag that could not be offered, in the order in which its pieces' sums would be added.
__device__ __noinline__ void alone(const Arguments& a, int table, int bag) {
  const Table& t = a.tables[table];
  const int lane = threadIdx.x % 32;
  const auto edge = [&](int at) {
    const long long offset = __ldg(OFFSETS(a, table) + at);
    return offset < 0 ? 0 : offset > TOTAL(a, t) ? TOTAL(a, t) : offset;
  };
  const long long begin = edge(bag);
  const long long length = edge(bag + 1) - begin;
  const long long each = piece_of(length);
  Sum all, some;
  clear(all);
  clear(some);
  int piece = 0;
  for (long long from = 0; from < length; from += each) {
    const bool last = length - from <= each;
    Sum sum;
    sum_rows(a, t, bag, INDICES(a, t) + begin + from, static_cast<int>(last ? length - from : each),
             lane, sum);
    add(some, sum);
    if (++piece % 32 == 0 || last) {
      add(all, some);
      clear(some);
    }
  }
  if (lane < LANES) store(a, table, bag, lane, scale_of(a, length), all);
}

__device__ __forceinline__ void sum_piece(const Arguments& a, Job& job, int place, unsigned piece,
                                          unsigned pieces, int lane) {
  const int table = TABLES == 1 ? 0 : __ldcg(&job.table);
  const Table& t = a.tables[table];
  const int bag = __ldcg(&job.bag);
  const unsigned slot = __ldcg(&job.slot);
  const long long length = __ldcg(&job.length);
  const long long each = __ldcg(&job.piece);
  const long long from = piece * each;
  const int n = static_cast<int>(length - from < each ? length - from : each);
  const INDEX* ids = INDICES(a, t) + __ldcg(&job.begin) + from;
  Sum sum;
  sum_rows(a, t, bag, ids, n, lane, sum);
  put(a, slot + piece, lane, sum);
  const unsigned head = piece / 32 * 32;
  const unsigned members = pieces - head < 32 ? pieces - head : 32;
  if (!is_last(job.arrived + piece / 32, members, lane)) return;
  gather(a, slot + head, members, 1, lane, sum);
  const unsigned groups = (pieces + 31) / 32;
  if (groups > 1) {
    put(a, slot + head, lane, sum);
    if (!is_last(&job.done, groups, lane)) return;
    gather(a, slot, groups, 32, lane, sum);
  }
  if (lane < LANES) store(a, table, bag, lane, scale_of(a, length), sum);
  if (lane == 0) {
    unsigned long long state = *reinterpret_cast<volatile unsigned long long*>(&a.help->state);
    for (;;) {
      const unsigned left = static_cast<unsigned>(state) & ~(1u << place);
      const unsigned long long wanted = left ? state & ~(1ull << place) : 0;
      const unsigned long long was = atomicCAS(&a.help->state, state, wanted);
      if (was == state) break;
      state = was;
    }
  }
}

// Where this warp begins among `open` jobs: at the first, or with SPREAD at one of its own, so that
// not all warps ask all jobs in the same order. Returns the bits from there on.
__device__ __forceinline__ unsigned from_mine(unsigned open) {
#if SPREAD
  const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
  const unsigned warp = block * (blockDim.x / 32) + threadIdx.x / 32;
  unsigned mine = open;
  for (unsigned skip = warp % __popc(open); skip; --skip) mine &= mine - 1;
  return mine;
#else
  return open;
#endif
}

// Takes pieces of open jobs until there are none. All lanes of a warp that has no other work.
__device__ __noinline__ void help(const Arguments& a) {
  const int lane = threadIdx.x % 32;
  for (bool found = true; found;) {
    unsigned open = __shfl_sync(FULL, open_jobs(a), 0);
    found = false;
    while (open) {
      const int place = __ffs(from_mine(open)) - 1;
      open &= ~(1u << place);
      Job& job = a.help->jobs[place];
      unsigned long long claim = 0;
      if (lane == 0) claim = atomicAdd(&job.claim, 1ull);
      claim = __shfl_sync(FULL, claim, 0);
      const unsigned piece = static_cast<unsigned>(claim);
      const unsigned pieces = static_cast<unsigned>(claim >> 32);
      if (piece >= pieces) continue;
      __threadfence();
      sum_piece(a, job, place, piece, pieces, lane);
      found = true;
    }
  }
}
