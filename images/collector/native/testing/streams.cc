// The synthetic driver's streams: lists of work that run when somebody waits (driver.h).
#include <utility>

#include "machine.h"

namespace synthetic {

std::vector<Stream*> streams_of(const Context* context) {
  std::vector<Stream*> found;
  const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  for (const auto& [number, stream] : machine().streams) {
    if (!context || stream->context == context) found.push_back(stream.get());
  }
  return found;
}

void Stream::run_one() {
  std::function<void()> work;
  {
    std::lock_guard<std::mutex> guard(list);
    if (queue.empty()) return;
    work = std::move(queue.front());
    queue.pop_front();
  }
  working = true;
  work();
  working = false;
}

void Stream::run_all() {
  std::lock_guard<std::recursive_mutex> guard(running);
  while (true) {
    {
      std::lock_guard<std::mutex> other(list);
      if (queue.empty()) return;
    }
    run_one();
  }
}

void Stream::others_run() {
  for (Stream* other : streams_of(nullptr)) {
    const std::unique_lock<std::recursive_mutex> own(other->running, std::try_to_lock);
    if (own && !other->working) other->run_all();  // else it runs
  }
}

void Stream::push(std::function<void()> work) {
  std::lock_guard<std::mutex> guard(list);
  queue.push_back(std::move(work));
}

void Stream::end() {
  const std::lock_guard<std::recursive_mutex> guard(running);
  const std::lock_guard<std::mutex> other(list);
  queue.clear();
  gone = true;
}

}  // namespace synthetic
