// The CPU's side of mini.h: a device that runs threads in turn and writes what they did.
#pragma once

#define KERNEL static void
#define DEVICE inline
#define LD(array, index) (accelerator->load(__func__, __LINE__, (array) + (index)))
#define ST(array, index, value) (accelerator->store(__func__, __LINE__, (array) + (index), value))
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
  Spent spent;
  int block = 0, thread = 0, width = 1;

  Device() : arena_(static_cast<uint8_t*>(malloc(kArena))) { memset(arena_, 0xa5, kArena); }
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
  T* alloc(size_t count, const char* where) {
    T* pointer = reinterpret_cast<T*>(arena_ + used_);
    event("alloc", pointer, count * sizeof(T), 0, where);
    used_ += (count * sizeof(T) + 511) / 512 * 512;
    if (used_ > kArena) {
      fprintf(stderr, "the replay has %zu bytes of memory; take a smaller SIZE\n", kArena);
      exit(2);
    }
    return pointer;
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
  for (block = 0; block < blocks; ++block) {
    for (thread = 0; thread < block_size; ++thread) kernel(given...);
  }
}
