// The log of one process: frames in a buffer, a file made at the first event that opens it, and a
// status file beside it that can still be written when the disk is full.
// Not safe for threads by itself: the tool's one mutex guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "events.h"

namespace accel_trace {

uint64_t now_ns();  // the monotonic clock

// Writes all of it; returns how much there was room for, with errno set when that is not all.
size_t write_all(int file, const char* data, size_t size);

// `trace-<pid>.status`: 4 KiB of JSON, mapped, its blocks reserved when it is made.
class Status {
 public:
  ~Status() { unmap(); }
  bool make(const std::string& path);
  void write(const char* state, const std::string& why, uint64_t dropped_events,
             uint64_t dropped_accesses);
  void unmap();
  bool made() const { return text_ != nullptr; }

 private:
  static constexpr size_t kSize = 4096;
  char* text_ = nullptr;
};

class Log {
 public:
  enum class State { idle, open, closed, gave_up };

  void prepare(std::string folder) { folder_ = std::move(folder); }

  // Adds an event. Events that do not open the log wait in memory until one does.
  template <class Event>
  void add(const Event& event, bool opens = true) {
    put(Event::kind, &event, sizeof event, opens);
  }

  Text text(std::string_view value);  // the number of a string; 0 for the empty one
  void flush();                       // writes what is buffered, if the log is open
  void settle();                      // the same, unless that was done just now
  void close();                       // the End event, and state `closed`
  void give_up(const std::string& why);
  void forget();  // in the child of a fork: nothing of the parent's log is touched again

  State state() const { return state_; }
  bool writable() const { return state_ == State::idle || state_ == State::open; }
  uint64_t events() const { return clock_; }  // that were added so far
  void count_dropped_accesses(uint64_t total);

 private:
  void put(uint16_t kind, const void* payload, size_t bytes, bool opens);
  void frame(uint16_t kind, const void* payload, size_t bytes, uint64_t ns);
  bool open();
  void stop_writing(const std::string& why, size_t written);
  void say();

  std::string folder_;
  std::string path_;
  State state_ = State::idle;
  Status status_;
  std::string why_;
  int file_ = -1;
  uint64_t offset_ = 0;  // bytes of whole frames in the file
  uint64_t clock_ = 0;
  uint64_t frames_ = 0;
  uint64_t flushed_ns_ = 0;
  uint64_t dropped_events_ = 0;
  uint64_t dropped_accesses_ = 0;
  std::vector<char> buffer_;
  std::deque<std::string> strings_;
  std::unordered_map<std::string_view, Text> numbers_;
};

}  // namespace accel_trace
