// How a patch reads the state of its launch.
#pragma once

#include "layout.h"

namespace accel_trace {

AT_DEVICE const State* state_of(void* userdata) {
  return global(static_cast<const State*>(userdata));
}
AT_DEVICE const Table& table_of(void* userdata) { return state_of(userdata)->table; }

// The table's first words, loaded at once: a patch's own cost is the loads that wait for each other.
// Where registers are short, the table itself does it with fewer.
struct Head {
  const Table* table;
  uint64_t base;
  const uint32_t* high;
  const uint32_t* leaves;
  void* data;
  AT_BOTH_MEMBER const Seldom& seldom() const { return table->rest; }
};

AT_DEVICE Head head_of(void* userdata) {
  Head head;
  head.table = &table_of(userdata);
  load_fixed(&head.table->base, head.base, head.high);
  load_fixed(&head.table->leaves, head.leaves, head.data);
  return head;
}

}  // namespace accel_trace
