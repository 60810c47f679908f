#include "copies.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "callbacks.h"
#include "driver_arguments.h"
#include "own_driver.h"

namespace accel_trace {
namespace {

constexpr uint64_t kPiece = 4 << 20;       // bytes that are fetched at once
constexpr uint64_t kLeastCopy = 32 << 20;  // that is taken for copies of destinations
constexpr uint64_t kMostCopy = 1 << 30;
constexpr uint64_t kShare = 8;             // of the memory that is free
constexpr unsigned kThreads = 256, kMostBlocks = 2048;
constexpr const char* kPageLocked = "taking page-locked memory";

// A function of the driver that takes MoveArguments.
struct Followed {
  Sanitizer_CallbackId id;
  unsigned element;  // bytes of that of a fill; 0: a copy
  bool stream;       // the last argument
  bool per_thread;   // the default stream is the thread's own
};
#define AT_COPY(name) \
  {SANITIZER_CBID_DRIVER_API_##name##_v2, 0, false, false}, \
  {SANITIZER_CBID_DRIVER_API_##name##_v2_ptds, 0, false, true}, \
  {SANITIZER_CBID_DRIVER_API_##name##Async_v2, 0, true, false}, \
  {SANITIZER_CBID_DRIVER_API_##name##Async_v2_ptsz, 0, true, true}
#define AT_FILL(name, element) \
  {SANITIZER_CBID_DRIVER_API_##name##_v2, element, false, false}, \
  {SANITIZER_CBID_DRIVER_API_##name##_v2_ptds, element, false, true}, \
  {SANITIZER_CBID_DRIVER_API_##name##Async, element, true, false}, \
  {SANITIZER_CBID_DRIVER_API_##name##Async_ptsz, element, true, true}
constexpr Followed kFollowed[] = {
    AT_COPY(cuMemcpyHtoD), AT_COPY(cuMemcpyDtoH), AT_COPY(cuMemcpyDtoD),
    {SANITIZER_CBID_DRIVER_API_cuMemcpy, 0, false, false},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy_ptds, 0, false, true},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAsync, 0, true, false},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAsync_ptsz, 0, true, true},
    AT_FILL(cuMemsetD8, 1), AT_FILL(cuMemsetD16, 2), AT_FILL(cuMemsetD32, 4),
};

const Followed* followed(Sanitizer_CallbackId id) {
  const auto found = std::find_if(std::begin(kFollowed), std::end(kFollowed),
                                  [&](const Followed& one) { return one.id == id; });
  return found == std::end(kFollowed) ? nullptr : found;
}

// What this thread makes, between the beginning and the end of the driver's function.
struct Move {
  bool ours = false;  // our memory is this move's
  uint64_t to = 0, from = 0, size = 0;
  CUstream stream = nullptr;
  enum { nothing, copied, compared, fetched } before = nothing;  // what was done
  Equal found;             // where it was compared
  Copies* owner = nullptr;
  CUcontext context = nullptr;
  uint64_t kept = 0;       // the copy of the destination
  enum { none, copy, fill } reported = none;
  Sanitizer_MemcpyData copy_data;
  Sanitizer_MemsetData fill_data;
};
thread_local Move move;

bool not_in_one_piece() {
  tool->note_once("pitched", 2, "copies or fills with a pitch were not compared");
  return false;
}

}  // namespace

void Copies::add_calls(std::vector<Sanitizer_CallbackId>& calls) {
  for (const Followed& one : kFollowed) calls.push_back(one.id);
}

bool Copies::follows(Sanitizer_CallbackId id) { return followed(id) != nullptr; }

void Copies::begin(Sanitizer_CallbackId id, const Sanitizer_CallbackData& data) {
  release();
  move = Move{};
  const Followed* const found = followed(id);
  if (!found || !data.functionParams || !driver().whole) return;
  MoveArguments arguments{};
  memcpy(&arguments, data.functionParams,
         found->stream ? sizeof arguments : offsetof(MoveArguments, stream));
  move.to = arguments.to;
  move.from = found->element ? 0 : arguments.from;
  move.size = arguments.count * std::max(1u, found->element);
  move.stream = arguments.stream;
  if (!move.stream && found->per_thread) move.stream = CU_STREAM_PER_THREAD;
  CUcontext context = nullptr;
  if (!move.size || driver().cuCtxGetCurrent_(&context) != CUDA_SUCCESS || !context) return;
  bool to_gpu = false, from_gpu = false;
  {
    Lock lock(tool_.mutex);
    if (!tool_.recording() || tool_.gpu_over || broken_) return;
    const auto device = tool_.devices.find(context);
    const auto own = [&](const Piece* piece) {
      constexpr uint32_t kElsewhere =
          kMemoryHostPinned | kMemoryHostMapped | kMemoryManaged | kMemoryPeer;
      return piece && !(piece->flags & kElsewhere) && device != tool_.devices.end() &&
             piece->device == device->second;
    };
    to_gpu = own(tool_.pieces->find(move.to));
    from_gpu = move.from && own(tool_.pieces->find(move.from));
  }
  const bool to_host = from_gpu && !to_gpu && move.to && on_host(move.to);
  if ((!to_gpu && !to_host) || busy_.exchange(true)) return;
  const bool within =
      from_gpu && to_gpu && whole(move.from, move.size) && whole(move.to, move.size);
  move.ours = true;
  move.owner = this;
  const uint64_t since = now_ns();
  const Relaxed relaxed;
  Device& own = device(context);
  const bool done = runs(move.stream) &&
                    (within    ? compare_on_gpu(own, move.stream, move.from, move.to)
                     : to_host ? fetch_before(own, move.stream)
                               : copy_before(own, move.stream));
  if (done) move.before = within ? Move::compared : to_host ? Move::fetched : Move::copied;
  move.context = context;
  Lock lock(tool_.mutex);
  if (done) tool_.collection.add(since);
}

bool Copies::works(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return true;
  Lock lock(tool_.mutex);
  tool_.note_once(what, 1, std::string("copies and fills are compared the slow way: ") + what +
                               " failed with error " + std::to_string(static_cast<int>(result)));
  return false;
}

Copies::Device& Copies::device(CUcontext context) {
  Lock lock(tool_.mutex);
  return devices_[context];
}

bool Copies::compares(Device& device) {
  if (device.found) return true;
  void* memory = nullptr;
  if (works(comparing_kernel("at_equal", device.compare), "loading the kernel that compares") &&
      works(driver().cuMemAllocHost_(&memory, kMostBlocks * sizeof(Found)), kPageLocked)) {
    device.found = static_cast<Found*>(memory);
    return true;
  }
  Lock lock(tool_.mutex);
  broken_ = true;
  return false;
}

// Memory for a copy of a destination; it grows, and is kept.
bool Copies::room(Device& device, uint64_t size) {
  if (size <= device.capacity) return true;
  size_t free = 0, all = 0;
  if (size > kMostCopy || driver().cuMemGetInfo_(&free, &all) != CUDA_SUCCESS ||
      size > (free + device.capacity) / kShare) {
    return false;
  }
  const uint64_t had = device.capacity, wanted = std::max(size, kLeastCopy);
  if (device.copy) driver().cuMemFree_(device.copy);
  device.copy = device.capacity = 0;
  if (works(driver().cuMemAlloc_(&device.copy, wanted), "taking memory of the GPU")) {
    device.capacity = wanted;
  }
  Lock lock(tool_.mutex);
  tool_.took(static_cast<int64_t>(device.capacity - had), 0);
  return device.capacity != 0;
}

uint8_t* Copies::keep(Device& device, void* stage) {
  Lock lock(tool_.mutex);
  tool_.took(0, 2 * kPiece);
  return device.stage = static_cast<uint8_t*>(stage);
}

bool Copies::copy_before(Device& device, CUstream stream) {
  if (!compares(device) || move.to % 8 != 0 || !room(device, move.size)) return false;
  const CUdeviceptr copy = move.kept = device.copy;
  return works(driver().cuMemcpyDtoDAsync_(copy, move.to, move.size, stream), "copying on the GPU");
}

// What lies at `comes` against what lies at `held`, in the order of the stream; it is waited for.
bool Copies::compare_on_gpu(Device& device, CUstream stream, uint64_t comes, uint64_t held) {
  if (!compares(device) || comes % 8 != 0 || held % 8 != 0) return false;
  Found* found = device.found;
  void* arguments[] = {&comes, &held, &move.size, &found};
  const unsigned blocks =
      static_cast<unsigned>(std::min<uint64_t>(move.size / 8 / kThreads + 1, kMostBlocks));
  if (!works(driver().cuLaunchKernel_(device.compare, blocks, 1, 1, kThreads, 1, 1, 0, stream,
                                      arguments, nullptr), "comparing memory") ||
      !works(driver().cuStreamSynchronize_(stream), "waiting for a stream")) {
    return false;
  }
  for (unsigned i = 0; i < blocks; ++i) {
    move.found.bytes += found[i].unchanged;
    move.found.zeros &= found[i].others == 0;
  }
  return true;
}

// While a piece is compared, the next one comes.
bool Copies::fetch_before(Device& device, CUstream stream) {
  void* memory = nullptr;
  uint8_t* room = device.stage;
  if (!room && works(driver().cuMemAllocHost_(&memory, 2 * kPiece), kPageLocked)) {
    room = keep(device, memory);
  }
  const auto fetch = [&](uint64_t at) {
    return works(driver().cuMemcpyDtoHAsync_(room + at / kPiece % 2 * kPiece, move.from + at,
                                             std::min(kPiece, move.size - at), stream),
                 "fetching from the GPU");
  };
  if (!room || !fetch(0)) return false;
  for (uint64_t at = 0; at < move.size; at += kPiece) {
    if (!works(driver().cuStreamSynchronize_(stream), "waiting for a stream") ||
        (at + kPiece < move.size && !fetch(at + kPiece))) {
      return false;
    }
    const Equal one = equal_to_programs(room + at / kPiece % 2 * kPiece,
                                        reinterpret_cast<const uint8_t*>(move.to + at),
                                        std::min(kPiece, move.size - at));
    move.found.bytes += one.bytes;
    move.found.zeros &= one.zeros;
  }
  return true;
}

void Copies::end(bool succeeded) {
  if (!move.ours || move.owner != this) return;
  const bool waits = move.reported != Move::none;  // for us to write its event
  bool good = waits && succeeded;
  if (good && move.before == Move::copied) {
    const uint64_t since = now_ns();
    const Relaxed relaxed;
    good = compare_on_gpu(device(move.context), move.stream, move.to, move.kept);
    if (good) move.before = Move::compared;
    Lock lock(tool_.mutex);
    if (good) tool_.collection.add(since);
  }
  {
    Lock lock(tool_.mutex);
    if (good) {
      tell(move.size, move.found.bytes, move.found.zeros);
      ++(move.before == Move::fetched ? by_bus_ : by_gpu_);
    }
    if (move.reported == Move::copy) copied(move.copy_data);
    if (move.reported == Move::fill) was_set(move.fill_data);
  }
  release();
}

void Copies::release() {
  if (move.ours && move.owner == this) {
    if (move.before == Move::copied) {  // and nothing waited: the driver refused the move, say
      const Relaxed relaxed;
      driver().cuStreamSynchronize_(move.stream);
    }
    busy_ = false;
  }
  move.ours = false;
}

void Copies::tell(uint64_t size, uint64_t unchanged, bool zeros) {
  event::Compared event{};
  event.size = size;
  event.unchanged = unchanged;
  event.zeros = zeros;
  tool_.log.add(event);
}

void Copies::forget(CUcontext context) {
  const auto found = devices_.find(context);
  if (found == devices_.end()) return;
  Device& device = found->second;
  tool_.took(-static_cast<int64_t>(device.capacity),
             device.stage ? -static_cast<int64_t>(2 * kPiece) : 0);
  device = Device{};
}

void Copies::write_last() {
  tool_.fact("compared_by", "gpu " + std::to_string(by_gpu_) + ", bus " + std::to_string(by_bus_) +
                                ", sanitizer " + std::to_string(by_sanitizer_));
}

namespace {

// For the Sanitizer's functions, within its callback: bytes of a range on the host or the GPU, piece by piece.
class Side {
 public:
  Side(uint64_t address, bool on_gpu, Sanitizer_StreamHandle stream)
      : address_(address), on_gpu_(on_gpu), stream_(stream) {}
  const uint8_t* read(uint8_t* room, uint64_t at, uint64_t size, SanitizerResult& result) const {
    if (!on_gpu_) return reinterpret_cast<const uint8_t*>(address_ + at);
    result = tool->api.MemcpyDeviceToHost(room, reinterpret_cast<void*>(address_ + at), size, stream_);
    return room;
  }

 private:
  uint64_t address_;
  bool on_gpu_;
  Sanitizer_StreamHandle stream_;
};

}  // namespace

template <class Get>
void Copies::compare_now(Lock& lock, uint64_t size, CUcontext context, Get get) {
  if (!tool_.recording() || tool_.gpu_over || !size) return;
  const uint64_t since = now_ns();
  const bool staged = move.ours || !busy_.exchange(true);  // else this thread takes memory of its own
  Device& device = devices_[context];
  uint8_t* room = staged ? device.stage : nullptr;
  Equal found;
  const SanitizerResult result = unlocked(lock, [&] {
    std::vector<uint8_t> own;
    void* memory = nullptr;
    if (staged && !room && tool_.api.AllocHost(context, &memory, 2 * kPiece) == SANITIZER_SUCCESS) {
      room = keep(device, memory);
    }
    if (!room) {
      own.resize(2 * std::min(size, kPiece));
      room = own.data();
    }
    SanitizerResult result = SANITIZER_SUCCESS;
    for (uint64_t at = 0; at < size; at += kPiece) {
      const uint64_t part = std::min(kPiece, size - at);
      const auto [comes, held] = get(room, room + part, at, part, result);
      if (result != SANITIZER_SUCCESS) return result;
      const Equal one = equal_bytes(comes, held, part);
      found.bytes += one.bytes;
      found.zeros &= one.zeros;
    }
    return result;
  });
  if (staged && !move.ours) busy_ = false;
  tool_.collection.add(since);
  if (result != SANITIZER_SUCCESS) {
    return tool_.note_once("compare", 2, "copies or fills were not compared: fetching what their "
                                         "destination holds failed with " + tool_.api.words(result));
  }
  ++by_sanitizer_;
  tell(size, found.bytes, found.zeros);
}

bool Copies::made(Lock& lock, const Sanitizer_MemcpyData& data) {
  const bool from_host = data.direction == SANITIZER_MEMCPY_DIRECTION_HOST_TO_DEVICE;
  const bool to_host = data.direction == SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_HOST;
  const bool on_gpu = data.direction == SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_DEVICE;
  if (!from_host && !to_host && !on_gpu) return false;
  if (data.height > 1 && (data.srcPitch != data.width || data.dstPitch != data.width)) {
    return not_in_one_piece();
  }
  if (move.ours && move.before && move.to == data.dstAddress && move.size == data.size) {
    move.reported = Move::copy;
    move.copy_data = data;
    return true;
  }
  const auto own = [&](Sanitizer_StreamHandle side) { return side ? side : data.hApiStream; };
  const Side from(data.srcAddress, !from_host, own(data.hSrcStream));
  const Side to(data.dstAddress, !to_host, own(data.hDstStream));
  compare_now(lock, data.size, from_host ? data.dstContext : data.srcContext,
              [&](uint8_t* one, uint8_t* other, uint64_t at, uint64_t part, SanitizerResult& result) {
                const uint8_t* const comes = from.read(one, at, part, result);
                const bool good = result == SANITIZER_SUCCESS;
                return std::make_pair(comes, good ? to.read(other, at, part, result) : nullptr);
              });
  return false;
}

bool Copies::made(Lock& lock, const Sanitizer_MemsetData& data) {
  const uint64_t row = data.width * data.elementSize, rows = std::max<uint64_t>(data.height, 1);
  const uint64_t size = row * rows;
  if (rows > 1 && data.pitch != row) return not_in_one_piece();
  if (data.elementSize - 1 > 3) return false;
  if (move.ours && move.before == Move::copied && move.to == data.address && move.size == size) {
    move.reported = Move::fill;
    move.fill_data = data;
    return true;
  }
  std::vector<uint8_t> bytes(std::min(kPiece, size));  // the element's, again and again
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(data.value >> 8 * (i % data.elementSize));
  }
  const Side to(data.address, true, data.hStream);
  compare_now(lock, size, data.context,
              [&](uint8_t* room, uint8_t*, uint64_t at, uint64_t part, SanitizerResult& result) {
                return std::make_pair<const uint8_t*, const uint8_t*>(
                    bytes.data(), to.read(room, at, part, result));
              });
  return false;
}

}  // namespace accel_trace
