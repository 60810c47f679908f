#include "values.h"

#include <algorithm>
#include <cstring>

namespace accel_trace {
namespace {

constexpr uint64_t kScale = 768;                 // bytes for each of ACCEL_TRACE_BUFFER
static_assert((kScale << 24) / kUnit < 1ull << 31, "no half of a cursor flows over");
constexpr uint64_t kMostBytes = 3ull << 30;      // of a process
constexpr uint64_t kStage = 32 << 20;
constexpr uint64_t kHead = sizeof(ValueBuffer);
// What one copy brings of every launch, around the head: most have no more.
constexpr uint64_t kFirstPayload = 96 << 10, kFirstRecords = 800 * sizeof(WarpAccess);
constexpr uint64_t kMostRest = 15 << 20;  // in the stage; what is larger has memory of its own
static_assert(2 * (kFirstPayload + kHead + kFirstRecords + kMostRest) <= kStage,
              "the rest of a launch does not lie over its beginning");
constexpr uint64_t kMostContents = 1ull << 30;   // bytes of copies that are kept
enum Direction : uint32_t { kToDevice = 2, kToHost = 3 };

}  // namespace

uint64_t Values::room() const { return tool_.options.buffer * kScale; }
uint64_t Values::before() const { return std::min(kFirstPayload, room()); }
uint64_t Values::behind() const { return std::min(kFirstRecords, room()); }

Bytes Values::next(const Buffer& buffer, uint64_t bytes) const {
  return {buffer.stage + (buffer.next + bytes > kStage ? 0 : buffer.next), bytes};
}

bool Values::ended(CUcontext context, const Buffer& buffer) const {
  const auto found = buffers_.find(context);
  return found == buffers_.end() || found->second.stage != buffer.stage || tool_.gpu_over;
}

bool Values::make(Lock& lock, CUcontext context) {
  const size_t bytes = kHead + 2 * room();
  void *memory = nullptr, *stage = nullptr;
  const SanitizerResult result = unlocked(lock, [&] {
    SanitizerResult result = tool_.api.Alloc(context, &memory, bytes);
    if (result != SANITIZER_SUCCESS) return result;
    result = tool_.api.AllocHost(context, &stage, kStage);
    if (result != SANITIZER_SUCCESS) tool_.api.Free(context, memory);
    return result;
  });
  if (result != SANITIZER_SUCCESS) {
    tool_.note_once("values memory", 2, "launches were not analysed: taking memory failed with " +
                                            tool_.api.words(result));
    return false;
  }
  buffers_[context] = {static_cast<char*>(memory), static_cast<char*>(stage), 0, true};
  tool_.took(static_cast<int64_t>(bytes), kStage);
  return true;
}

void* Values::bind(Lock& lock, CUcontext context, uint64_t launch, uint64_t grid,
                   Sanitizer_StreamHandle stream) {
  files_.wait(lock, [&] {
    const Buffer& buffer = buffers_[context];
    return buffer.busy || !buffer.stage ||
           !files_.writes(next(buffer, before() + kHead + behind()));
  });
  if (files_.failed() || tool_.gpu_over) return nullptr;
  if (written_ >= kMostBytes) {
    tool_.note_once("values full", 2,
                    "launches were not analysed: as many values were recorded as are kept; name "
                    "fewer launches by --range, --kernels or --sample");
    return nullptr;
  }
  if (buffers_[context].busy) {
    tool_.note_once("values busy", 2,
                    "launches were not analysed: another thread's launch was being recorded");
    return nullptr;
  }
  buffers_[context].busy = true;  // also while the mutex is released
  if (files_.idle()) buffers_[context].next = 0;  // what the CPU's cache has
  if (!buffers_[context].memory && !make(lock, context)) {
    buffers_[context].busy = false;
    return nullptr;
  }
  char* const there = buffers_[context].memory + room();
  ValueBuffer head{};
  head.full = ~uint64_t{0};
  head.room = room();
  head.end = reinterpret_cast<uint64_t*>(there);
  head.launch = static_cast<uint32_t>(launch);
  head.blocks = static_cast<uint32_t>(std::min(tool_.options.blocks, std::max<uint64_t>(grid, 1)));
  head.phase = static_cast<uint32_t>(launch % head.blocks);
  const SanitizerResult result = unlocked(lock, [&] {
    return tool_.api.MemcpyHostToDeviceAsync(there, &head, kHead, stream);
  });
  if (result == SANITIZER_SUCCESS) return there;
  buffers_[context].busy = false;
  return nullptr;
}

void Values::cancel(CUcontext context) {
  const auto found = buffers_.find(context);
  if (found != buffers_.end()) found->second.busy = false;
}

// Into the stage, whose next bytes bind() waited for. The rest of a large launch comes behind it.
SanitizerResult Values::fetch(Lock& lock, CUcontext context, Sanitizer_StreamHandle stream,
                              ValueBuffer& head, Fetched& out) {
  const auto get = [&](char* to, char* from, uint64_t bytes) {
    return bytes ? tool_.api.MemcpyDeviceToHost(to, from, bytes, stream) : SANITIZER_SUCCESS;
  };
  const Buffer buffer = buffers_[context];
  char* const there = buffer.memory + room();
  const auto take = [&](uint64_t bytes) {
    const Bytes part = next(buffers_[context], bytes);
    buffers_[context].next = static_cast<uint64_t>(part.data - buffer.stage) + bytes;
    return part;
  };
  char* const here = take(before() + kHead + behind()).data + before();
  SanitizerResult result = unlocked(
      lock, [&] { return get(here - before(), there - before(), before() + kHead + behind()); });
  if (result != SANITIZER_SUCCESS || ended(context, buffer)) return result;
  memcpy(&head, here, kHead);
  const uint64_t cursor = std::min(head.cursor, head.full);
  const uint64_t records = records_of(cursor) * sizeof(WarpAccess);
  const uint64_t payload = units_of(cursor) * kUnit;
  const uint64_t more_records = records - std::min(records, behind());
  const uint64_t more_payload = payload - std::min(payload, before());
  Bytes rest{nullptr, more_records + more_payload};
  if (rest.size > kMostRest) {
    files_.wait(lock, [&] { return ended(context, buffer) || !files_.writes_own(); });
    out.own.reset(new char[rest.size]);
    rest.data = out.own.get();
  } else if (rest.size) {
    rest = take(rest.size);
    files_.wait(lock, [&] { return ended(context, buffer) || !files_.writes(rest); });
  }
  if (ended(context, buffer)) return SANITIZER_SUCCESS;
  char* const more = rest.data + more_records;
  if (rest.size) {
    result = unlocked(lock, [&] {
      const SanitizerResult one = get(rest.data, there + kHead + behind(), more_records);
      return one == SANITIZER_SUCCESS ? get(more, there - payload, more_payload) : one;
    });
  }
  out.records[0] = {here + kHead, records - more_records};
  out.records[1] = {rest.data, more_records};
  out.payload[0] = {more, more_payload};
  out.payload[1] = {here - (payload - more_payload), payload - more_payload};
  return result;
}

void Values::collect(Lock& lock, CUcontext context, uint64_t launch,
                     Sanitizer_StreamHandle stream) {
  const auto found = buffers_.find(context);
  if (found == buffers_.end()) return;
  const Buffer buffer = found->second;
  ValueBuffer head{};
  Fetched got;
  const SanitizerResult result = fetch(lock, context, stream, head, got);
  if (ended(context, buffer)) return;
  if (result != SANITIZER_SUCCESS) {
    tool_.note_once("values fetch", 2, "values were lost: fetching them from the GPU failed with " +
                                           tool_.api.words(result));
  } else {
    got.event.launch = launch;
    got.event.accesses = head.lost;  // and those that are kept
    got.event.reads = head.copies + head.bulk - head.writes + head.tensor;
    got.event.writes = head.writes;
    got.event.blocks = head.blocks;
    for (const Bytes& part : got.records) written_ += part.size;
    for (const Bytes& part : got.payload) written_ += part.size;
    files_.add(std::move(got));
  }
  lost_ += head.lost;
  copies_ += head.copies;
  bulk_ += head.bulk;
  tensor_ += head.tensor;
  cancel(context);
}

// What still lies in its page-locked memory is written first.
void Values::forget(Lock& lock, CUcontext context) {
  files_.settle(lock);
  buffers_.erase(context);
}

// Contents of a copy to the GPU, or what the host's buffer holds before it is overwritten. A copy that
// is not in one piece is kept without contents.
void Values::copied(const Sanitizer_MemcpyData& data) {
  const uint32_t direction = static_cast<uint32_t>(data.direction);
  const bool whole = data.width * std::max<uint64_t>(data.height, 1) == 0 ||
                     data.height <= 1 || (data.srcPitch == data.width && data.dstPitch == data.width);
  const void* host = nullptr;
  if (direction == kToDevice) host = reinterpret_cast<const void*>(data.srcAddress);
  if (direction == kToHost) host = reinterpret_cast<const void*>(data.dstAddress);
  if (host && whole && kept_ + data.size <= kMostContents) {
    if (files_.add_contents(host, data.size)) kept_ += data.size;
  } else if (host) {
    tool_.note_once("contents", 2,
                    "contents of some copies were not kept: they are pitched, or as much was kept "
                    "as is; what these copies wrote is not known");
  }
  files_.add_end(kept_);
}

void Values::close() {
  unseen("values_lost", lost_, "accesses found no room; set ACCEL_TRACE_BUFFER higher");
  unseen("values_async", copies_, "asynchronous copies (cp.async) read values that are not seen");
  unseen("values_bulk", bulk_, "bulk copies moved values that are not seen");
  unseen("values_tensor", tensor_, "copies by tensor map (TMA) moved values that are not seen");
}

void Values::unseen(const char* what, uint64_t count, const char* words) {
  tool_.fact(what, std::to_string(count));
  if (count) tool_.note(2, std::to_string(count) + " " + words);
}

}  // namespace accel_trace
