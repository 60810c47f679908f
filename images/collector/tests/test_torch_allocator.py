"""The hooks on PyTorch's real CUDA allocator, over a stand-in for the CUDA runtime: no GPU needed.

Needs a PyTorch that is built with CUDA, and the headers of that CUDA: marked `gpu`, because it is
GPU hosts that have them. The allocator is driven from C++ through allocations, frees, other
streams, an emptied cache and full cards; after every step the hooks' totals must be the
allocator's own.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from torch_support import COMPILER, build_cache

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from accel_trace.builds import BuildError  # noqa: E402
from accel_trace.handlers import torch_native  # noqa: E402
from accel_trace.handlers.compiling import cuda_headers  # noqa: E402

pytestmark = [
    pytest.mark.gpu,  # not for a GPU: a PyTorch that is built with CUDA is found where one is
    pytest.mark.torch,
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.skipif(not torch.version.cuda, reason="needs a PyTorch that is built with CUDA"),
]

# A card of 1 GiB. Addresses come back only to allocations of their size, as from a driver.
_CARD = r"""
#include <cuda_runtime_api.h>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
static std::map<void*, size_t> held;
static std::map<size_t, std::vector<void*>> returned;
static size_t used = 0;
static const size_t total = size_t{1} << 30;
static char* next = reinterpret_cast<char*>(0x700000000000);
extern "C" {
cudaError_t cudaGetDeviceCount(int* n) { *n = 1; return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  std::memset(static_cast<void*>(found), 0, sizeof *found);
  found->totalGlobalMem = total;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** out, size_t size) {
  if (used + size > total) return cudaErrorMemoryAllocation;
  auto& old = returned[size];
  if (old.empty()) {
    *out = next;
    next += size;
  } else {
    *out = old.back();
    old.pop_back();
  }
  used += held[*out] = size;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  const auto it = held.find(memory);
  if (it == held.end()) return cudaSuccess;
  used -= it->second;
  returned[it->second].push_back(memory);
  held.erase(it);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all) {
  *free_bytes = total - used;
  *all = total;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  *low = 0;
  *high = -1;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static size_t number = 4096;
  *stream = reinterpret_cast<cudaStream_t>(number += 16);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = static_cast<cudaEvent_t>(std::malloc(8));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { std::free(event); return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) {
  return std::rand() % 3 ? cudaErrorNotReady : cudaSuccess;  // other streams take their time
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "stand-in"; }
}
"""

_DRIVE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <vector>
namespace allocator = c10::cuda::CUDACachingAllocator;
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*function)(DeviceIndex));
}
using Tell = void (*)(int, uint64_t, uint64_t, uint64_t, uint64_t, int, uint64_t);
static uint64_t told[2];
static std::map<uint64_t, uint64_t> live;  // as it was told
static void (*follow)(int) = nullptr;
#define AT_SEEN extern "C" __attribute__((visibility("default")))
AT_SEEN void accel_trace_tensor(int alloc, uint64_t address, uint64_t size, uint64_t, uint64_t, int,
                                uint64_t) {
  ++told[alloc != 0];
  if (alloc) live[address] = size;
  else live.erase(address);
}
AT_SEEN void accel_trace_set_follow_callback(void (*call)(int)) { follow = call; }
// Whether what was told is what the allocator has.
static bool agrees() {
  std::map<uint64_t, uint64_t> own;
  for (const auto& segment : allocator::snapshot().segments) {
    uint64_t address = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.allocated || block.active) own[address] = block.size;
      address += block.size;
    }
  }
  return own == live;
}
int main(int, char** words) {
  void* hooks = dlopen(words[1], RTLD_NOW);
  if (!hooks) return std::puts(dlerror()), 2;
  const auto attach = (int (*)())dlsym(hooks, "accel_trace_torch_allocator");
  const auto totals = (int (*)(int, uint64_t*))dlsym(hooks, "accel_trace_torch_totals");
  const int early = attach();
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  allocator::init(1);
  std::vector<void*> before;
  if (!std::strcmp(words[3], "before")) {
    for (size_t size : {100, 3 << 20, 11 << 20, 512}) before.push_back(allocator::raw_alloc(size));
    allocator::raw_delete(before[0]);
  }
  const int attached = attach();
  const auto other = c10::cuda::getStreamFromPool(false, 0);
  std::mt19937 chance(std::atoi(words[2]));
  std::vector<c10::DataPtr> held;
  uint64_t seen[6], wrong = 0, full = 0;
  for (int step = 0; step < 20000; ++step) {
    if (!held.empty() && chance() % 2) {
      std::swap(held[chance() % held.size()], held.back());
      held.pop_back();
    } else {
      const size_t most[] = {3000, 1 << 20, 9 << 20, 40 << 20};
      const size_t size = 1 + chance() % most[chance() % 4];
      try {
        auto memory = allocator::get()->allocate(size);
        if (chance() % 10 == 0) allocator::recordStream(memory, other);
        held.push_back(std::move(memory));
      } catch (const std::exception&) {
        ++full;
        for (int i = 0; i < 20 && !held.empty(); ++i) held.pop_back();
      }
    }
    if (chance() % 700 == 0) allocator::emptyCache();
    if (!std::strcmp(words[3], "between")) {  // now and then nobody listens
      const bool quiet = step / 250 % 4 != 0;
      if (step % 250 == 0) follow(!quiet);
      if (step % 250 == 0 && !quiet) wrong += !agrees();
      if (quiet) continue;
    }
    if (totals(0, seen)) continue;
    const auto own = allocator::getDeviceStats(0);
    wrong += seen[2] != (uint64_t)own.active_bytes[0].current ||
             seen[3] != (uint64_t)own.reserved_bytes[0].current || seen[4] != 0;
  }
  const auto own = allocator::getDeviceStats(0);
  std::printf("%d %d %lu %lu %lu %lu %ld %ld %lu %lu\n", early, attached, wrong, full, seen[0],
              seen[1], own.active[0].allocated, own.active[0].freed, told[1], told[0]);
  std::fflush(stdout);
  _exit(0);
}
"""


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The program, the stand-in for the runtime, and the hooks."""
    folder = tmp_path_factory.mktemp("allocator")
    found = torch_native.describe(torch)
    try:
        headers = cuda_headers(found.cuda)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ACCEL_TRACE_CACHE", str(build_cache()))
            hooks = torch_native.build(found)
    except BuildError as error:
        pytest.skip(str(error))
    card, source = folder / "card.cc", folder / "drive.cc"
    card.write_text(_CARD)
    source.write_text(_DRIVE)
    call = [str(COMPILER), "-std=c++17", "-O1"]
    subprocess.run(
        [*call, "-fPIC", "-shared", *headers, str(card), "-o", str(folder / "libcard.so")],
        check=True, timeout=180,
    )  # fmt: skip
    call += [f"-D_GLIBCXX_USE_CXX11_ABI={int(found.cxx11_abi)}", "-rdynamic"]
    call += ["-isystem", str(found.folder / "include"), *headers, str(source)]
    call += [f"-L{found.folder / 'lib'}", "-lc10", "-lc10_cuda", "-ldl"]
    call += ["-Wl,--allow-shlib-undefined", "-o", str(folder / "drive")]
    subprocess.run(call, check=True, timeout=300)
    return folder / "drive", folder / "libcard.so", hooks


def drive(driven: tuple[Path, Path, Path], seed: int, when: str, settings: str = "") -> list[int]:
    """Numbers of one run: both attachments, wrong steps, full cards, then counts of blocks."""
    program, card, hooks = driven
    libraries = [Path(torch.__file__).parent / "lib"]
    libraries += sorted(Path(torch.__file__).parents[1].glob("nvidia/*/lib"))
    env = os.environ | {
        "LD_PRELOAD": str(card),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "PYTORCH_CUDA_ALLOC_CONF": settings,
    }
    said = subprocess.run(
        [str(program), str(hooks), str(seed), when], env=env, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stdout + said.stderr
    return [int(word) for word in said.stdout.split()]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_totals_are_the_allocators_own_after_every_step(
    seed: int, driven: tuple[Path, Path, Path]
) -> None:
    early, attached, wrong, _, allocs, frees, own_allocs, own_frees, begun, ended = drive(
        driven, seed, "after"
    )
    assert (early, attached) == (1, 0)  # before CUDA starts there is nothing to attach to
    assert wrong == 0
    assert (allocs, frees) == (own_allocs, own_frees)
    assert (begun, ended) == (allocs, frees)  # each was told once
    assert allocs > 9000


def test_a_card_that_is_full_changes_nothing(driven: tuple[Path, Path, Path]) -> None:
    _, _, wrong, full, *_ = drive(driven, 2, "after")
    assert full > 0
    assert wrong == 0


def test_blocks_that_were_there_before_are_told_first(driven: tuple[Path, Path, Path]) -> None:
    _, attached, wrong, _, allocs, frees, own_allocs, own_frees, begun, _ = drive(
        driven, 9, "before"
    )
    assert (attached, wrong) == (0, 0)
    assert (allocs, frees) == (own_allocs - 1, own_frees - 1)  # one had come and gone
    assert begun == allocs


@pytest.mark.parametrize("settings", ["", "garbage_collection_threshold:0.5"])
def test_what_changed_while_nobody_listened_is_told(
    settings: str, driven: tuple[Path, Path, Path]
) -> None:
    """Of three steps in four nothing is told but their result, in sizes and in blocks."""
    _, attached, wrong, _, allocs, _, own_allocs, _, begun, _ = drive(
        driven, 4, "between", settings
    )
    assert (attached, wrong) == (0, 0)
    assert allocs == begun < own_allocs * 0.8


def test_a_setting_that_is_not_followed_is_noticed(driven: tuple[Path, Path, Path]) -> None:
    _, _, wrong, *_ = drive(driven, 1, "after", "max_split_size_mb:21")
    assert wrong > 0
