#include "values.h"

#include <algorithm>

namespace accel_trace {
namespace {

constexpr uint64_t kScale = 16;                  // records for each of ACCEL_TRACE_BUFFER
constexpr uint64_t kMostRecords = 1ull << 26;    // of a process: 3 GiB
constexpr uint64_t kMostContents = 1ull << 30;   // bytes of copies that are kept
enum Direction : uint32_t { kToDevice = 2, kToHost = 3 };

}  // namespace

void* Values::bind(Lock& lock, CUcontext context, uint64_t launch, uint64_t grid,
                   Sanitizer_StreamHandle stream) {
  if (failed_) return nullptr;
  if (written_ >= kMostRecords) {
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
  const uint64_t capacity = tool_.options.buffer * kScale;
  const size_t bytes = sizeof(ValueBuffer) + capacity * sizeof(Value);
  void* memory = buffers_[context].memory;
  if (!memory) {
    const SanitizerResult result =
        unlocked(lock, [&] { return tool_.api.Alloc(context, &memory, bytes); });
    if (result != SANITIZER_SUCCESS) {
      tool_.note_once("values memory", 2, "launches were not analysed: taking memory of the GPU "
                                          "failed with " + tool_.api.words(result));
      buffers_[context].busy = false;
      return nullptr;
    }
    buffers_[context].memory = memory;
    tool_.took(static_cast<int64_t>(bytes), 0);
  }
  ValueBuffer head{};
  head.capacity = capacity;
  head.values = reinterpret_cast<Value*>(static_cast<char*>(memory) + sizeof(ValueBuffer));
  head.launch = static_cast<uint32_t>(launch);
  head.blocks = static_cast<uint32_t>(std::min(tool_.options.blocks, std::max<uint64_t>(grid, 1)));
  head.phase = static_cast<uint32_t>(launch % head.blocks);
  const SanitizerResult result = unlocked(lock, [&] {
    return tool_.api.MemcpyHostToDeviceAsync(memory, &head, sizeof head, stream);
  });
  if (result == SANITIZER_SUCCESS) return memory;
  buffers_[context].busy = false;
  return nullptr;
}

void Values::cancel(CUcontext context) {
  const auto found = buffers_.find(context);
  if (found != buffers_.end()) found->second.busy = false;
}

void Values::collect(Lock& lock, CUcontext context, uint64_t launch,
                     Sanitizer_StreamHandle stream) {
  const auto found = buffers_.find(context);
  if (found == buffers_.end()) return;
  void* const memory = found->second.memory;
  ValueBuffer head{};
  SanitizerResult result = unlocked(lock, [&] {
    return tool_.api.MemcpyDeviceToHost(&head, memory, sizeof head, stream);
  });
  const uint64_t count = std::min(head.head, head.capacity);
  if (result == SANITIZER_SUCCESS && count) {
    if (!host_) host_ = std::make_unique<Value[]>(head.capacity);
    Value* const host = host_.get();
    result = unlocked(lock, [&] {
      return tool_.api.MemcpyDeviceToHost(host, head.values, count * sizeof(Value), stream);
    });
    if (result == SANITIZER_SUCCESS) {
      write(records_, "records", host, count * sizeof(Value));
      written_ += count;
    }
  }
  if (result == SANITIZER_SUCCESS && !failed_) {  // without this event the launch is not known
    event::Recorded event{};
    event.launch = launch;
    event.accesses = head.head;
    event.kept = count;
    event.reads = head.copies + head.bulk - head.writes + head.tensor;
    event.writes = head.writes;
    event.blocks = head.blocks;
    tool_.log.add(event);
  }
  if (result != SANITIZER_SUCCESS) {
    tool_.note_once("values fetch", 2, "values were lost: fetching them from the GPU failed with " +
                                           tool_.api.words(result));
  }
  lost_ += head.head - count;
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
  for (FILE** file : {&records_, &contents_, &ends_}) {
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
