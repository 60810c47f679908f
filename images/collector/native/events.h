// The event table: every event and its fields in the order in which they lie in a log.
// The same table as src/accel_trace/events.py; a test holds the two against each other.
#pragma once

#include <cstdint>

namespace accel_trace {

using Text = uint32_t;  // the number of a string; 0 is the empty one

constexpr char kMagic[8] = {'A', 'C', 'T', 'R', 'A', 'C', 'E', '1'};
constexpr uint32_t kVersion = 1;
constexpr uint16_t kStringKind = 1;  // payload: u32 number, then UTF-8 bytes

#pragma pack(push, 1)

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t size;
  uint64_t pid;
  uint64_t unix_ns;
  uint64_t monotonic_ns;
};

struct Frame {
  uint16_t kind;
  uint16_t flags;
  uint32_t payload;
  uint64_t clock;
  uint64_t ns;
};

namespace event {

struct Fact {
  static constexpr uint16_t kind = 2;
  Text name;
  Text value;
};

struct Context {
  static constexpr uint16_t kind = 3;
  uint64_t context;
  uint32_t device;
  uint32_t created;
};

struct Module {
  static constexpr uint16_t kind = 4;
  uint64_t module;
  uint64_t context;
  uint32_t loaded;
  uint32_t patched;
  int32_t result;
  uint64_t size;
};

struct Alloc {
  static constexpr uint16_t kind = 5;
  uint64_t address;
  uint64_t size;
  uint32_t device;
  uint32_t flags;
  uint64_t stream;
};

struct Free {
  static constexpr uint16_t kind = 6;
  uint64_t address;
  uint64_t size;
  uint32_t device;
  uint32_t flags;
  uint64_t stream;
};

struct Memcpy {
  static constexpr uint16_t kind = 7;
  uint64_t destination;
  uint64_t source;
  uint64_t size;
  uint32_t direction;
  uint32_t asynchronous;
  uint64_t stream;
};

struct Memset {
  static constexpr uint16_t kind = 8;
  uint64_t address;
  uint64_t size;
  uint32_t value;
  uint32_t element;
  uint32_t asynchronous;
  uint64_t stream;
};

struct Sync {
  static constexpr uint16_t kind = 9;
  uint32_t what;
  uint64_t stream;
};

struct Launch {
  static constexpr uint16_t kind = 10;
  uint64_t launch;
  Text name;
  uint32_t device;
  uint64_t stream;
  uint64_t context;
  uint32_t grid_x;
  uint32_t grid_y;
  uint32_t grid_z;
  uint32_t block_x;
  uint32_t block_y;
  uint32_t block_z;
  uint32_t analysed;
  uint64_t thread;
  Text operator_;  // `operator` is a word of C++
  Text region;
};

struct LaunchEnd {
  static constexpr uint16_t kind = 11;
  uint64_t launch;
};

struct TensorAlloc {
  static constexpr uint16_t kind = 12;
  uint64_t address;
  uint64_t size;
  uint64_t allocated;
  uint64_t reserved;
  uint32_t device;
  uint64_t stream;
};

struct TensorFree {
  static constexpr uint16_t kind = 13;
  uint64_t address;
  uint64_t size;
  uint64_t allocated;
  uint64_t reserved;
  uint32_t device;
  uint64_t stream;
};

struct OperatorStart {
  static constexpr uint16_t kind = 14;
  Text name;
  uint64_t index;
  uint64_t thread;
};

struct OperatorEnd {
  static constexpr uint16_t kind = 15;
  Text name;
  uint64_t index;
  uint64_t thread;
};

struct RegionStart {
  static constexpr uint16_t kind = 16;
  Text name;
};

struct RegionEnd {
  static constexpr uint16_t kind = 17;
  Text name;
};

struct Touched {
  static constexpr uint16_t kind = 18;
  uint64_t launch;
  uint64_t address;
  uint64_t size;
  uint32_t what;
  uint32_t flags;
};

struct Counts {
  static constexpr uint16_t kind = 19;
  uint64_t launch;
  uint64_t global_reads;
  uint64_t global_writes;
  uint64_t global_atomics;
  uint64_t global_bytes_read;
  uint64_t global_bytes_written;
  uint64_t shared_reads;
  uint64_t shared_writes;
  uint64_t local_reads;
  uint64_t local_writes;
  uint64_t async_copies;
  uint64_t async_bytes;
  uint64_t bulk_copies;
  uint64_t bulk_bytes;
  uint64_t outside;
};

struct Hot {
  static constexpr uint16_t kind = 20;
  uint64_t launch;
  uint64_t block;
  uint64_t count;
};

struct Timer {
  static constexpr uint16_t kind = 21;
  Text stage;
  uint64_t total_ns;
  uint64_t count;
};

struct Dropped {
  static constexpr uint16_t kind = 22;
  Text what;
  uint64_t count;
};

struct Stack {
  static constexpr uint16_t kind = 23;
  uint64_t launch;
  Text text;
};

struct Note {
  static constexpr uint16_t kind = 24;
  uint32_t level;
  Text text;
};

struct KernelTime {
  static constexpr uint16_t kind = 25;
  uint64_t launch;
  Text name;
  uint64_t start_ns;
  uint64_t end_ns;
  uint32_t device;
  uint32_t stream;
  uint64_t correlation;
};

struct CopyTime {
  static constexpr uint16_t kind = 26;
  Text what;
  uint32_t direction;
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t size;
  uint32_t device;
  uint32_t stream;
};

struct ManagedCounter {
  static constexpr uint16_t kind = 27;
  Text what;
  uint64_t value;
  uint64_t start_ns;
  uint64_t end_ns;
  uint64_t address;
  uint32_t device;
};

struct TensorMap {
  static constexpr uint16_t kind = 40;
  uint64_t launch;
  uint64_t address;
  uint64_t span;
  uint64_t size;
  uint32_t type;
  uint32_t rank;
  uint64_t extent_0;
  uint64_t extent_1;
  uint64_t extent_2;
  uint64_t extent_3;
  uint64_t extent_4;
  uint64_t stride_1;
  uint64_t stride_2;
  uint64_t stride_3;
  uint64_t stride_4;
};

struct Uses {
  static constexpr uint16_t kind = 41;
  uint64_t launch;
  uint32_t what;
};

struct Lost {
  static constexpr uint16_t kind = 42;
  uint64_t launch;
};

struct Nothing {
  static constexpr uint16_t kind = 43;
  uint64_t launch;
};

struct Iteration {
  static constexpr uint16_t kind = 44;
  uint64_t iteration;
  uint32_t began;
  uint32_t analysed;
};

struct Argument {
  static constexpr uint16_t kind = 45;
  uint64_t launch;
  uint32_t place;
  uint64_t address;
};

struct Refused {
  static constexpr uint16_t kind = 46;
  uint64_t launch;
};

struct Recorded {
  static constexpr uint16_t kind = 60;
  uint64_t launch;
  uint64_t accesses;
  uint64_t kept;
  uint64_t reads;
  uint64_t writes;
  uint32_t blocks;
};

struct Compared {
  static constexpr uint16_t kind = 61;
  uint64_t size;
  uint64_t unchanged;
  uint32_t zeros;
};

struct Kept {
  static constexpr uint16_t kind = 62;
  uint64_t launch;
  uint64_t address;
  uint64_t size;
  uint64_t unchanged;
  uint32_t writes;
  uint32_t zeros;
  uint64_t hash_low;
  uint64_t hash_high;
};

struct Code {
  static constexpr uint16_t kind = 66;
  uint64_t file;
  Text function;
  uint64_t address;
  uint64_t size;
};

struct End {
  static constexpr uint16_t kind = 255;
  uint64_t frames;
};

}  // namespace event

#pragma pack(pop)

static_assert(sizeof(Header) == 40 && sizeof(Frame) == 24, "the log's frames have no padding");

// Bits of Alloc::flags, as the Sanitizer reports them.
enum MemoryFlag : uint32_t {
  kMemoryModule = 0x1,
  kMemoryManaged = 0x2,
  kMemoryHostMapped = 0x4,
  kMemoryHostPinned = 0x8,
  kMemoryPeer = 0x10,
  kMemoryPeerAtomic = 0x20,
  kMemoryCooperativeGroups = 0x40,
  kMemoryDynamicParallelism = 0x80,
};

}  // namespace accel_trace
