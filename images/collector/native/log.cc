#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace accel_trace {
namespace {

constexpr size_t kFlushBytes = 256 * 1024;
constexpr uint64_t kFlushAge = 250'000'000;  // ns: what a killed process may lose at most
constexpr uint64_t kSettleAge = 20'000'000;
constexpr int kNames = 100;  // logs of one process number: exec keeps the number, and opens another

// A signal that a full quota raises must not end the target: it is held back and then taken.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~NoFileSizeSignal() {
    const int error = errno;
    if (!was_pending_) {
      const timespec none{};
      while (sigtimedwait(&set_, nullptr, &none) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }

 private:
  sigset_t set_, before_;
  bool was_pending_ = false;
};

std::string json_text(const std::string& value) {
  std::string out;
  for (const char c : value.substr(0, 2000)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

}  // namespace

size_t write_all(int file, const char* data, size_t size) {
  NoFileSizeSignal guard;
  size_t written = 0;
  while (written < size) {
    const ssize_t count = ::write(file, data + written, size - written);
    if (count > 0) {
      written += static_cast<size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      if (count == 0) errno = ENOSPC;
      break;
    }
  }
  return written;
}

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

bool Status::make(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return false;
  int error;
  {
    NoFileSizeSignal guard;
    error = posix_fallocate(file, 0, kSize);  // without it, a full disk would end the target here
  }
  if (error == 0) {
    void* text = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (text != MAP_FAILED) text_ = static_cast<char*>(text);
  }
  ::close(file);
  return text_ != nullptr;
}

void Status::write(const char* state, const std::string& why, uint64_t dropped_events,
                   uint64_t dropped_accesses) {
  if (!text_) return;
  char line[kSize];
  const int length = snprintf(
      line, sizeof line,
      "{\"state\": \"%s\", \"why\": \"%s\", \"dropped_events\": %llu, \"dropped_accesses\": %llu}",
      state, json_text(why).c_str(), static_cast<unsigned long long>(dropped_events),
      static_cast<unsigned long long>(dropped_accesses));
  memset(line + length, ' ', sizeof line - static_cast<size_t>(length));
  line[kSize - 1] = '\n';
  memcpy(text_, line, kSize);
}

void Status::unmap() {
  if (text_) munmap(text_, kSize);
  text_ = nullptr;
}

Text Log::text(std::string_view value) {
  if (value.empty()) return 0;
  const auto found = numbers_.find(value);
  if (found != numbers_.end()) return found->second;
  const Text number = static_cast<Text>(strings_.size() + 1);
  strings_.emplace_back(value);
  numbers_.emplace(strings_.back(), number);
  if (writable()) {
    std::vector<char> payload(sizeof number + value.size());
    memcpy(payload.data(), &number, sizeof number);
    memcpy(payload.data() + sizeof number, value.data(), value.size());
    frame(kStringKind, payload.data(), payload.size(), now_ns());
  }
  return number;
}

void Log::frame(uint16_t kind, const void* payload, size_t bytes, uint64_t ns) {
  const Frame head{kind, 0, static_cast<uint32_t>(bytes), clock_, ns};
  const size_t at = buffer_.size();
  buffer_.resize(at + sizeof head + bytes);
  memcpy(buffer_.data() + at, &head, sizeof head);
  memcpy(buffer_.data() + at + sizeof head, payload, bytes);
  ++frames_;
}

void Log::put(uint16_t kind, const void* payload, size_t bytes, bool opens) {
  if (!writable()) {
    if (state_ == State::gave_up) {
      ++dropped_events_;
      if ((dropped_events_ & (dropped_events_ - 1)) == 0) say();  // at powers of two, and at the end
    }
    return;
  }
  if (buffer_.capacity() < kFlushBytes) buffer_.reserve(kFlushBytes + 64 * 1024);
  const uint64_t ns = now_ns();
  ++clock_;
  frame(kind, payload, bytes, ns);
  if (state_ == State::idle && (opens || buffer_.size() >= kFlushBytes) && !open()) return;
  if (state_ == State::open &&
      (buffer_.size() >= kFlushBytes || ns - flushed_ns_ >= kFlushAge)) {
    flush();
  }
}

bool Log::open() {
  const std::string stem = folder_ + "/trace-" + std::to_string(getpid());
  for (int i = 1; i < kNames && file_ < 0; ++i) {
    const std::string base = i == 1 ? stem : stem + "." + std::to_string(i);
    path_ = base + ".atl";
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file_ >= 0) {
      ::unlink((base + ".status").c_str());  // of an image that only gave up
      status_.make(base + ".status");
    } else if (errno != EEXIST) {
      break;
    }
  }
  if (file_ < 0) {
    stop_writing(std::string("cannot make ") + path_ + ": " + strerror(errno), 0);
    return false;
  }
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  Header header{};
  memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.size = sizeof header;
  header.pid = static_cast<uint64_t>(getpid());
  header.unix_ns =
      static_cast<uint64_t>(wall.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(wall.tv_nsec);
  header.monotonic_ns = now_ns();
  state_ = State::open;
  flushed_ns_ = header.monotonic_ns;
  say();
  const size_t count =
      write_all(file_, reinterpret_cast<const char*>(&header), sizeof header);
  if (count != sizeof header) {
    stop_writing("cannot write " + path_ + ": " + strerror(errno), 0);
    return false;
  }
  offset_ = count;
  return true;
}

void Log::flush() {
  if (state_ != State::open || buffer_.empty()) return;
  const size_t count = write_all(file_, buffer_.data(), buffer_.size());
  if (count != buffer_.size()) {
    stop_writing("cannot write " + path_ + ": " + strerror(errno), count);
    return;
  }
  offset_ += count;
  buffer_.clear();
  flushed_ns_ = now_ns();
}

void Log::settle() {
  if (state_ == State::open && now_ns() - flushed_ns_ >= kSettleAge) flush();
}

// The file keeps its whole frames; events that did not fit are counted.
void Log::stop_writing(const std::string& why, size_t written) {
  size_t whole = 0;
  for (size_t at = 0; at + sizeof(Frame) <= buffer_.size();) {
    Frame head;
    memcpy(&head, buffer_.data() + at, sizeof head);
    at += sizeof head + head.payload;
    if (at <= written) {
      whole = at;
    } else if (head.kind != kStringKind) {
      ++dropped_events_;
    }
  }
  if (file_ >= 0) {
    // A partial frame at the end is a truncated log, which readers know; so a failure is no harm.
    if (ftruncate(file_, static_cast<off_t>(offset_ + whole)) != 0) errno = 0;
    ::close(file_);
    file_ = -1;
  }
  buffer_.clear();
  buffer_.shrink_to_fit();
  give_up(why);
}

void Log::give_up(const std::string& why) {
  if (state_ == State::open) {
    flush();
    if (state_ == State::gave_up) return;  // the flush failed, and has said why
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }
  state_ = State::gave_up;
  why_ = why;
  if (!status_.made() && !folder_.empty()) {
    status_.make(folder_ + "/trace-" + std::to_string(getpid()) + ".status");
  }
  say();
}

void Log::close() {
  if (state_ == State::open) {
    event::End end{};
    end.frames = frames_;
    ++clock_;
    frame(event::End::kind, &end, sizeof end, now_ns());
    flush();
    if (state_ == State::open) {
      ::close(file_);
      file_ = -1;
      state_ = State::closed;
    }
  } else if (state_ == State::idle) {
    state_ = State::closed;
  }
  say();
}

void Log::forget() {
  if (file_ >= 0) ::close(file_);
  file_ = -1;
  status_.unmap();
  buffer_.clear();
  numbers_.clear();  // before the strings that its keys point to
  strings_.clear();
  state_ = State::idle;
  why_.clear();
  offset_ = clock_ = frames_ = dropped_events_ = dropped_accesses_ = 0;
}

void Log::count_dropped_accesses(uint64_t total) {
  dropped_accesses_ = total;
  say();
}

void Log::say() {
  static const char* const names[] = {"open", "open", "closed", "gave_up"};
  status_.write(names[static_cast<int>(state_)], why_, dropped_events_, dropped_accesses_);
}

}  // namespace accel_trace
