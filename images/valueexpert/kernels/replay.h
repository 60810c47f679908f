// The CPU's side of mini.h: a device that runs threads in turn and writes what they did.
#pragma once

#include <dlfcn.h>

#define KERNEL static void
#define DEVICE inline
#define LD(array, index) (accelerator->load(__func__, __LINE__, (array) + (index)))
#define ST(array, index, value) (accelerator->store(__func__, __LINE__, (array) + (index), value))
#define HOST_LD(array, index) (accelerator->host_load(__LINE__, (array) + (index)))
#define HOST_ST(array, index, value) (accelerator->host_store(__LINE__, (array) + (index), value))
#define THREAD (accelerator->block * accelerator->width + accelerator->thread)
#define ADD_ATOMIC(array, index, value) \
  (accelerator->add(__func__, __LINE__, (array) + (index), value))

#pragma pack(push, 1)
struct Access {  // a record of accesses.bin; the columns of accel_trace.values.accesses
  uint32_t launch, pc, block, thread;
  uint64_t address;
  uint8_t size, flags, element, unit;
  uint64_t low, high;
};
#pragma pack(pop)
static_assert(sizeof(Access) == 44, "records have no padding");

template <class T>
constexpr uint8_t element_of() {  // accel_trace.values.elements.CODES
  constexpr int log2 = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return static_cast<uint8_t>(std::is_floating_point<T>::value ? 8 + log2
                              : std::is_signed<T>::value       ? 1 + log2
                                                               : 5 + log2);
}

class Device {
 public:
  static constexpr uint64_t kBase = 0x700000000000ull;
  static constexpr size_t kArena = size_t{1} << 28;
  static constexpr size_t kLarge = size_t{2} << 20;  // the largest page
  Spent spent;
  int block = 0, thread = 0, width = 1;

  Device() : arena_(static_cast<uint8_t*>(aligned_alloc(kLarge, kArena))) {
    memset(arena_, 0xa5, kArena);
  }
  ~Device() {
    if (!folder_.empty()) flush();
    free(arena_);
  }
  void write_to(const char* folder) { folder_ = folder; }
  bool again() {  // bit by bit the same, so once is enough
    fprintf(stderr, "a replay is made once: REPEATS is 1\n");
    exit(2);
  }

  template <class T>
  T* alloc(size_t count, const char* where, const char* kind = "alloc") {
    T* pointer = reinterpret_cast<T*>(arena_ + used_);
    event(kind, pointer, count * sizeof(T), 0, where);
    used_ += (count * sizeof(T) + 511) / 512 * 512;
    if (used_ > kArena) {
      fprintf(stderr, "the replay has %zu bytes of memory; take a smaller SIZE\n", kArena);
      exit(2);
    }
    return pointer;
  }
  // The CPU's turns can be watched for real: accel_trace/cpu is told of the memory where it is there.
  template <class T>
  T* managed(size_t count, const char* where) {
    used_ = (used_ + kLarge - 1) / kLarge * kLarge;
    T* pointer = alloc<T>(count, where, "managed");
    used_ = (used_ + kLarge - 1) / kLarge * kLarge;
    memset(pointer, 0, count * sizeof(T));
    using Watch = int (*)(uint64_t, uint64_t);
    if (const auto watch = reinterpret_cast<Watch>(dlsym(RTLD_DEFAULT, "accel_trace_cpu_watch"))) {
      watch(reinterpret_cast<uint64_t>(pointer), count * sizeof(T));
    }
    return pointer;
  }
  template <class Turn>
  void turn(const char* where, Turn turn);
  template <class T>
  T host_load(int line, T* where) {
    host_note(line, where, 1);
    return *static_cast<volatile T*>(where);
  }
  template <class T, class U>
  void host_store(int line, T* where, U value) {
    host_note(line, where, 2);
    *static_cast<volatile T*>(where) = static_cast<T>(value);
  }
  template <class T>
  void upload(T* to, const T* from, size_t count, const char* where) {
    spent.copied += count * sizeof(T);
    keep(from, count * sizeof(T));
    memcpy(to, from, count * sizeof(T));
    event("upload", to, count * sizeof(T), 0, where);
  }
  template <class T>
  void download(T* to, const T* from, size_t count, const char* where) {
    spent.copied += count * sizeof(T);
    keep(to, count * sizeof(T));
    memcpy(to, from, count * sizeof(T));
    event("download", from, count * sizeof(T), 0, where);
  }
  template <class T>
  void copy(T* to, const T* from, size_t count, const char* where) {
    spent.copied += count * sizeof(T);
    memmove(to, from, count * sizeof(T));
    keep(to, 0);
    event("copy", to, count * sizeof(T), address(from), where);
  }
  template <class T>
  void fill(T* to, uint8_t byte, size_t count, const char* where) {
    spent.filled += count * sizeof(T);
    memset(to, byte, count * sizeof(T));
    event("fill", to, count * sizeof(T), byte, where);
  }
  template <class... Wanted, class... Given>
  void launch(const char* name, void (*kernel)(Wanted...), int threads, int block_size,
              Given... given);

