"""The probe: its verdicts from logs, and its calls of the driver against a driver of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from accel_trace import probe
from accel_trace.events import Counts, Module, Note
from accel_trace.session import Session
from collector_logs import launch, session, write
from native_support import need_tools

# Answers like libcuda.so.1 as far as the probe asks; it reads the kernel's arguments and adds.
_DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static const char *mode(void) { const char *m = getenv("FAKE"); return m ? m : ""; }
int cuInit(unsigned flags) { return strcmp(mode(), "no_gpu") ? 0 : 100; }
int cuGetErrorName(int code, const char **text) {
  *text = code == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OTHER";
  return 0;
}
int cuDeviceGet(int *device, int n) { *device = 3 + n; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = (void *)(intptr_t)0x1234;
  return device == 3 ? 0 : 1;
}
int cuCtxSetCurrent(void *context) { return context == (void *)(intptr_t)0x1234 ? 0 : 1; }
int cuModuleLoadData(void **module, const char *text) {
  if (!strcmp(mode(), "old_gpu") && strstr(text, "sm_75")) return 209;
  *module = (void *)(intptr_t)0x5678;
  return strstr(text, ".visible .entry accel_trace_probe") && !strstr(text, "{{") ? 0 : 218;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)(intptr_t)0x9abc;
  return strcmp(name, "accel_trace_probe") ? 500 : 0;
}
int cuMemAlloc_v2(uint64_t *out, size_t size) { *out = (uint64_t)malloc(size); return 0; }
int cuMemFree_v2(uint64_t at) { free((void *)at); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) {
  memcpy((void *)to, from, n);
  return 0;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) {
  memcpy(to, (void *)from, n);
  return 0;
}
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **p, void **extra) {
  if (!strcmp(mode(), "launch_fails")) return 719;
  unsigned n = *(uint32_t *)p[3];
  if ((uint64_t)gx * bx < n || gy != 1 || gz != 1 || by != 1 || bz != 1 || extra) return 1;
  float *a = *(float **)p[0], *b = *(float **)p[1], *c = *(float **)p[2];
  for (unsigned i = 0; i < n; ++i) c[i] = a[i] + b[i] + (strcmp(mode(), "wrong") ? 0 : 1);
  return f == (void *)(intptr_t)0x9abc ? 0 : 400;
}
int cuCtxSynchronize(void) { return 0; }
int cuModuleUnload(void *module) { return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { puts("released"); return 0; }
"""


def counts(reads: int, writes: int) -> Counts:
    zeros = {field.name: 0 for field in fields(Counts) if field.name not in ("clock", "ns")}
    return Counts(**zeros | {"global_reads": reads, "global_writes": writes})


def module(patched: int, result: int) -> Module:
    return Module(module=1, context=1, loaded=1, patched=patched, result=result, size=9)


@pytest.fixture(scope="session")
def driver(tmp_path_factory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a driver for the test")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(_DRIVER)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "driver.c"],
        check=True,
    )
    return folder


@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("", 0, ""),
        ("old_gpu", 0, ""),
        ("no_gpu", 1, "probe: no GPU can be used: cuInit gave 100 (CUDA_ERROR_NO_DEVICE)"),
        ("launch_fails", 1, "probe: the driver failed: cuLaunchKernel gave 719"),
        ("wrong", 1, "probe: a tiny patched kernel gave a wrong result"),
    ],
)
def test_the_child_adds_two_vectors_through_the_driver(driver, mode, code, words):
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace.probe"], capture_output=True, text=True, check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(driver), "FAKE": mode},
    )  # fmt: skip
    assert done.returncode == code
    assert words in done.stderr
    assert (done.stdout == "released\n") == (mode in ("", "old_gpu", "wrong"))


def test_without_a_driver_it_says_so(monkeypatch):
    monkeypatch.setattr(probe, "DRIVER", "libcuda-that-is-not-here.so.1")
    assert probe.driver_problem() == "no NVIDIA driver: libcuda.so.1 is not here"
    assert probe.main() == 1


def test_the_right_counts_are_a_good_verdict(tmp_path):
    events = [module(1, 0), launch(0, "accel_trace_probe"), counts(2000, 1000)]
    assert probe.judge(0, "", session(tmp_path, *events)) == ""


def test_each_way_to_fail_has_its_sentence(tmp_path):
    cases = [
        ([module(0, 7)],
         "the runtime refuses patching (patching a module gave code 7); where the Sanitizer is "
         "newer than the driver, build with an older toolkit, named in ACCEL_TRACE_TOOLKIT"),
        ([Note(level=3, text="already subscribed"), counts(0, 0)],
         "the runtime refuses patching (already subscribed)"),
        ([launch(0, "k")], "the runtime refuses patching (its accesses were not seen)"),
        ([counts(1999, 1000)], "counted wrongly: 1999 reads and 1000 writes instead of 2000 and"),
    ]  # fmt: skip
    for number, (events, words) in enumerate(cases):
        assert words in probe.judge(0, "", session(tmp_path / str(number), *events))
    (tmp_path / "empty").mkdir()
    empty = Session(tmp_path / "empty")
    assert "it wrote no log, so it was not loaded" in probe.judge(0, "", empty)
    assert probe.judge(-11, "", empty) == "a tiny patched program was killed by signal 11"
    assert probe.judge(1, "ld.so: x\nprobe: no GPU can be used: y\n", empty) == (
        "no GPU can be used: y"
    )
    assert probe.judge(3, "", empty) == "a tiny patched program ended with 3"
    cut = write(tmp_path / "cut", 5, [module(1, 0)])
    cut.write_bytes(cut.read_bytes()[:-9])
    assert "is cut" in probe.judge(0, "", Session(tmp_path / "cut"))


def test_a_library_that_does_nothing_is_found_out(tmp_path, driver, monkeypatch):
    shutil.copy(driver / "libcuda.so.1", tmp_path / "libacceltrace.so")  # loads, and traces nothing
    monkeypatch.setenv("LD_LIBRARY_PATH", str(driver))
    assert probe.probe(tmp_path) == (
        "the library does not work in a tiny program: it wrote no log, so it was not loaded"
    )


@pytest.mark.gpu
def test_a_real_kernel_is_patched_and_counted_here():
    from accel_trace.build import ensure_built

    assert probe.driver_problem() == ""
    assert probe.probe(ensure_built()) == ""


@pytest.mark.gpu
def test_a_real_kernel_adds_without_the_library():
    assert probe.add_vectors(333) == [3.0 * number for number in range(333)]


@pytest.mark.parametrize(("version", "target"), probe._TARGETS)
def test_the_kernel_is_valid_ptx(tmp_path, version, target):
    assembler = need_tools().nvcc.parent / "ptxas"
    path = tmp_path / "probe.ptx"
    path.write_text(probe._PTX.format(version=version, target=target))
    subprocess.run([assembler, "-arch=sm_90", path, "-o", tmp_path / "probe.cubin"], check=True)
