#include "snapshots.h"

#include <algorithm>
#include <cstring>

#include "driver_calls.h"
#include "own_driver.h"

namespace accel_trace {
namespace {

constexpr size_t kMostTargets = 64;
constexpr uint64_t kStage = 16 << 20;
constexpr unsigned kThreads = 256, kMostBlocks = 2048;

// By parameter of a demangled name: whether the kernel may write what it points to.
std::vector<Writes> writes_of(const std::string& name) {
  std::vector<Writes> out;
  const size_t end = name.rfind(')');
  if (end == std::string::npos) return out;
  size_t begin = end;
  for (int depth = 1; begin > 0 && depth > 0;) {
    --begin;
    depth += name[begin] == ')' ? 1 : name[begin] == '(' ? -1 : 0;
  }
  int depth = 0;
  std::string type;
  for (size_t i = begin + 1; i <= end; ++i) {
    const char c = name[i];
    if (i == end || (c == ',' && depth == 0)) {
      const bool pointer = !type.empty() && type.back() == '*' && type.find('(') == type.npos;
      const bool fixed = type.size() >= 7 && type.compare(type.size() - 7, 6, " const") == 0;
      out.push_back(!pointer ? Writes::argument : fixed ? Writes::no : Writes::may);
      type.clear();
      continue;
    }
    depth += c == '<' || c == '(' ? 1 : c == '>' || c == ')' ? -1 : 0;
    type += c;
  }
  return out;
}

}  // namespace

std::vector<Target> targets_of(const std::string& kernel,
                               const std::vector<KernelCode::Parameter>& parameters,
                               void** arguments) {
  constexpr uint32_t kElsewhere =
      kMemoryHostPinned | kMemoryHostMapped | kMemoryManaged | kMemoryPeer;
  std::vector<Target> found;
  if (!arguments) return found;
  const std::vector<Writes> types = writes_of(demangle(kernel.c_str()));
  for (const KernelCode::Parameter& parameter : parameters) {
    const bool typed = parameter.size == sizeof(uint64_t) && parameter.ordinal < types.size();
    const Writes writes = typed ? types[parameter.ordinal] : Writes::argument;
    const char* const bytes = static_cast<const char*>(arguments[parameter.ordinal]);
    for (size_t at = 0; bytes && at + sizeof(uint64_t) <= parameter.size; at += sizeof(uint64_t)) {
      uint64_t address;
      memcpy(&address, bytes + at, sizeof address);
      const Piece* const piece = tool->pieces->find(address);
      if (!piece || (piece->flags & kElsewhere)) continue;
      const auto same = std::find_if(found.begin(), found.end(), [&](const Target& other) {
        return other.address == piece->address;
      });
      if (same == found.end()) {
        found.push_back({piece->address, piece->size, writes, piece->id});
      } else if (same->writes == Writes::no || writes == Writes::may) {
        same->writes = writes;  // by the one that says most of writing
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Target& a, const Target& b) { return a.address < b.address; });
  return found;
}

bool Snapshots::wants(const std::string& kernel) {
  if (broken_ || !tool_.recording() || tool_.gpu_over) return false;
  const Text region = tool_.regions.empty() ? 0 : tool_.regions.back().text;
  uint64_t& turn = seen_[{&kernel, operator_of_thread(), region}];
  if (turn++ % tool_.options.contexts) return false;
  if (busy_) {
    ++others_;
    return false;
  }
  busy_ = true;
  turn_ = &turn;
  thread_ = std::this_thread::get_id();
  return true;
}

void Snapshots::not_known() {
  --*turn_;
  ++unknown_;
  at_ = nullptr;
}

bool Snapshots::parameters_of(const void* kernel,
                              std::vector<KernelCode::Parameter>& out) const {
  const auto ask = driver().cuKernelGetParamInfo_;
  const auto handle = static_cast<CUkernel>(const_cast<void*>(kernel));
  CUresult result = CUDA_ERROR_NOT_FOUND;
  for (uint32_t i = 0; ask; ++i) {
    size_t offset = 0, size = 0;
    result = ask(handle, i, &offset, &size);
    if (result != CUDA_SUCCESS) break;
    if (size >= sizeof(uint64_t)) out.push_back({i, static_cast<uint32_t>(size)});
  }
  return result == CUDA_ERROR_INVALID_VALUE;  // behind the last one
}

bool Snapshots::check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return true;
  Lock lock(tool_.mutex);
  if (!broken_) {
    tool_.note(2, std::string("what kernels write is not compared any more: ") + what +
                      " failed with error " + std::to_string(static_cast<int>(result)));
  }
  broken_ = true;
  return false;
}

Snapshots::Device* Snapshots::device() {
  CUcontext context = nullptr;
  if (!check(driver().cuCtxGetCurrent_(&context), "finding the context")) return nullptr;
  Lock lock(tool_.mutex);
  Device& device = devices_[context];
  lock.unlock();
  if (device.sums) return &device;
  if (!check(comparing_kernel("at_compare", device.compare), "loading the kernel that compares") ||
      !check(driver().cuMemAlloc_(&device.copies, tool_.options.snapshot), "taking memory") ||
      !check(driver().cuMemAlloc_(&device.stage, kStage), "taking memory") ||
      !check(driver().cuMemAlloc_(&device.sums, kMostTargets * sizeof(Sums)), "taking memory")) {
    for (const CUdeviceptr memory : {device.copies, device.stage}) driver().cuMemFree_(memory);
    return nullptr;  // and never again
  }
  lock.lock();
  tool_.took(static_cast<int64_t>(tool_.options.snapshot + kStage), 0);
  return &device;
}

void Snapshots::before(CUstream stream, std::vector<Target> targets) {
  stream_ = stream;
  targets_.clear();
  at_ = nullptr;
  if (!driver().whole) {
    check(CUDA_ERROR_NOT_FOUND, "finding the driver's functions");
    return;
  }
  const Relaxed relaxed;
  if (!runs(stream)) {
    ++captured_;
    return;
  }
  at_ = device();
  uint64_t used = 0;
  for (Target& target : targets) {
    const bool copied = target.writes != Writes::no;
    if (targets_.size() == kMostTargets || target.address % 8 != 0 ||
        (copied && used + target.size > tool_.options.snapshot)) {
      left_bytes_ += target.size;
      continue;
    }
    if (!at_) return targets_.clear();
    if (copied) {
      target.copy = at_->copies + used;
      if (!copy(target.copy, target.address, target.size)) {
        if (broken_) return targets_.clear();
        Lock lock(tool_.mutex);
        left_out(target);
        continue;
      }
      copying_ = true;
      used += (target.size + 255) / 256 * 256;
    }
    targets_.push_back(target);
  }
}

// False as well where another thread has just freed what is read: the driver refuses to copy that, where
// a kernel that reads it would be the program's end.
bool Snapshots::copy(CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  const CUresult result = driver().cuMemcpyDtoDAsync_(to, from, bytes, stream_);
  return result != CUDA_ERROR_INVALID_VALUE && check(result, "copying memory");
}

// Part by part, each copied first. False where it ended meanwhile, or nothing is compared any more.
bool Snapshots::compare(const Target& target, uint64_t out) {
  for (uint64_t at = 0; at < target.size; at += kStage) {
    uint64_t bytes = std::min(target.size - at, kStage), first = at / 8;
    if (!copy(at_->stage, target.address + at, bytes)) return false;
    uint64_t before = target.writes == Writes::no ? at_->stage : target.copy + at;
    void* arguments[] = {&at_->stage, &before, &first, &bytes, &out};
    const uint64_t blocks = std::min<uint64_t>(bytes / 8 / kThreads + 1, kMostBlocks);
    if (!check(driver().cuLaunchKernel_(at_->compare, static_cast<unsigned>(blocks), 1, 1, kThreads,
                                        1, 1, 0, stream_, arguments, nullptr),
               "comparing memory")) {
      return false;
    }
  }
  return true;
}

// With the mutex, as what follows.
bool Snapshots::lives(const Target& target) const {
  const Piece* const piece = tool_.pieces->find(target.address);
  return piece && piece->id == target.id;
}

void Snapshots::left_out(const Target& target) {
  (lives(target) ? refused_ : freed_) += target.size;
}

bool Snapshots::compare(uint64_t launch) {
  const uint64_t since = now_ns();
  const Relaxed relaxed;
  std::vector<Sums> sums(targets_.size());
  const size_t bytes = sums.size() * sizeof(Sums);
  bool good = check(driver().cuMemsetD8Async_(at_->sums, 0, bytes, stream_), "clearing memory");
  std::vector<bool> compared(targets_.size());
  for (size_t i = 0; i < targets_.size() && good; ++i) {
    compared[i] = compare(targets_[i], at_->sums + i * sizeof(Sums));
    good = !broken_;
  }
  good = good &&
         check(driver().cuMemcpyDtoHAsync_(sums.data(), at_->sums, bytes, stream_), "fetching") &&
         check(driver().cuStreamSynchronize_(stream_), "waiting for a stream");
  copying_ &= !good;
  Lock lock(tool_.mutex);
  tool_.collection.add(since);
  for (size_t i = 0; i < targets_.size() && good; ++i) {
    if (!compared[i] || !lives(targets_[i])) {
      left_out(targets_[i]);
      continue;
    }
    event::Kept event{};
    event.launch = launch;
    event.address = targets_[i].address;
    event.size = targets_[i].size;
    event.unchanged = sums[i].unchanged;
    event.writes = static_cast<uint32_t>(targets_[i].writes);
    event.zeros = sums[i].others == 0;
    event.hash_low = sums[i].low;
    event.hash_high = sums[i].high;
    tool_.log.add(event);
  }
  looked_ += good;
  return good;
}

void Snapshots::after(bool launched, uint64_t launch) {
  if (!busy_.load(std::memory_order_relaxed)) return;  // what this thread began it sees
  Lock lock(tool_.mutex);
  if (!busy_ || thread_ != std::this_thread::get_id()) return;
  if (launched && at_) {
    const auto gone = std::stable_partition(targets_.begin(), targets_.end(),
                                            [&](const Target& target) { return lives(target); });
    std::for_each(gone, targets_.end(), [&](const Target& target) { left_out(target); });
    targets_.erase(gone, targets_.end());
    lock.unlock();
    if (!targets_.empty()) compare(launch);
    lock.lock();
  }
  if (copying_) {  // nothing waited: the driver refused the launch, say. The next one gets the buffer.
    lock.unlock();
    const Relaxed relaxed;
    driver().cuStreamSynchronize_(stream_);
    copying_ = false;
    lock.lock();
  }
  thread_ = std::thread::id();
  busy_ = false;
}

void Snapshots::forget(CUcontext context) {
  const auto found = devices_.find(context);
  if (found == devices_.end()) return;
  if (found->second.sums) tool_.took(-static_cast<int64_t>(tool_.options.snapshot + kStage), 0);
  devices_.erase(found);
}

void Snapshots::write_last() {
  tool_.fact("snapshot", std::to_string(tool_.options.snapshot));
  tool_.fact("snapshots", std::to_string(looked_));
  tool_.fact("snapshot_freed", std::to_string(freed_));
  tool_.fact("snapshot_refused", std::to_string(refused_));
  const struct {
    uint64_t count;
    const char* words;
  } left[] = {
      {left_bytes_, "bytes that kernels got were not compared: they did not fit into the budget, or "
                    "were more than 64 pieces of a launch, or at addresses that 8 does not divide"},
      {captured_, "launches were not compared: they went into a CUDA graph"},
      {others_, "launches were not compared: another thread's was under way"},
      {unknown_, "launches were not compared: what they get was not known"},
  };
  for (const auto& [count, words] : left) {
    if (count) tool_.note(1, std::to_string(count) + " " + words);
  }
}

}  // namespace accel_trace
