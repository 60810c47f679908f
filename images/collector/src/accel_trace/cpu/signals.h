// Handlers of SIGSEGV and SIGTRAP in front of the program's own.
#pragma once

#include <signal.h>

namespace accel_trace_cpu {

using Handler = void (*)(int number, siginfo_t* info, void* context);

void take_signals(Handler fault, Handler trap);  // once; later calls change nothing
void leave_signals();                            // the program's handlers are installed again
// Calls the program's own handler as the kernel would have, or lets the program end.
void pass_on(int number, siginfo_t* info, void* context);

}  // namespace accel_trace_cpu
