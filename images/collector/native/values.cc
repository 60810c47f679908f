#include "values.h"

#include <algorithm>
#include <cstring>

namespace accel_trace {
namespace {

constexpr uint64_t kScale = 768;                 // bytes for each of ACCEL_TRACE_BUFFER
static_assert((kScale << 24) / kUnit < 1ull << 31, "no half of a cursor flows over");
constexpr uint64_t kMostBytes = 3ull << 30;      // of a process
constexpr uint64_t kStage = 16 << 20;
constexpr uint64_t kFirst = 128 << 10;           // bytes of records that are fetched with the head
constexpr uint64_t kMostContents = 1ull << 30;   // bytes of copies that are kept
enum Direction : uint32_t { kToDevice = 2, kToHost = 3 };

}  // namespace

void* Values::bind(Lock& lock, CUcontext context, uint64_t launch, uint64_t grid,
                   Sanitizer_StreamHandle stream) {
  if (failed_) return nullptr;
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
  const uint64_t room = tool_.options.buffer * kScale;
  Buffer made = buffers_[context];
  if (!made.memory) {
    const size_t bytes = sizeof(ValueBuffer) + room;
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
      buffers_[context].busy = false;
      return nullptr;
    }
    made = {static_cast<char*>(memory), static_cast<char*>(stage), true};
    buffers_[context] = made;
    tool_.took(static_cast<int64_t>(bytes), kStage);
  }
  ValueBuffer head{};
  head.full = ~uint64_t{0};
  head.room = room;
  head.end = reinterpret_cast<uint64_t*>(made.memory + sizeof head + room);
  head.launch = static_cast<uint32_t>(launch);
  head.blocks = static_cast<uint32_t>(std::min(tool_.options.blocks, std::max<uint64_t>(grid, 1)));
  head.phase = static_cast<uint32_t>(launch % head.blocks);
  const SanitizerResult result = unlocked(lock, [&] {
    return tool_.api.MemcpyHostToDeviceAsync(made.memory, &head, sizeof head, stream);
  });
  if (result == SANITIZER_SUCCESS) return made.memory;
  buffers_[context].busy = false;
  return nullptr;
}

void Values::cancel(CUcontext context) {
  const auto found = buffers_.find(context);
  if (found != buffers_.end()) found->second.busy = false;
}

// One copy brings a small launch's records, another its payload.
SanitizerResult Values::fetch(const Buffer& buffer, Sanitizer_StreamHandle stream,
                              Fetched& out) const {
  const auto get = [&](char* to, char* from, uint64_t bytes) {
    return bytes ? tool_.api.MemcpyDeviceToHost(to, from, bytes, stream) : SANITIZER_SUCCESS;
  };
  constexpr uint64_t kHead = sizeof(ValueBuffer);
  const uint64_t room = tool_.options.buffer * kScale;
  SanitizerResult result = get(buffer.stage, buffer.memory, kHead + std::min(kFirst, room));
  if (result != SANITIZER_SUCCESS) return result;
  memcpy(&out.head, buffer.stage, kHead);
  const uint64_t cursor = std::min(out.head.cursor, out.head.full);
  out.count = records_of(cursor);
  out.units = units_of(cursor);
  const uint64_t records = out.count * sizeof(WarpAccess), payload = out.units * kUnit;
  uint64_t there = std::min(kFirst, records);
  char* to = buffer.stage + kHead;
  if (kHead + records + payload > kStage) {
    out.own.reset(new char[records + payload]);
    to = out.own.get();
    there = 0;
  }
  out.records = reinterpret_cast<WarpAccess*>(to);
  result = get(to + there, buffer.memory + kHead + there, records - there);
  if (result != SANITIZER_SUCCESS) return result;
  return get(to + records, buffer.memory + kHead + room - payload, payload);
}

// Payload first: who reads a record finds what belongs to it. Returns how many accesses, by lanes.
uint64_t Values::keep(Fetched& got) {
  uint64_t accesses = 0;
  const uint64_t end = units_ + got.units;
  for (uint64_t i = 0; i < got.count; ++i) {
    got.records[i].payload = static_cast<uint32_t>(end - got.records[i].payload);
    accesses += bits_of(got.records[i].lanes);
  }
  const uint64_t records = got.count * sizeof(WarpAccess), payload = got.units * kUnit;
  if (payload) write(payload_, "payload", got.records + got.count, payload);
  if (records) write(records_, "records", got.records, records);
  units_ = end;
  written_ += records + payload;
  return accesses;
}

void Values::collect(Lock& lock, CUcontext context, uint64_t launch,
                     Sanitizer_StreamHandle stream) {
  const auto found = buffers_.find(context);
  if (found == buffers_.end()) return;
  const Buffer buffer = found->second;
  Fetched got;
  const SanitizerResult result = unlocked(lock, [&] { return fetch(buffer, stream, got); });
  const auto again = buffers_.find(context);
  if (again == buffers_.end() || again->second.stage != buffer.stage) return;  // the context ended
  const ValueBuffer& head = got.head;
  if (result != SANITIZER_SUCCESS) {
    tool_.note_once("values fetch", 2, "values were lost: fetching them from the GPU failed with " +
                                           tool_.api.words(result));
  } else if (const uint64_t kept = keep(got); !failed_) {  // else the launch is not known
    event::Recorded event{};
    event.launch = launch;
    event.accesses = kept + head.lost;
    event.kept = kept;
    event.reads = head.copies + head.bulk - head.writes + head.tensor;
    event.writes = head.writes;
    event.blocks = head.blocks;
    tool_.log.add(event);
  }
  lost_ += head.lost;
  copies_ += head.copies;
  bulk_ += head.bulk;
  tensor_ += head.tensor;
  cancel(context);
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
    if (write(contents_, "contents", host, data.size)) kept_ += data.size;
  } else if (host) {
    tool_.note_once("contents", 2,
                    "contents of some copies were not kept: they are pitched, or as much was kept "
                    "as is; what these copies wrote is not known");
  }
  write(ends_, "ends", &kept_, sizeof kept_);
}

void Values::close() {
  for (FILE** file : {&records_, &payload_, &contents_, &ends_}) {
    if (*file) fclose(*file);
    *file = nullptr;
  }
  unseen("values_lost", lost_, "accesses found no room; set ACCEL_TRACE_BUFFER higher");
  unseen("values_async", copies_, "asynchronous copies (cp.async) read values that are not seen");
  unseen("values_bulk", bulk_, "bulk copies moved values that are not seen");
  unseen("values_tensor", tensor_, "copies by tensor map (TMA) moved values that are not seen");
}

void Values::unseen(const char* what, uint64_t count, const char* words) {
  tool_.fact(what, std::to_string(count));
  if (count) tool_.note(2, std::to_string(count) + " " + words);
}

// A file that cannot be written stops the recording, not the program.
bool Values::write(FILE*& file, const char* name, const void* data, size_t bytes) {
  if (failed_) return false;
  if (!file) {
    const std::string path = tool_.options.folder + "/values-" + std::to_string(tool_.process) +
                             "." + name;
    file = fopen(path.c_str(), "wbe");
  }
  if (file && (bytes == 0 || fwrite(data, 1, bytes, file) == bytes) && fflush(file) == 0) {
    return true;
  }
  failed_ = true;
  tool_.note_once("values file", 2, std::string("values are not recorded any more: the file of ") +
                                        name + " cannot be written");
  return false;
}

}  // namespace accel_trace
