#include "sampler.h"

#include "workspace.h"

namespace accel_trace {

// The second of every N: in the first one, memory and modules have not settled yet.
bool Sampler::wanted(uint64_t iteration) const {
  return !refused_ && iteration % tool_.options.every == 1 % tool_.options.every && affordable();
}

// Whether all iterations, with one more that takes what the last analysed one took, are within what
// they may take: so many times what the others take.
bool Sampler::affordable() const {
  if (!tool_.options.within || !analysed_ || !plain_) return true;
  const double mean = static_cast<double>(plain_ns_) / static_cast<double>(plain_);
  const double count = static_cast<double>(iterations_ + 1);
  const double all = static_cast<double>(analysed_ns_ + last_ns_) +
                     mean * (count - static_cast<double>(analysed_ + 1));
  return 100.0 * all <= static_cast<double>(tool_.options.within) * mean * count;
}

// What is watched of the iteration that begins now. Values are known only where all that writes is.
Watching::Level Sampler::level() const {
  const Options& options = tool_.options;
  const bool needs_all = options.distinct || options.watch_all || options.mode == Mode::values;
  if (needs_all || patches() || wanted(iterations_) || wanted(iterations_ + 1)) {
    return Watching::Level::all;
  }
  return source_ == Source::launches ? Watching::Level::launches : Watching::Level::memory;
}

void Sampler::watch(Lock& lock, Watching::Level level) {
  if (tool_.watching.level() == level) return;
  const bool all = level == Watching::Level::all;
  if (!all) tool_.log.flush();  // nothing may come for a long time
  if (all) gate.watch(true);
  lock.unlock();
  tool_.watching.set(level);
  lock.lock();
  if (!all) gate.watch(false);
}

// From the program's own code alone: what the framework is asked then wants locks of its own.
void Sampler::follow(Lock& lock, bool on) {
  if (on == followed_ || !tool_.follow_callback) return;
  followed_ = on;
  void (*const call)(int) = tool_.follow_callback;
  lock.unlock();
  call(on);
  lock.lock();
}

void Sampler::write(bool began, bool analysed) {
  event::Iteration event{};
  event.iteration = iterations_;
  event.began = began;
  event.analysed = analysed;
  tool_.log.add(event);
}

void Sampler::begin(Lock& lock) {
  began_ = now_ns();
  const bool known = tool_.watching.level() == Watching::Level::all;  // what is under way
  const Watching::Level level = this->level();
  watch(lock, level);
  if (source_ != Source::launches) follow(lock, level == Watching::Level::all);
  const bool wants = known && wanted(iterations_);
  if (wants != on_) turn(lock, wants);
  inside_ = true;
  analysed_ += on_;
  unwatched_ += level != Watching::Level::all;
  write(true, on_);
}

void Sampler::end(Lock& lock) {
  if (!inside_) return;
  inside_ = false;
  write(false, on_);
  const bool was = on_, first = iterations_++ == 0;
  if (on_ && !(source_ != Source::regions && wanted(iterations_))) turn(lock, false);
  const uint64_t took = now_ns() - began_;
  if (was) {
    analysed_ns_ += last_ns_ = took;
  } else if (!first) {
    plain_ns_ += took;
    ++plain_;
  }
}

void Sampler::turn(Lock& lock, bool on) {
  lock.unlock();  // others that launch may want it
  const bool quiet = gate.close();
  lock.lock();
  // Nothing is changed under a launch that takes long: what is on stays on to the next boundary.
  if (on && quiet) {
    patch_all(lock);
    tool_.pieces->resume();
    on_ = true;
  } else if (quiet) {
    tool_.drain_all(lock);
    on_ = false;
    tool_.pieces->pause();
    if (!patches()) unpatch_all(lock);
  }
  gate.open();
  if (gate.disturbed()) refuse();
}

void Sampler::refuse() {
  refused_ = true;
  tool_.note_once("refused", 2,
                  "no more iterations are analysed: a second thread launched kernels where modules "
                  "are patched, at the boundary of iterations; have one thread launch there, or "
                  "leave out --every");
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

void Sampler::launched(Lock& lock, uint64_t what) {
  if (!tool_.options.region.empty() || source_ == Source::steps) return;
  const bool was = repeats_.found();
  due_ |= repeats_.add(what);
  // What was found does not go on: the iteration ends here, and none begins.
  if (was && !repeats_.found()) due_ = true;
  // Nobody tells what is about to be launched. Nothing is patched here: an iteration before a sampled
  // one is watched.
  if (due_ && tool_.watching.level() == Watching::Level::launches) next(lock);
}

void Sampler::about_to_launch(Lock& lock) {
  graph_ends(lock);  // one whose instantiation failed
  if (due_ && source_ != Source::steps) next(lock);
}

// By the sequence of launches an iteration is over.
void Sampler::next(Lock& lock) {
  due_ = false;
  source_ = Source::launches;
  end(lock);
  if (repeats_.found()) {
    begin(lock);
  } else {
    if (on_) turn(lock, false);
    watch(lock, Watching::Level::all);
  }
}

void Sampler::graph_begins(Lock& lock) {
  if (refused_) return;
  instantiating_.insert(std::this_thread::get_id());
  if (on_) return;
  watch(lock, Watching::Level::all);
  lock.unlock();
  const bool quiet = gate.close();
  lock.lock();
  if (quiet) {
    patch_all(lock);
  } else {  // patched later, its kernels would be no code
    instantiating_.erase(std::this_thread::get_id());
    refuse();
  }
  gate.open();
}

void Sampler::graph_ends(Lock& lock) {
  if (!instantiating_.count(std::this_thread::get_id())) return;
  lock.unlock();
  const bool quiet = gate.close();
  lock.lock();
  if (quiet) {  // else before its next launch
    instantiating_.erase(std::this_thread::get_id());
    if (!patches()) unpatch_all(lock);
  }
  gate.open();
}

void Sampler::capture_begins(Lock& lock) { watch(lock, Watching::Level::all); }

void Sampler::write_last() {
  static const char* const names[] = {"none", "regions", "steps", "launches"};
  tool_.fact("iterations", std::to_string(iterations_ + inside_));
  tool_.fact("iterations_analysed", std::to_string(analysed_));
  if (unwatched_) tool_.fact("iterations_unwatched", std::to_string(unwatched_));
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
