#include "watching.h"

#include <utility>

#include "sanitizer_api.h"

namespace accel_trace {
namespace {

constexpr Sanitizer_CallbackDomain kDomains[] = {
    SANITIZER_CB_DOMAIN_SYNCHRONIZE, SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CB_DOMAIN_MEMCPY,
    SANITIZER_CB_DOMAIN_MEMSET,
};
// One by one: those of instances are never disabled, not for a moment.
constexpr Sanitizer_CallbackId kGraphLaunches[] = {
    SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_END,
    SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, SANITIZER_CBID_GRAPHS_LAUNCH_END,
};

}  // namespace

bool Watching::domain(Sanitizer_CallbackDomain domain, bool on) {
  return api_->EnableDomain(on, handle_, domain) == SANITIZER_SUCCESS;
}

bool Watching::call(Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, bool on) {
  return api_->EnableCallback(on, handle_, domain, id) == SANITIZER_SUCCESS;
}

std::string Watching::begin(const Sanitizer& api, Sanitizer_SubscriberHandle handle,
                            DriverCalls calls, bool ends) {
  api_ = &api;
  handle_ = handle;
  calls_ = std::move(calls);
  SanitizerResult result = api.EnableDomain(1, handle, SANITIZER_CB_DOMAIN_RESOURCE);
  if (result == SANITIZER_SUCCESS) {
    result = api.EnableDomain(1, handle, SANITIZER_CB_DOMAIN_GRAPHS);
  }
  for (const Sanitizer_CallbackDomain domain : kDomains) {
    if (result == SANITIZER_SUCCESS) result = api.EnableDomain(1, handle, domain);
  }
  if (result != SANITIZER_SUCCESS) {
    return "the Compute Sanitizer does not report events: " + api.words(result);
  }
  // Nobody needs it, and it comes with every launch.
  call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_AFTER_SYSCALL_SETUP, false);
  if (!ends) {
    call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, false);
    call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_END, false);
    call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_END, false);
  }
  for (const auto* list : {&calls_.seldom, &calls_.launching}) {
    for (const Sanitizer_CallbackId id : *list) {
      lacks_ |= !call(SANITIZER_CB_DOMAIN_DRIVER_API, id, true);
    }
  }
  return "";
}

void Watching::inherit(const Watching& parent, const Sanitizer& api) {
  api_ = &api;
  handle_ = parent.handle_;
  calls_ = parent.calls_;
  level_ = parent.level();
}

void Watching::set(Level level) {
  const std::lock_guard<std::mutex> guard(changing_);
  if (level == this->level() || !handle_) return;
  const bool all = level == Level::all;
  if (all) level_ = level;  // before the first callback comes
  for (const Sanitizer_CallbackDomain one : kDomains) domain(one, all);
  for (const Sanitizer_CallbackId id : kGraphLaunches) call(SANITIZER_CB_DOMAIN_GRAPHS, id, all);
  if (all) call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_AFTER_SYSCALL_SETUP, false);
  if (level == Level::launches) {
    call(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, true);
    call(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, true);
  }
  for (const Sanitizer_CallbackId id : calls_.launching) {
    call(SANITIZER_CB_DOMAIN_DRIVER_API, id, all);
  }
  level_ = level;
  ++changes_;
}

}  // namespace accel_trace
