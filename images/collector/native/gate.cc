#include "gate.h"

#include <chrono>

namespace accel_trace {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);
thread_local uint32_t inside = 0;  // launches that this thread is making

}  // namespace

void Gate::enter() {
  if (inside++ > 0) return;
  std::unique_lock<std::mutex> lock(mutex_);
  if (closed_) {
    disturbed_ = true;
    changed_.wait(lock, [&] { return !closed_; });
  }
  ++launching_;
}

void Gate::leave() {
  if (inside == 0 || --inside > 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  --launching_;
  changed_.notify_all();
}

bool Gate::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return !closed_; });
  closed_ = true;
  const uint32_t own = inside ? 1 : 0;
  if (launching_ == own) return true;
  disturbed_ = true;
  return changed_.wait_for(lock, kPatience, [&] { return launching_ == own; });
}

void Gate::open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = false;
  changed_.notify_all();
}

bool Gate::disturbed() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool was = disturbed_;
  disturbed_ = false;
  return was;
}

}  // namespace accel_trace