  template <class T>
  T load(const char* kernel, int line, const T* where) {
    note(kernel, line, where, *where, 1);
    return *where;
  }
  template <class T>
  void store(const char* kernel, int line, T* where, T value) {
    note(kernel, line, where, value, 2);
    *where = value;
  }
  template <class T>
  void add(const char* kernel, int line, T* where, T value) {
    note(kernel, line, where, T{}, 3);
    *where += value;
  }

 private:
  uint8_t* arena_;
  size_t used_ = 0;
  std::string folder_, events_;
  std::vector<std::string> sites_;
  std::vector<Access> accesses_;
  std::vector<uint8_t> contents_;
  std::vector<uint64_t> ends_;
  std::vector<Access> host_;  // of the CPU's turns: `pc` is the line

  uint64_t address(const void* pointer) const {
    return kBase + static_cast<uint64_t>(static_cast<const uint8_t*>(pointer) - arena_);
  }
  void keep(const void* data, size_t bytes) {
    if (folder_.empty()) return;
    const auto* first = static_cast<const uint8_t*>(data);
    contents_.insert(contents_.end(), first, first + bytes);
    ends_.push_back(contents_.size());
  }
  void event(const char* kind, const void* pointer, uint64_t size, uint64_t extra,
             const std::string& where) {
    events_ += std::string(kind) + "\t" + std::to_string(address(pointer)) + "\t" +
               std::to_string(size) + "\t" + std::to_string(extra) + "\t" + where + "\n";
  }
  uint32_t site(const char* kernel, int line) {
    const std::string name = std::string(kernel) + ":" + std::to_string(line);
    for (uint32_t i = 0; i < sites_.size(); ++i) {
      if (sites_[i] == name) return i;
    }
    sites_.push_back(name);
    return static_cast<uint32_t>(sites_.size() - 1);
  }
  template <class T>
  void note(const char* kernel, int line, const T* where, T value, uint8_t flags) {
    if (folder_.empty()) return;
    Access one{};
    one.launch = static_cast<uint32_t>(spent.launches - 1);
    one.pc = site(kernel, line);
    one.block = static_cast<uint32_t>(block);
    one.thread = static_cast<uint32_t>(thread);
    one.address = address(where);
    one.size = one.unit = sizeof(T);
    one.flags = flags;
    one.element = element_of<T>();
    memcpy(&one.low, &value, sizeof(T));
    accesses_.push_back(one);
  }
  void host_note(int line, const void* where, size_t size, uint8_t flags) {
    Access one{};
    one.pc = static_cast<uint32_t>(line);
    one.address = address(where);
    one.size = one.unit = static_cast<uint8_t>(size);
    one.flags = flags;
    if (!folder_.empty()) host_.push_back(one);
  }
  template <class T>
  void host_note(int line, T* where, uint8_t flags) {
    host_note(line, where, sizeof(T), flags);
  }
  static void watch(const char* what) {
    if (const auto call = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, what))) call();
  }
  template <class T>
  void file(const char* name, const T* data, size_t count) const {
    FILE* out = fopen((folder_ + "/" + name).c_str(), "wb");
    const bool good = out && (count == 0 || fwrite(data, sizeof(T), count, out) == count);
    if (!good || fclose(out) != 0) {
      fprintf(stderr, "%s/%s cannot be written\n", folder_.c_str(), name);
      exit(1);
    }
  }
  void flush() const {
    std::string sites;
    for (const std::string& one : sites_) sites += one + "\n";
    file("events.txt", events_.data(), events_.size());
    file("sites.txt", sites.data(), sites.size());
    file("accesses.bin", accesses_.data(), accesses_.size());
    file("contents.bin", contents_.data(), contents_.size());
    file("ends.bin", ends_.data(), ends_.size());
    file("host.bin", host_.data(), host_.size());
  }
};

static Device* accelerator = nullptr;  // whose kernel runs

template <class... Wanted, class... Given>
void Device::launch(const char* name, void (*kernel)(Wanted...), int threads, int block_size,
                    Given... given) {
  const int blocks = (threads + block_size - 1) / block_size;
  ++spent.launches;
  const std::string bare = name[0] == '(' ? std::string(name + 1, strlen(name) - 2) : name;
  event("launch", arena_, static_cast<uint64_t>(blocks), static_cast<uint64_t>(block_size), bare);
  accelerator = this;
  width = block_size;
  watch("accel_trace_cpu_pause");  // these are the GPU's accesses
  for (block = 0; block < blocks; ++block) {
    for (thread = 0; thread < block_size; ++thread) kernel(given...);
  }
  watch("accel_trace_cpu_resume");
}

template <class Turn>
void Device::turn(const char* where, Turn turn) {
  accelerator = this;
  const size_t first = host_.size();
  if (!turn()) {
    fprintf(stderr, "%s: what the CPU found is wrong\n", where);
    exit(1);
  }
  event("wait", arena_, 0, 0, where);
  event("turn", arena_, first, host_.size() - first, where);
}
