// The program keeps its own handlers: what it installs for SIGSEGV and SIGTRAP is kept here and gets
// every signal that is not ours. Where accesses are to be watched neither is ever blocked.
#include "signals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "record.h"
#include "watch.h"

namespace accel_trace_cpu {
namespace {

struct Signals {
  struct sigaction program[2] = {};  // what the program wants for SIGSEGV and SIGTRAP
  Handler ours[2] = {};
  bool installed = false;
};

Signals state;  // all zeros, before any constructor

int act(int number, const struct sigaction* wanted, struct sigaction* old) {
  using Call = int (*)(int, const struct sigaction*, struct sigaction*);
  static const auto real = next<Call>("sigaction");
  return real(number, wanted, old);
}

int which(int number) { return number == SIGSEGV ? 0 : number == SIGTRAP ? 1 : -1; }

void install() {
  for (int number : {SIGSEGV, SIGTRAP}) {
    struct sigaction ours{}, there{};
    ours.sa_sigaction = state.ours[which(number)];
    sigfillset(&ours.sa_mask);
    sigdelset(&ours.sa_mask, SIGSEGV);
    sigdelset(&ours.sa_mask, SIGTRAP);
    struct sigaction& kept = state.program[which(number)];
    if (!state.installed) {
      act(number, nullptr, &there);
      kept = there;
    }
    // A program that handles its own overflow of the stack has a stack for that.
    ours.sa_flags = SA_SIGINFO | (kept.sa_flags & SA_ONSTACK);
    act(number, &ours, nullptr);
  }
  state.installed = true;
}

}  // namespace

// The program's own handler, as the kernel would have called it.
void pass_on(int number, siginfo_t* info, void* data) {
  auto* context = static_cast<ucontext_t*>(data);
  struct sigaction& wanted = state.program[which(number)];
  const struct sigaction handler = wanted;
  if (handler.sa_handler == SIG_DFL || (handler.sa_handler == SIG_IGN && info->si_code > 0)) {
    struct sigaction fatal{};
    fatal.sa_handler = SIG_DFL;
    act(number, &fatal, nullptr);
    // An access is made again, and ends the program as it would have; a trap is not.
    if (info->si_code <= 0 || number == SIGTRAP) {
      syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
    }
    return;
  }
  if (handler.sa_handler == SIG_IGN) return;
  if (handler.sa_flags & SA_RESETHAND) wanted.sa_handler = SIG_DFL;
  uint64_t mask, more;
  memcpy(&mask, &context->uc_sigmask, 8);
  memcpy(&more, &handler.sa_mask, 8);
  mask |= more;
  if (!(handler.sa_flags & SA_NODEFER)) mask |= uint64_t{1} << (number - 1);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, 8);
  if (handler.sa_flags & SA_SIGINFO) handler.sa_sigaction(number, info, data);
  else handler.sa_handler(number);
}

void take_signals(Handler fault, Handler trap) {
  if (state.installed) return;
  state.ours[0] = fault;
  state.ours[1] = trap;
  install();
}

void leave_signals() {
  for (int number : {SIGSEGV, SIGTRAP}) {
    if (state.installed) act(number, &state.program[which(number)], nullptr);
  }
  state.installed = false;
}

}  // namespace accel_trace_cpu

using namespace accel_trace_cpu;

ACCEL_TRACE_CPU_EXPORT int sigaction(int number, const struct sigaction* wanted,
                                     struct sigaction* old) noexcept {
  const int kept = which(number);
  if (kept < 0 || !state.installed) return act(number, wanted, old);
  const Blocked blocked;
  if (old) *old = state.program[kept];
  if (wanted) {
    state.program[kept] = *wanted;
    install();
  }
  return 0;
}

ACCEL_TRACE_CPU_EXPORT sighandler_t signal(int number, sighandler_t handler) noexcept {
  struct sigaction wanted{}, old{};
  wanted.sa_handler = handler;
  wanted.sa_flags = SA_RESTART;
  return sigaction(number, &wanted, &old) ? SIG_ERR : old.sa_handler;
}

// A fault whose signal is blocked ends the program: so also before there is memory to watch.
static int mask_with(int (*real)(int, const sigset_t*, sigset_t*), int how, const sigset_t* set,
                     sigset_t* old) {
  static const bool planned = getenv("ACCEL_TRACE_CPU") != nullptr;
  sigset_t less;
  if (set && (planned || state.installed) && how != SIG_UNBLOCK) {
    less = *set;
    sigdelset(&less, SIGSEGV);
    sigdelset(&less, SIGTRAP);
    set = &less;
  }
  return real(how, set, old);
}

ACCEL_TRACE_CPU_EXPORT int pthread_sigmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  static const auto real = next<int (*)(int, const sigset_t*, sigset_t*)>("pthread_sigmask");
  return mask_with(real, how, set, old);
}

ACCEL_TRACE_CPU_EXPORT int sigprocmask(int how, const sigset_t* set, sigset_t* old) noexcept {
  static const auto real = next<int (*)(int, const sigset_t*, sigset_t*)>("sigprocmask");
  return mask_with(real, how, set, old);
}

