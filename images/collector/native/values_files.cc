#include "values_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

namespace accel_trace {
namespace {

// The target's signals are not for a thread that is started while one lives.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

constexpr const char* kNames[] = {"payload", "records", "contents", "ends"};

}  // namespace

void ValueFiles::add(Fetched launch) {
  if (!started_) {
    const NoSignals none;
    std::thread([this] { work(); }).detach();  // until the process ends
    started_ = true;
  }
  waiting_.push_back(std::move(launch));
  ++added_;
  more_.notify_one();
}

bool ValueFiles::writes(const Bytes& part) const {
  const auto meets = [&](const Bytes& other) {
    return part.data < other.data + other.size && other.data < part.data + part.size;
  };
  return std::any_of(waiting_.begin(), waiting_.end(), [&](const Fetched& one) {
    return meets(one.records[0]) || meets(one.records[1]) || meets(one.payload[0]) ||
           meets(one.payload[1]);
  });
}

bool ValueFiles::writes_own() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const Fetched& one) { return one.own != nullptr; });
}

void ValueFiles::settle(Lock& lock) {
  wait(lock, [this, all = added_] { return done_ >= all; });
}

bool ValueFiles::told() { return std::exchange(told_, false); }

void ValueFiles::work() {
  Lock lock(tool_.mutex);
  for (;;) {
    more_.wait(lock, [this] { return !waiting_.empty(); });
    Fetched& launch = waiting_.front();  // stays where it is while others are added
    if (!failed_) {
      lock.unlock();
      const File bad = write(launch);
      lock.lock();
      if (bad != kFiles) fail(bad);
    }
    if (!failed_) {  // else the launch is not known
      tool_.log.add(launch.event);
      told_ = true;
    }
    std::unique_ptr<char[]> own = std::move(launch.own);
    waiting_.pop_front();
    ++done_;
    if (!own) continue;
    lock.unlock();
    own.reset();  // takes a while
    lock.lock();
  }
}

// Payload first: who reads a record finds what belongs to it.
ValueFiles::File ValueFiles::write(Fetched& launch) {
  const uint64_t end = units_ + (launch.payload[0].size + launch.payload[1].size) / kUnit;
  uint64_t kept = 0;  // accesses, by lanes
  for (const Bytes& part : launch.records) {
    auto* const records = reinterpret_cast<WarpAccess*>(part.data);
    for (uint64_t i = 0; i < part.size / sizeof(WarpAccess); ++i) {
      records[i].payload = static_cast<uint32_t>(end - records[i].payload);
      kept += bits_of(records[i].lanes);
    }
  }
  units_ = end;
  launch.event.kept = kept;
  launch.event.accesses += kept;  // to those that were lost
  for (const Bytes& part : launch.payload) {
    if (!put(kPayload, part.data, part.size)) return kPayload;
  }
  for (const Bytes& part : launch.records) {
    if (!put(kRecords, part.data, part.size)) return kRecords;
  }
  return kFiles;
}

bool ValueFiles::put(File file, const void* data, uint64_t bytes) {
  if (bytes == 0) return true;
  int& open_file = files_[file];
  if (open_file < 0) {
    const std::string path = tool_.options.folder + "/values-" + std::to_string(tool_.process) +
                             "." + kNames[file];
    open_file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  }
  return open_file >= 0 && write_all(open_file, static_cast<const char*>(data), bytes) == bytes;
}

bool ValueFiles::put_now(File file, const void* data, uint64_t bytes) {
  if (!failed_ && !put(file, data, bytes)) fail(file);
  return !failed_;
}

// It stops the recording, not the program.
void ValueFiles::fail(File file) {
  failed_ = true;
  tool_.note_once("values file", 2, std::string("values are not recorded any more: the file of ") +
                                        kNames[file] + " cannot be written");
}

}  // namespace accel_trace
