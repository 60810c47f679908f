#include "equal.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

namespace accel_trace {
namespace {

constexpr uint64_t kPart = 256 << 10;   // bytes that a thread takes at once
constexpr uint64_t kShared = 1 << 20;   // what is smaller one thread does
constexpr unsigned kMostHelpers = 3;

typedef uint8_t Bytes __attribute__((vector_size(16)));

Equal equal_alone(const uint8_t* first, const uint8_t* second, uint64_t size) {
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

struct Work {
  const uint8_t* first;
  const uint8_t* second;
  uint64_t size;
  std::atomic<uint64_t> next{0}, left, bytes{0};
  std::atomic<bool> zeros{true};

  void help() {
    for (;;) {
      const uint64_t at = next.fetch_add(kPart);
      if (at >= size) return;
      const uint64_t part = std::min(kPart, size - at);
      const Equal one = equal_alone(first + at, second + at, part);
      bytes += one.bytes;
      if (!one.zeros) zeros = false;
      left -= part;  // last: then the result may be read
    }
  }
};

// Threads that wait for work until the process ends. They are nobody's: none is joined.
class Helpers {
 public:
  Helpers() : process_(getpid()) {
    const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
    // The target's signals are not for these threads. Faults at its memory are: a handler may let us in.
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
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

  Equal share(const uint8_t* first, const uint8_t* second, uint64_t size) {
    const auto work = std::make_shared<Work>();
    work->first = first;
    work->second = second;
    work->size = size;
    work->left = size;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      work_ = work;
      ++number_;
    }
    wake_.notify_all();
    work->help();
    while (work->left) std::this_thread::yield();  // parts that a helper is in the middle of
    Equal out;
    out.bytes = work->bytes;
    out.zeros = work->zeros;
    return out;
  }

 private:
  void wait() {
    uint64_t done = 0;
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait(lock, [&] { return number_ != done; });
      done = number_;
      const std::shared_ptr<Work> work = work_;
      lock.unlock();
      work->help();
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

Equal equal_bytes(const uint8_t* first, const uint8_t* second, uint64_t size) {
  if (size < kShared) return equal_alone(first, second, size);
  return helpers().share(first, second, size);
}

}  // namespace accel_trace
