// Threads of a scenario that all do the same at once, each on streams and memory of its own. Contexts
// are 1 and following, one after another for the threads; each has a module of its number.
#pragma once

#include <dlfcn.h>

#include <map>
#include <string>

namespace synthetic {

// What the tool exports, found as its handlers find it; null where the tool is not loaded.
template <class Function>
Function exported(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

using Crowd = void (*)(int threads, int rounds, int contexts);
const std::map<std::string, Crowd>& crowds();  // by the command

}  // namespace synthetic
