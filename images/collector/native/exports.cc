// What others call: the entry of the injection, the C interface for handlers in Python and C++,
// and the ends of a process that run no destructors.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sampler.h"
#include "tool.h"
#include "values.h"
#include "workspace.h"

#define AT_EXPORT extern "C" __attribute__((visibility("default")))

namespace accel_trace {
namespace {

// Operators of a thread, innermost last. Deeper ones than these are counted and not named.
struct Operators {
  static constexpr uint32_t kDepth = 128;
  Tool* owner;  // a forked child begins anew
  uint32_t depth;
  struct {
    Text name;
    uint64_t index;
  } frames[kDepth];
};
thread_local Operators operators;  // no destructor: operators may end after the thread's own

bool listening() { return tool && tool->active; }

// Calls from a thread that is inside of a callback with the mutex cannot happen: it is released
// before anything foreign is called.
template <class Function>
void with_tool(Function function) {
  if (!listening()) return;
  try {
    Lock lock(tool->mutex);
    function(lock);
  } catch (const std::exception&) {  // the target goes on in any case
  }
}

void operator_starts(const char* name) {
  if (operators.owner != tool) operators = Operators{tool, 0, {}};
  event::OperatorStart event{};
  event.name = tool->log.text(name ? name : "");
  event.index = tool->operators++;
  event.thread = thread_number();
  tool->log.add(event);
  if (operators.depth < Operators::kDepth) {
    operators.frames[operators.depth] = {event.name, event.index};
  }
  ++operators.depth;
}

void operator_ends() {
  if (operators.owner != tool || operators.depth == 0) return;  // it began before we did
  --operators.depth;
  if (operators.depth >= Operators::kDepth) return;
  event::OperatorEnd event{};
  event.name = operators.frames[operators.depth].name;
  event.index = operators.frames[operators.depth].index;
  event.thread = thread_number();
  tool->log.add(event);
}

void region_starts(Lock& lock, const char* name) {
  Region region;
  region.name = name ? name : "";
  region.text = tool->log.text(region.name);
  if (!tool->options.region.empty() && region.name == tool->options.region) {
    if (++tool->wanted_regions == 1 && tool->sampler) tool->sampler->region_begins(lock);
  }
  event::RegionStart event{};
  event.name = region.text;
  tool->log.add(event, false);
  tool->regions.push_back(std::move(region));
}

void region_ends(Lock& lock, const char* name) {
  for (size_t i = tool->regions.size(); i-- > 0;) {
    const Region region = tool->regions[i];
    if (name && region.name != name) continue;
    tool->regions.erase(tool->regions.begin() + static_cast<ptrdiff_t>(i));
    if (!tool->options.region.empty() && region.name == tool->options.region) {
      if (--tool->wanted_regions == 0 && tool->sampler) tool->sampler->region_ends(lock);
    }
    event::RegionEnd event{};
    event.name = region.text;
    tool->log.add(event, false);
    return;
  }
}

}  // namespace

Text operator_of_thread() {
  if (operators.owner != tool || operators.depth == 0) return 0;
  const uint32_t depth = std::min(operators.depth, Operators::kDepth);
  return operators.frames[depth - 1].name;
}

}  // namespace accel_trace

using namespace accel_trace;

AT_EXPORT int InitializeInjection(void) {
  start();
  return 1;
}

AT_EXPORT int accel_trace_ready(void) { return tool && tool->recording(); }

AT_EXPORT void accel_trace_tensor(int alloc, uint64_t address, uint64_t size, uint64_t allocated,
                                  uint64_t reserved, int device, uint64_t stream) {
  with_tool([&](Lock&) {
    const auto fill = [&](auto event) {
      event.address = address;
      event.size = size;
      event.allocated = allocated;
      event.reserved = reserved;
      event.device = static_cast<uint32_t>(device);
      event.stream = stream;
      tool->log.add(event);
    };
    Piece piece;
    piece.address = address;
    piece.size = size;
    piece.device = static_cast<uint32_t>(device);
    if (alloc) {
      tool->pieces->add_tensor(piece);
      fill(event::TensorAlloc{});
    } else {
      if (tool->pieces->remove_tensor(address, piece)) tool->piece_ended();
      fill(event::TensorFree{});
    }
  });
}

AT_EXPORT void accel_trace_operator(int start, const char* name) {
  with_tool([&](Lock&) {
    if (start) {
      operator_starts(name);
    } else {
      operator_ends();
    }
  });
}

AT_EXPORT void accel_trace_region(int start, const char* name) {
  const OwnWork own;  // a sampler patches here
  with_tool([&](Lock& lock) {
    if (start) {
      region_starts(lock, name);
    } else {
      region_ends(lock, name);
    }
  });
}

AT_EXPORT void accel_trace_step(void) {
  if (OwnWork::nested()) return;
  const OwnWork own;
  with_tool([&](Lock& lock) {
    if (tool->sampler) tool->sampler->step(lock);
  });
}

AT_EXPORT void accel_trace_stack(uint64_t launch, const char* text) {
  with_tool([&](Lock&) {
    event::Stack event{};
    event.launch = launch;
    event.text = tool->log.text(text ? text : "");
    tool->log.add(event);
  });
}

AT_EXPORT void accel_trace_note(int level, const char* text) {
  with_tool([&](Lock&) { tool->note(static_cast<uint32_t>(level), text ? text : ""); });
}

AT_EXPORT void accel_trace_fact(const char* name, const char* value) {
  with_tool([&](Lock&) { tool->fact(name ? name : "", value ? value : ""); });
}

AT_EXPORT uint64_t accel_trace_launches(void) {
  uint64_t launches = 0;
  with_tool([&](Lock&) { launches = tool->launches; });
  return launches;
}

AT_EXPORT void accel_trace_flush(void) {
  if (OwnWork::nested()) return;  // inside of a callback: not now
  const OwnWork own;
  with_tool([&](Lock& lock) {
    if (!tool->gpu_over) tool->drain_all(lock);
    tool->values->files().settle(lock);
    tool->log.flush();
  });
}

AT_EXPORT void accel_trace_set_stack_callback(void (*callback)(uint64_t launch)) {
  with_tool([&](Lock&) { tool->stack_callback = callback; });
}

AT_EXPORT void accel_trace_set_follow_callback(void (*callback)(int on)) {
  with_tool([&](Lock&) { tool->follow_callback = callback; });
}

// ---- ends of a process ----------------------------------------------------------------------------

namespace {

__attribute__((constructor)) void library_loaded() { start(); }
__attribute__((destructor)) void library_unloaded() { finish_log(); }

[[noreturn]] void leave(int status) {
  if (tool && tool->active && tool->process == getpid() && !OwnWork::nested()) {
    finish_gpu();
    finish_log();
  }
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

}  // namespace

// Preloaded, these stand before libc's: workers of Python leave by _exit, and a log needs its end.
AT_EXPORT void _exit(int status) { leave(status); }
AT_EXPORT void _Exit(int status) { leave(status); }

AT_EXPORT void abort(void) {
  if (tool && tool->active && tool->process == getpid()) {
    Lock lock(tool->mutex, std::try_to_lock);
    if (lock.owns_lock()) tool->log.flush();  // no end: the log says that the process was cut off
  }
  const auto real = reinterpret_cast<void (*)()>(dlsym(RTLD_NEXT, "abort"));
  if (real) real();
  __builtin_trap();
}
