// Mode copies: no kernel is patched. Before a copy or fill its destination is fetched, and compared
// with what comes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "callbacks.h"

namespace accel_trace {
namespace {

constexpr uint64_t kPiece = 4 << 20;  // bytes that are compared at once

// Bytes of a range on the host or the GPU, piece by piece.
class Side {
 public:
  Side(uint64_t address, bool on_gpu, Sanitizer_StreamHandle stream)
      : address_(address), on_gpu_(on_gpu), stream_(stream) {}
  const uint8_t* read(uint64_t at, uint64_t size, SanitizerResult& result) {
    if (!on_gpu_) return reinterpret_cast<const uint8_t*>(address_ + at);
    piece_.resize(size);
    result = tool->api.MemcpyDeviceToHost(piece_.data(), reinterpret_cast<void*>(address_ + at),
                                          size, stream_);
    return piece_.data();
  }

 private:
  uint64_t address_;
  bool on_gpu_;
  Sanitizer_StreamHandle stream_;
  std::vector<uint8_t> piece_;
};

// An element's bytes again and again.
class Repeated {
 public:
  Repeated(uint32_t value, uint32_t element, uint64_t size) : bytes_(std::min(kPiece, size)) {
    for (uint64_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<uint8_t>(value >> 8 * (i % element));
    }
  }
  const uint8_t* read(uint64_t, uint64_t, SanitizerResult&) { return bytes_.data(); }

 private:
  std::vector<uint8_t> bytes_;
};

uint64_t equal_bytes(const uint8_t* a, const uint8_t* b, uint64_t size) {
  constexpr uint64_t kMost = 0x7f7f7f7f7f7f7f7full;
  uint64_t count = 0, i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t left, right;
    memcpy(&left, a + i, 8);
    memcpy(&right, b + i, 8);
    const uint64_t other = left ^ right;  // below: the top bit of each byte that is zero
    count += __builtin_popcountll(~(((other & kMost) + kMost) | other | kMost));
  }
  for (; i < size; ++i) count += a[i] == b[i];
  return count;
}

bool all_zero(const uint8_t* bytes, uint64_t size) {
  return size == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0);
}

template <class From>
void compare(Lock& lock, From& from, Side& to, uint64_t size) {
  if (!tool->recording() || tool->gpu_over || !size) return;
  event::Compared event{};
  event.size = size;
  event.zeros = 1;
  const uint64_t since = now_ns();
  const SanitizerResult result = unlocked(lock, [&] {
    SanitizerResult result = SANITIZER_SUCCESS;
    for (uint64_t at = 0; at < size && result == SANITIZER_SUCCESS; at += kPiece) {
      const uint64_t part = std::min(kPiece, size - at);
      const uint8_t* const comes = from.read(at, part, result);
      if (result != SANITIZER_SUCCESS) break;
      const uint8_t* const held = to.read(at, part, result);
      if (result != SANITIZER_SUCCESS) break;
      event.unchanged += equal_bytes(comes, held, part);
      event.zeros &= all_zero(comes, part);
    }
    return result;
  });
  tool->collection.add(since);
  if (result == SANITIZER_SUCCESS) return tool->log.add(event);
  tool->note_once("compare", 2, "copies or fills were not compared: fetching what their destination "
                                "holds failed with " + tool->api.words(result));
}

void not_in_one_piece() {
  tool->note_once("pitched", 2, "copies or fills with a pitch were not compared");
}

}  // namespace

void compare(Lock& lock, const Sanitizer_MemcpyData& data) {
  const bool from_host = data.direction == SANITIZER_MEMCPY_DIRECTION_HOST_TO_DEVICE;
  const bool to_host = data.direction == SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_HOST;
  const bool on_gpu = data.direction == SANITIZER_MEMCPY_DIRECTION_DEVICE_TO_DEVICE;
  if (!from_host && !to_host && !on_gpu) return;
  if (data.height > 1 && (data.srcPitch != data.width || data.dstPitch != data.width)) {
    return not_in_one_piece();
  }
  const auto own = [&](Sanitizer_StreamHandle side) { return side ? side : data.hApiStream; };
  Side from(data.srcAddress, !from_host, own(data.hSrcStream));
  Side to(data.dstAddress, !to_host, own(data.hDstStream));
  compare(lock, from, to, data.size);
}

void compare(Lock& lock, const Sanitizer_MemsetData& data) {
  const uint64_t row = data.width * data.elementSize, rows = std::max<uint64_t>(data.height, 1);
  if (rows > 1 && data.pitch != row) return not_in_one_piece();
  if (data.elementSize - 1 > 3) return;
  Repeated from(data.value, data.elementSize, row * rows);
  Side to(data.address, true, data.hStream);
  compare(lock, from, to, row * rows);
}

}  // namespace accel_trace
