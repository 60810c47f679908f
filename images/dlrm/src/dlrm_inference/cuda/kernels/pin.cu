// L2 pinning (docs/papers/dlrm.md, 3.7): asks the L2 to keep the hottest rows, before the gather.
//
// Launch   block 256, grid as many as needed: one thread per 128-byte line, consecutive threads on
//          the lines of a row. The artifact prefetches each 4-byte element: 32 times the requests.
// Traffic  hot rows * row bytes into the L2 (those not there yet), plus 8 bytes per row of list.
// Limit    DRAM bandwidth: 39.3 MB at 4.2 TB/s are 9.4 us.
extern "C" __global__ void __launch_bounds__(256)
    pin(const char* weight, const long long* hot_rows, long long count, long long row_stride_bytes,
        int row_bytes) {
  const int lines = (row_bytes + 127) / 128 + 1;  // a row that starts inside a line needs one more
  const long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i >= count * lines) return;
  const char* row = weight + hot_rows[i / lines] * row_stride_bytes;
  const unsigned long long first = reinterpret_cast<unsigned long long>(row) & ~127ULL;
  const unsigned long long line = first + (i % lines) * 128;
  if (line >= reinterpret_cast<unsigned long long>(row) + row_bytes) return;
  asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(line));
}
