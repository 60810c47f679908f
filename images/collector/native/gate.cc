#include "gate.h"

#include <chrono>

namespace accel_trace {
namespace {

constexpr auto kPatience = std::chrono::seconds(1);
thread_local uint32_t inside = 0;  // launches that this thread is making
thread_local uint64_t since = 0;   // in this time

}  // namespace

void Gate::enter() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (since != time_) inside = 0;
  if (inside > 0) {
    ++inside;
    return;
  }
  if (closed_) {
    disturbed_ = true;
    changed_.wait(lock, [&] { return !closed_; });
  }
  if (!watched_) return;
  inside = 1;
  since = time_;
  ++launching_;
}

void Gate::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (since != time_) inside = 0;
  if (inside == 0 || --inside > 0) return;
  --launching_;
  changed_.notify_all();
}

void Gate::watch(bool watched) {
  const std::lock_guard<std::mutex> lock(mutex_);
  watched_ = watched;
  ++time_;
  launching_ = 0;
  changed_.notify_all();
}

bool Gate::close() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return !closed_; });
  closed_ = true;
  const uint32_t own = inside && since == time_ ? 1 : 0;
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
