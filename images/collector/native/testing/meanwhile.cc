// What another thread does while the program or the tool is in the middle of something (driver.h).
#include <unistd.h>

#include <atomic>
#include <memory>

#include "machine.h"

namespace synthetic {

void meanwhile(const std::string& place, std::function<void()> work) {
  const std::lock_guard<std::recursive_mutex> guard(machine().mutex);
  machine().meanwhile[place] = std::move(work);
}

void reach(const std::string& place) {
  Machine& m = machine();
  std::unique_lock<std::recursive_mutex> lock(m.mutex);
  const auto found = m.meanwhile.find(place);
  if (found == m.meanwhile.end()) return;
  const auto over = std::make_shared<std::atomic<bool>>(false);
  m.others.emplace_back([over, work = std::move(found->second)] {
    work();
    *over = true;
  });
  m.meanwhile.erase(found);
  lock.unlock();
  for (int i = 0; i < 5000 && !*over; ++i) usleep(1000);
}

void join() {
  for (std::thread& thread : machine().others) thread.join();
  machine().others.clear();
}

}  // namespace synthetic
