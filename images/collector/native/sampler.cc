#include "sampler.h"

#include "workspace.h"

namespace accel_trace {

// The second of every N: in the first one, memory and modules have not settled yet.
bool Sampler::wanted() const {
  return !refused_ && iterations_ % tool_.options.every == 1 % tool_.options.every;
}

void Sampler::write(bool began, bool analysed) {
  event::Iteration event{};
  event.iteration = iterations_;
  event.began = began;
  event.analysed = analysed;
  tool_.log.add(event);
}

void Sampler::begin(Lock& lock) {
  const bool wants = wanted();
  if (wants != on_) turn(lock, wants);
  inside_ = true;
  analysed_ += on_;
  write(true, on_);
}

void Sampler::end(Lock& lock) {
  if (!inside_) return;
  inside_ = false;
  write(false, on_);
  ++iterations_;
  if (on_ && !(source_ != Source::regions && wanted())) turn(lock, false);
}

void Sampler::turn(Lock& lock, bool on) {
  lock.unlock();  // others that launch may want it
  const bool quiet = gate.close();
  lock.lock();
  if (on && quiet) {
    patch_all(lock);
    tool_.pieces->resume();
    on_ = true;
  } else if (!on) {
    tool_.drain_all(lock);
    on_ = false;
    tool_.pieces->pause();
    unpatch_all(lock);
  }
  gate.open();
  if (gate.disturbed() && !refused_) {
    refused_ = true;
    tool_.note(2, "no more iterations are analysed: a second thread launched kernels where modules "
                  "are patched, at the boundary of iterations; have one thread launch there, or "
                  "leave out --every");
  }
}

void Sampler::step(Lock& lock) {
  if (source_ == Source::regions) return;
  if (source_ == Source::launches) end(lock);
  source_ = Source::steps;
  end(lock);
  begin(lock);
}

void Sampler::region_begins(Lock& lock) {
  source_ = Source::regions;
  begin(lock);
}

void Sampler::region_ends(Lock& lock) { end(lock); }

void Sampler::launched(uint64_t what) {
  if (!tool_.options.region.empty() || source_ == Source::steps) return;
  const bool was = repeats_.found();
  due_ |= repeats_.add(what);
  // What was found does not go on: the iteration ends here, and none begins.
  if (was && !repeats_.found()) due_ = true;
}

void Sampler::about_to_launch(Lock& lock) {
  graph_ends(lock);  // one whose instantiation failed
  if (!due_ || source_ == Source::steps) return;
  due_ = false;
  source_ = Source::launches;
  end(lock);
  if (repeats_.found()) {
    begin(lock);
  } else if (on_) {
    turn(lock, false);
  }
}

void Sampler::graph_begins(Lock& lock) {
  if (on_ || for_graph_ || refused_) return;
  lock.unlock();
  gate.close();
  lock.lock();
  for_graph_ = true;
  patch_all(lock);
  gate.open();
}

void Sampler::graph_ends(Lock& lock) {
  if (!for_graph_) return;
  lock.unlock();
  gate.close();
  lock.lock();
  for_graph_ = false;
  if (!on_) unpatch_all(lock);
  gate.open();
}

void Sampler::write_last() {
  static const char* const names[] = {"none", "regions", "steps", "launches"};
  tool_.fact("iterations", std::to_string(iterations_ + inside_));
  tool_.fact("iterations_analysed", std::to_string(analysed_));
  tool_.fact("iterations_by", names[static_cast<int>(source_)]);
  if (source_ == Source::none) {
    tool_.note(2, "no iteration was found in the sequence of launches, so none was analysed: mark them "
                  "with accel_trace.region.step() in the loop, or name a region");
  }
  if (repeats_.lost()) {
    tool_.note(1, "the sequence of launches did not go on as the iterations before it (" +
                      std::to_string(repeats_.lost()) + " times)");
  }
}

}  // namespace accel_trace
