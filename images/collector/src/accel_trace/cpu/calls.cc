// Calls of the C library by which the kernel reads or writes a program's memory. Where memory is
// closed they would fail rather than fault, so it is opened for them. Others are not wrapped.
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "record.h"
#include "watch.h"

using namespace accel_trace_cpu;

namespace {

class Reached {
 public:
  Reached(const void* data, size_t size, uint32_t flags, void* caller)
      : count_(open_for(data, size, flags, caller, ranges_)) {}
  ~Reached() {
    if (!count_) return;
    const int before = errno;
    close_after(ranges_, count_);
    errno = before;
  }
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;

 private:
  int ranges_[kOpen], count_;
};

}  // namespace

#define CALLER __builtin_return_address(0)

ACCEL_TRACE_CPU_EXPORT ssize_t write(int file, const void* data, size_t size) {
  if (captured(data, size)) return static_cast<ssize_t>(size);
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const Reached reached(data, size, 1, CALLER);
  return real(file, data, size);
}

ACCEL_TRACE_CPU_EXPORT ssize_t read(int file, void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  const Reached reached(data, size, 2, CALLER);
  return real(file, data, size);
}

ACCEL_TRACE_CPU_EXPORT ssize_t pread(int file, void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread64");
  const Reached reached(data, size, 2, CALLER);
  return real(file, data, size, at);
}
ACCEL_TRACE_CPU_EXPORT ssize_t pread64(int file, void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread64");
  const Reached reached(data, size, 2, CALLER);
  return real(file, data, size, at);
}

ACCEL_TRACE_CPU_EXPORT ssize_t pwrite(int file, const void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite64");
  const Reached reached(data, size, 1, CALLER);
  return real(file, data, size, at);
}
ACCEL_TRACE_CPU_EXPORT ssize_t pwrite64(int file, const void* data, size_t size, off_t at) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite64");
  const Reached reached(data, size, 1, CALLER);
  return real(file, data, size, at);
}

ACCEL_TRACE_CPU_EXPORT ssize_t recv(int socket, void* data, size_t size, int flags) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, int)>("recv");
  const Reached reached(data, size, 2, CALLER);
  return real(socket, data, size, flags);
}

ACCEL_TRACE_CPU_EXPORT ssize_t send(int socket, const void* data, size_t size, int flags) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, int)>("send");
  const Reached reached(data, size, 1, CALLER);
  return real(socket, data, size, flags);
}

ACCEL_TRACE_CPU_EXPORT size_t fread(void* data, size_t one, size_t many, FILE* file) {
  static const auto real = next<size_t (*)(void*, size_t, size_t, FILE*)>("fread");
  const Reached reached(data, one * many, 2, CALLER);
  return real(data, one, many, file);
}

ACCEL_TRACE_CPU_EXPORT size_t fwrite(const void* data, size_t one, size_t many, FILE* file) {
  static const auto real = next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite");
  const Reached reached(data, one * many, 1, CALLER);
  return real(data, one, many, file);
}
