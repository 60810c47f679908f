#include "equal.h"

#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace accel_trace {
namespace {

constexpr uint64_t kPart = 256 << 10;   // bytes that a thread takes at once
constexpr uint64_t kShared = 1 << 20;   // what is smaller one thread does
constexpr unsigned kMostHelpers = 3;

typedef uint8_t Bytes __attribute__((vector_size(16)));

}  // namespace

Equal equal_bytes(const uint8_t* first, const uint8_t* second, uint64_t size) {
  Equal out;
  Bytes any{};
  uint64_t i = 0;
  while (i + sizeof(Bytes) <= size) {
    Bytes equal{};  // a byte counts to 255
    const uint64_t end = std::min(size - sizeof(Bytes) + 1, i + 255 * sizeof(Bytes));
    for (; i < end; i += sizeof(Bytes)) {
      Bytes a, b;
      memcpy(&a, first + i, sizeof a);
      memcpy(&b, second + i, sizeof b);
      equal -= reinterpret_cast<Bytes>(a == b);  // all ones where they are
      any |= a;
    }
    for (size_t lane = 0; lane < sizeof(Bytes); ++lane) out.bytes += equal[lane];
  }
  for (size_t lane = 0; lane < sizeof(Bytes); ++lane) out.zeros &= any[lane] == 0;
  for (; i < size; ++i) {
    out.bytes += first[i] == second[i];
    out.zeros &= first[i] == 0;
  }
  return out;
}

namespace {

struct Work {
  const uint8_t* ours;
  const uint8_t* programs;
  uint64_t size;
  std::atomic<uint64_t> next{0}, left, bytes{0};
  std::atomic<bool> zeros{true};
  std::mutex mutex;
  std::vector<uint64_t> refused;  // parts that the kernel did not read for a helper

  uint64_t part(uint64_t at) const { return std::min(kPart, size - at); }

  void compare(uint64_t at, const uint8_t* with) {
    const Equal one = equal_bytes(ours + at, with, part(at));
    bytes += one.bytes;
    if (!one.zeros) zeros = false;
    left -= part(at);  // last: then the result may be read
  }

  // The kernel reads: a fault would be for the program's handler, which knows its own threads.
  void help(std::vector<uint8_t>& room) {
    for (uint64_t at; (at = next.fetch_add(kPart)) < size;) {
      const iovec to{room.data(), part(at)}, from{const_cast<uint8_t*>(programs) + at, part(at)};
      const ssize_t read = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
      if (read == static_cast<ssize_t>(part(at))) {
        compare(at, room.data());
      } else {
        const std::lock_guard<std::mutex> guard(mutex);
        refused.push_back(at);
      }
    }
  }

  bool take_refused(uint64_t& at) {
    const std::lock_guard<std::mutex> guard(mutex);
    if (refused.empty()) return false;
    at = refused.back();
    refused.pop_back();
    return true;
  }
};

// Threads that wait for work until the process ends. They are nobody's: none is joined.
class Helpers {
 public:
  Helpers() : process_(getpid()) {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    sigset_t all, before;  // the target's signals are not for these threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (unsigned i = 0; i < std::min(cores - 1, kMostHelpers); ++i) {
        std::thread([this] { wait(); }).detach();
      }
    } catch (const std::system_error&) {  // no more threads are allowed: fewer help
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  bool ours() const { return process_ == getpid(); }  // a forked child has no threads

  Equal share(const uint8_t* ours, const uint8_t* programs, uint64_t size) {
    const auto work = std::make_shared<Work>();
    work->ours = ours;
    work->programs = programs;
    work->size = size;
    work->left = size;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      work_ = work;
      ++number_;
    }
    wake_.notify_all();
    uint64_t at;
    while ((at = work->next.fetch_add(kPart)) < size) work->compare(at, programs + at);
    while (work->left) {
      if (work->take_refused(at)) work->compare(at, programs + at);
      else std::this_thread::yield();  // parts that a helper is in the middle of
    }
    Equal out;
    out.bytes = work->bytes;
    out.zeros = work->zeros;
    return out;
  }

 private:
  void wait() {
    uint64_t done = 0;
    std::vector<uint8_t> room(kPart);
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return number_ != done; });
      done = number_;
      const std::shared_ptr<Work> work = work_;
      lock.unlock();
      work->help(room);
    }
  }

  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::shared_ptr<Work> work_;
  uint64_t number_ = 0;
};

Helpers& helpers() {
  static std::atomic<Helpers*> the{nullptr};  // no lock, which a fork could leave taken
  Helpers* found = the;
  if (found && found->ours()) return *found;
  Helpers* const fresh = new Helpers();
  return the.compare_exchange_strong(found, fresh) ? *fresh : *found;
}

}  // namespace

Equal equal_to_programs(const uint8_t* ours, const uint8_t* programs, uint64_t size) {
  if (size < kShared) return equal_bytes(ours, programs, size);
  return helpers().share(ours, programs, size);
}

}  // namespace accel_trace
