#include "options.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#ifndef ACCEL_TRACE_SANITIZER_PATH
#define ACCEL_TRACE_SANITIZER_PATH "libsanitizer-public.so"
#endif

namespace accel_trace {
namespace {

const char* const kModes[] = {"events", "sync", "copies", "empty", "count",
                              "touch",  "hot",  "trace",  "values"};
const char* const kAnalyses[] = {"touch", "count", "hot"};
const char* const kClasses[] = {"global", "shared", "local", "async", "bulk"};

std::string variable(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) out.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

std::string wrong(const char* name, const std::string& value, const std::string& right) {
  return std::string(name) + " is '" + value + "'; it must be " + right;
}

// A whole number of decimal digits; false for anything else.
bool number(const std::string& text, uint64_t& out) {
  if (text.empty() || text.size() > 19) return false;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  out = value;
  return true;
}

template <size_t N>
int index_of(const char* const (&names)[N], const std::string& value) {
  for (size_t i = 0; i < N; ++i) {
    if (value == names[i]) return static_cast<int>(i);
  }
  return -1;
}

template <size_t N>
std::string one_of(const char* const (&names)[N]) {
  std::string out = "one of ";
  for (size_t i = 0; i < N; ++i) out += (i ? ", " : "") + std::string(names[i]);
  return out;
}

uint32_t default_classes(const Options& options) {
  const uint32_t global = kClassGlobal | kClassAsync | kClassBulk;
  const bool counts = options.mode == Mode::count ||
                      (options.mode == Mode::trace && options.analysis == Analysis::count);
  return counts ? global | kClassShared | kClassLocal : global;
}

std::string read_range(const std::string& text, Options& options) {
  const size_t colon = text.find(':');
  const std::string first = text.substr(0, colon);
  const std::string last = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (colon == std::string::npos || (!first.empty() && !number(first, options.first)) ||
      (!last.empty() && !number(last, options.last))) {
    return wrong("ACCEL_TRACE_RANGE", text, "FIRST:LAST, whole numbers, either may be missing");
  }
  return "";
}

// A file that lies beside this library.
std::string beside_library(const char* name) {
  Dl_info info;
  if (!dladdr(reinterpret_cast<void*>(&beside_library), &info) || !info.dli_fname) return name;
  const std::string path = info.dli_fname;
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? name : path.substr(0, slash + 1) + name;
}

std::string read_numbers(Options& options) {
  const struct {
    const char* name;
    uint64_t least;
    uint64_t most;
    uint64_t value;
  } fields[] = {
      {"ACCEL_TRACE_SAMPLE", 1, UINT64_MAX, options.sample},
      {"ACCEL_TRACE_WORKERS", 1, 256, options.workers},
      {"ACCEL_TRACE_BUFFER", 1, 1u << 24, options.buffer},
      {"ACCEL_TRACE_EVERY", 1, UINT64_MAX, options.every},
      {"ACCEL_TRACE_BLOCKS", 1, 1u << 31, options.blocks},
      {"ACCEL_TRACE_CONTEXTS", 1, UINT64_MAX, options.contexts},
      {"ACCEL_TRACE_SNAPSHOT", 0, 1u << 20, options.snapshot},  // MiB
      {"ACCEL_TRACE_WITHIN", 101, 1u << 30, options.within},
  };
  uint64_t values[8];
  for (int i = 0; i < 8; ++i) {
    values[i] = fields[i].value;
    const std::string text = variable(fields[i].name);
    if (!text.empty() && (!number(text, values[i]) || values[i] < fields[i].least ||
                          values[i] > fields[i].most)) {
      return wrong(fields[i].name, text, "a whole number of at least 1, and not so large");
    }
  }
  options.sample = values[0];
  options.workers = static_cast<uint32_t>(values[1]);
  options.every = values[3];
  options.blocks = values[4];
  options.contexts = values[5];
  options.snapshot = values[6] << 20;
  options.within = values[7];
  for (options.buffer = 2; options.buffer < values[2];) options.buffer *= 2;
  return "";
}

}  // namespace

const char* name_of(Mode mode) { return kModes[static_cast<int>(mode)]; }

Analysis Options::reports() const {
  if (mode == Mode::count) return Analysis::count;
  if (mode == Mode::hot) return Analysis::hot;
  return mode == Mode::trace ? analysis : Analysis::touch;
}

std::string read_options(Options& options) {
  options.folder = variable("ACCEL_TRACE_OUT");
  const std::string mode = variable("ACCEL_TRACE_MODE");
  if (!mode.empty()) {
    const int index = index_of(kModes, mode);
    if (index < 0) return wrong("ACCEL_TRACE_MODE", mode, one_of(kModes));
    options.mode = static_cast<Mode>(index);
  }
  const std::string analysis = variable("ACCEL_TRACE_ANALYSIS");
  if (!analysis.empty()) {
    const int index = index_of(kAnalyses, analysis);
    if (index < 0) return wrong("ACCEL_TRACE_ANALYSIS", analysis, one_of(kAnalyses));
    options.analysis = static_cast<Analysis>(index);
  }
  options.classes = default_classes(options);
  const std::string classes = variable("ACCEL_TRACE_CLASSES");
  if (!classes.empty()) {
    options.classes = 0;
    for (const std::string& word : words(classes)) {
      const int index = index_of(kClasses, word);
      if (index < 0) return wrong("ACCEL_TRACE_CLASSES", classes, "words, each " + one_of(kClasses));
      options.classes |= 1u << index;
    }
  }
  const std::string policy = variable("ACCEL_TRACE_POLICY");
  if (!policy.empty() && policy != "wait" && policy != "drop") {
    return wrong("ACCEL_TRACE_POLICY", policy, "wait or drop");
  }
  options.drop = policy == "drop";
  const std::string range = variable("ACCEL_TRACE_RANGE");
  if (!range.empty()) {
    const std::string error = read_range(range, options);
    if (!error.empty()) return error;
  }
  const std::string error = read_numbers(options);
  if (!error.empty()) return error;
  const std::string kernels = variable("ACCEL_TRACE_KERNELS");
  if (!kernels.empty() && !options.kernels.set(kernels)) {
    return wrong("ACCEL_TRACE_KERNELS", kernels, "an ECMAScript regular expression");
  }
  options.region = variable("ACCEL_TRACE_REGION");
  options.watch_all = variable("ACCEL_TRACE_BETWEEN") == "all";
  options.distinct = variable("ACCEL_TRACE_DISTINCT") == "1";
  options.patches = variable("ACCEL_TRACE_PATCHES");
  if (options.patches.empty()) options.patches = beside_library("patches.fatbin");
  options.sanitizer = variable("ACCEL_TRACE_SANITIZER");
  if (options.sanitizer.empty()) options.sanitizer = ACCEL_TRACE_SANITIZER_PATH;
  const std::string handlers = variable("ACCEL_TRACE_HANDLERS");
  if (!handlers.empty()) {
    options.subscribe = false;
    for (const std::string& word : words(handlers)) {
      if (word == "sanitizer") options.subscribe = true;
      if (word == "stacks") options.stacks = true;
    }
  }
  const std::string stack = variable("ACCEL_TRACE_STACK_LAUNCH");
  if (!stack.empty()) {
    options.all_stacks = stack == "all";
    if (!options.all_stacks && !number(stack, options.stack_launch)) {
      return wrong("ACCEL_TRACE_STACK_LAUNCH", stack, "the number of a launch, or all");
    }
    options.stacks = true;
  } else {
    options.stacks = false;  // nothing says which launch
  }
  return "";
}

std::string demangle(const char* name) {
  if (!name) return "";
  if (name[0] != '_' || name[1] != 'Z') return name;
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string out = status == 0 && text ? text : name;
  free(text);
  return out;
}

}  // namespace accel_trace
