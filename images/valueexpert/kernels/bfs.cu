// Breadth-first search. before: costs are int32, and three arrays of flags are uploaded as zeros.
// after: costs are int8, flags are filled on the device.
#include "mini.h"

template <class T>
KERNEL expand(const int* first, const int* target, const uint8_t* front, uint8_t* next,
              const uint8_t* seen, T* cost, int nodes) {
  const int n = THREAD;
  if (n >= nodes || !LD(front, n)) return;
  const int begin = LD(first, n), end = LD(first, n + 1);
  const int own = LD(cost, n);
  for (int edge = begin; edge < end; ++edge) {
    const int to = LD(target, edge);
    if (!LD(seen, to)) {
      ST(cost, to, static_cast<T>(own + 1));
      ST(next, to, static_cast<uint8_t>(1));
    }
  }
}

KERNEL advance(uint8_t* front, uint8_t* next, uint8_t* seen, int* any, int nodes) {
  const int n = THREAD;
  if (n >= nodes) return;
  const uint8_t now = LD(next, n);
  ST(front, n, now);
  if (now) {
    ST(seen, n, static_cast<uint8_t>(1));
    ST(next, n, static_cast<uint8_t>(0));
    ST(any, 0, 1);
  }
}

template <class T>
Result search(Device& device, int nodes, bool filled) {
  const int degree = 3;
  Host<int> first(nodes + 1), target(nodes * degree);
  for (int n = 0; n <= nodes; ++n) first[n] = n * degree;
  for (int e = 0; e < nodes * degree; ++e) target[e] = static_cast<int>(hash_of(e) % nodes);
  Host<int> wanted(nodes, -1), line(1, 0);
  wanted[0] = 0;
  for (size_t at = 0; at < line.size(); ++at) {
    for (int e = first[line[at]]; e < first[line[at] + 1]; ++e) {
      if (wanted[target[e]] >= 0) continue;
      wanted[target[e]] = wanted[line[at]] + 1;
      line.push_back(target[e]);
    }
  }
  Host<T> cost(nodes, static_cast<T>(-1));
  cost[0] = 0;
  Host<uint8_t> zeros(nodes, 0);
  const uint8_t one = 1;
  int* device_first = device.alloc<int>(first.size(), "first edges");
  int* device_target = device.alloc<int>(target.size(), "targets");
  uint8_t* front = device.alloc<uint8_t>(nodes, "front");
  uint8_t* next = device.alloc<uint8_t>(nodes, "next front");
  uint8_t* seen = device.alloc<uint8_t>(nodes, "seen");
  T* device_cost = device.alloc<T>(nodes, "costs");
  int* any = device.alloc<int>(1, "any");
  device.upload(device_first, first.data(), first.size(), "upload first edges");
  device.upload(device_target, target.data(), target.size(), "upload targets");
  device.upload(device_cost, cost.data(), nodes, "upload costs");
  uint8_t* const flags[] = {front, next, seen};
  const char* const uploads[] = {"upload front", "upload next front", "upload seen"};
  const char* const fills[] = {"clear front", "clear next front", "clear seen"};
  for (int i = 0; i < 3; ++i) {
    if (filled) device.fill(flags[i], 0, nodes, fills[i]);
    else device.upload(flags[i], zeros.data(), nodes, uploads[i]);
  }
  device.upload(front, &one, 1, "mark the source");
  device.upload(seen, &one, 1, "mark the source");
  int more = 1;
  while (more) {
    more = 0;
    device.upload(any, &more, 1, "clear any");
    RUN(device, expand<T>, nodes, 256, device_first, device_target, front, next, seen, device_cost,
        nodes);
    RUN(device, advance, nodes, 256, front, next, seen, any, nodes);
    device.download(&more, any, 1, "download any");
  }
  device.download(cost.data(), device_cost, nodes, "download costs");
  Result result;
  result.take(cost);
  result.compare(cost, wanted);
  return result;
}

Result mini(Device& device, const std::string& variant, int nodes) {
  return variant == "after" ? search<int8_t>(device, nodes, true)
                            : search<int>(device, nodes, false);
}
