"""The hooks on an allocator that nobody listens to for a while, over a stand-in for PyTorch's.

PyTorch's real CUDA allocator is driven in test_torch_allocator.py, where a PyTorch with CUDA is.
Here a small one with its rules takes its place, so that what is read from the snapshot is tested
anywhere; another thread allocates while the snapshot is taken.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from torch_support import COMPILER

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.handlers import torch_native  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
]

# What the hooks take of PyTorch's header.
_HEADER = r"""
#pragma once
#include <cstdint>
#include <functional>
#include <vector>
namespace c10::cuda::CUDACachingAllocator {
struct TraceEntry {
  enum Action { ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP,
                SEGMENT_UNMAP, SNAPSHOT, OOM };
  Action action_;
  int8_t device_;
  size_t addr_;
  void* stream_;
  size_t size_;
};
struct BlockInfo { size_t size = 0, requested_size = 0; bool allocated = false, active = false; };
struct SegmentInfo {
  int8_t device = 0;
  size_t address = 0, total_size = 0;
  void* stream = nullptr;
  bool is_expandable = false;
  std::vector<BlockInfo> blocks;
};
struct SnapshotInfo { std::vector<SegmentInfo> segments; };
struct Allocator { bool initialized() { return true; } };
Allocator* get();
SnapshotInfo snapshot();
void attachAllocatorTraceTracker(std::function<void(const TraceEntry&)> tracker);
}
"""

_DRIVE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
namespace allocator = c10::cuda::CUDACachingAllocator;
using allocator::TraceEntry;
struct Block { size_t size; bool taken; };
struct Segment { size_t size; bool small; std::map<size_t, Block> blocks; };
static std::recursive_mutex lock;
static std::map<size_t, Segment> segments;
static std::function<void(const TraceEntry&)> tracker;
static size_t next = 0x700000000000, active = 0;
static std::atomic<bool> in_snapshot{false};
static std::function<void()> meanwhile;
static bool refuses = false;
static void tell(TraceEntry::Action action, size_t address, size_t size) {
  if (tracker) tracker({action, 0, address, nullptr, size});
}
static size_t take(size_t asked) {
  std::lock_guard<std::recursive_mutex> held(lock);
  const size_t size = (asked + 511) / 512 * 512, mib = 1 << 20;
  const bool small = size <= mib;
  for (int attempt = 0;; ++attempt) {
    for (auto& [start, segment] : segments) {
      if (segment.small != small) continue;
      for (auto& [address, block] : segment.blocks) {
        if (block.taken || block.size < size) continue;
        const size_t rest = block.size - size;
        if (small ? rest >= 512 : rest > mib) {
          segment.blocks[address + size] = {rest, false};
          block.size = size;
        }
        block.taken = true;
        active += block.size;
        tell(TraceEntry::ALLOC, address, asked);
        return address;
      }
    }
    const size_t step = 2 * mib, steps = (size + step - 1) / step * step;
    const size_t whole = small ? step : size < 10 * mib ? 10 * step : steps;
    segments[next] = {whole, small, {{next, {whole, false}}}};
    tell(TraceEntry::SEGMENT_ALLOC, next, whole);
    next += whole + 4096;
  }
}
static void give(size_t address) {
  std::lock_guard<std::recursive_mutex> held(lock);
  auto& blocks = std::prev(segments.upper_bound(address))->second.blocks;
  auto at = blocks.find(address);
  tell(TraceEntry::FREE_REQUESTED, address, at->second.size);
  tell(TraceEntry::FREE_COMPLETED, address, at->second.size);
  active -= at->second.size;
  at->second.taken = false;
  if (auto after = std::next(at); after != blocks.end() && !after->second.taken) {
    at->second.size += after->second.size;
    blocks.erase(after);
  }
  if (at != blocks.begin() && !std::prev(at)->second.taken) {
    std::prev(at)->second.size += at->second.size;
    blocks.erase(at);
  }
}
static void empty_cache() {
  std::lock_guard<std::recursive_mutex> held(lock);
  for (auto at = segments.begin(); at != segments.end();) {
    const bool unused = at->second.blocks.size() == 1 && !at->second.blocks.begin()->second.taken;
    if (unused) tell(TraceEntry::SEGMENT_FREE, at->first, at->second.size);
    at = unused ? segments.erase(at) : std::next(at);
  }
}
namespace c10::cuda::CUDACachingAllocator {
Allocator* get() { static Allocator one; return &one; }
SnapshotInfo snapshot() {
  SnapshotInfo out;
  if (refuses) throw std::runtime_error("no snapshot");
  if (meanwhile) meanwhile();  // before it, and so in it
  {
    std::lock_guard<std::recursive_mutex> held(lock);
    for (auto& [start, segment] : segments) {
      SegmentInfo info;
      info.address = start;
      info.total_size = segment.size;
      for (auto& [address, block] : segment.blocks) {
        info.blocks.push_back({block.size, block.size, block.taken, block.taken});
      }
      out.segments.push_back(info);
    }
    tell(TraceEntry::SNAPSHOT, 0, active);  // as PyTorch's does, with the lock held
  }
  if (meanwhile) meanwhile();  // and after it
  return out;
}
void attachAllocatorTraceTracker(std::function<void(const TraceEntry&)> given) { tracker = given; }
}
static std::map<uint64_t, uint64_t> live;
static void (*follow)(int) = nullptr;
extern "C" {
void accel_trace_tensor(int alloc, uint64_t address, uint64_t size, uint64_t, uint64_t, int,
                        uint64_t) {
  if (alloc) live[address] = size;
  else live.erase(address);
}
void accel_trace_set_follow_callback(void (*call)(int)) { follow = call; }
int accel_trace_torch_allocator();
int accel_trace_torch_totals(int, uint64_t*);
}
static bool agrees() {
  std::lock_guard<std::recursive_mutex> held(lock);
  std::map<uint64_t, uint64_t> own;
  size_t reserved = 0;
  for (auto& [start, segment] : segments) {
    reserved += segment.size;
    for (auto& [address, block] : segment.blocks) {
      if (block.taken) own[address] = block.size;
    }
  }
  uint64_t seen[6];
  if (accel_trace_torch_totals(0, seen)) return false;
  return own == live && seen[2] == active && seen[3] == reserved && seen[4] == 0;
}
int main(int, char** words) {
  std::mt19937 chance(std::atoi(words[1]));
  std::vector<size_t> held;
  const auto change = [&] {
    if (!held.empty() && chance() % 2) {
      std::swap(held[chance() % held.size()], held.back());
      give(held.back());
      held.pop_back();
    } else {
      const size_t most[] = {3000, 1 << 20, 9 << 20, 40 << 20};
      held.push_back(take(1 + chance() % most[chance() % 4]));
    }
    if (chance() % 300 == 0) empty_cache();
  };
  for (int i = 0; i < 50; ++i) change();
  std::printf("attached %d\n", accel_trace_torch_allocator());
  int wrong = 0, told = 0;
  for (int round = 0; round < 200; ++round) {
    wrong += !agrees();
    follow(0);
    const auto before = live;
    for (int i = 0; i < 100; ++i) change();
    told += before != live;
    if (round % 2) {  // others change it while the snapshot is taken
      meanwhile = [&] {
        std::thread([&] { for (int i = 0; i < 20; ++i) change(); }).join();
      };
    }
    follow(1);
    meanwhile = nullptr;
    wrong += !agrees();
    for (int i = 0; i < 50; ++i) {
      change();
      wrong += !agrees();
    }
  }
  std::printf("wrong %d, told meanwhile %d\n", wrong, told);
  refuses = true;
  for (int way = 0; way < 2; ++way) {
    uint64_t seen[6];
    follow(0);
    if (way) follow(1);
    const int said = accel_trace_torch_totals(0, seen);
    const size_t address = take(40 << 20);
    std::printf("refused: totals %d, told of what comes %d\n", said, (int)live.count(address));
  }
}
"""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("follow")
    header = folder / "include" / "c10" / "cuda" / "CUDACachingAllocator.h"
    header.parent.mkdir(parents=True)
    header.write_text(_HEADER)
    (folder / "drive.cc").write_text(_DRIVE)
    found = torch_native.describe(torch)
    libraries = found.folder / "lib"
    subprocess.run(
        [str(COMPILER), "-std=c++17", "-O1", "-rdynamic", "-pthread",
         f"-D_GLIBCXX_USE_CXX11_ABI={int(found.cxx11_abi)}", f"-I{folder / 'include'}",
         "-isystem", str(found.folder / "include"), str(torch_native.SOURCE),
         str(folder / "drive.cc"), f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ldl",
         f"-Wl,-rpath,{libraries}", "-o", str(folder / "drive")],
        check=True, timeout=280,
    )  # fmt: skip
    return folder / "drive"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_changed_meanwhile_is_told_at_once(seed: int, drive: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("ACCEL_TRACE")}
    said = subprocess.run(
        [str(drive), str(seed)], env=env, capture_output=True, text=True, timeout=120, check=True
    ).stdout
    refused = "refused: totals 0, told of what comes 1\n"
    assert said == "attached 0\nwrong 0, told meanwhile 0\n" + 2 * refused
