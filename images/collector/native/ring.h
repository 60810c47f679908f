// The ring of mode trace, the side of the GPU. Reserving a record takes one of `room`; whoever
// finds none adds what the consumer has freed since, and waits or drops. A record is published by
// its sequence number, after its contents. `room` never exceeds what is free, so that a reserved
// place has always been consumed before.
#pragma once

#include "layout.h"

namespace accel_trace {

constexpr uint64_t kNoRecord = ~0ull;

AT_DEVICE void refresh_room(RingControl* ring) {
  const uint64_t tail = load(ring->tail);
  const uint64_t seen = atomic_max(&ring->tail_seen, tail);
  if (tail > seen) atomic_add(reinterpret_cast<uint64_t*>(&ring->room), tail - seen);
}

AT_DEVICE bool take_room(RingControl* ring) {
  uint64_t* room = reinterpret_cast<uint64_t*>(&ring->room);
  if (static_cast<int64_t>(atomic_add(room, ~0ull)) > 0) return true;
  atomic_add(room, 1);
  return false;
}

// The number of a record that may be written, or kNoRecord; for one lane of a warp.
AT_DEVICE uint64_t reserve_record(RingControl* ring, uint32_t accesses) {
  if (load(&ring->dead) == 0) {
    if (take_room(ring)) return atomic_add(&ring->head, 1);
    uint64_t start = clock_ns();
    uint64_t tail = load(ring->tail);
    do {
      refresh_room(ring);
      if (take_room(ring)) return atomic_add(&ring->head, 1);
      if (ring->limit_ns == 0) break;
      pause();
      const uint64_t moved = load(ring->tail);
      if (moved != tail) {
        tail = moved;
        start = clock_ns();
      } else if (clock_ns() - start > ring->limit_ns) {
        store(&ring->dead, static_cast<uint64_t>(1));  // nobody reads: the GPU must not hang
      }
    } while (load(&ring->dead) == 0);
  }
  atomic_add(&ring->dropped, accesses);
  return kNoRecord;
}

AT_DEVICE void write_record(const State* state, uint64_t address, uint32_t size, uint32_t flags,
                            uint32_t mask) {
  RingControl* ring = state->ring;
  const uint32_t leader = lanes::first(mask);
  const uint32_t lane = lanes::own();
  uint64_t number = 0;
  if (lane == leader) number = reserve_record(ring, lanes::count(mask));
  number = lanes::take(mask, number, leader);
  if (number == kNoRecord) return;
  Record* record = ring->records + (number & (ring->capacity - 1));
  record->address[lane] = address;
  if (lane == leader) {
    record->mask = mask;
    record->size = size;
    record->flags = flags;
    record->row = state->row;
  }
  fence_system();
  lanes::meet(mask);
  if (lane == leader) store(&record->sequence, number + 1);
}

}  // namespace accel_trace
