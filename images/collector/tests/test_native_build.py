"""Finding NVIDIA's parts in all the places where they come, and building once."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from accel_trace import build, toolchain
from native_support import need_tools

OLD = """
typedef SanitizerPatchResult (SANITIZERAPI *SanitizerCallbackMemcpyAsync)(void* userdata, \
uint64_t pc, void* src, uint32_t dst, uint32_t accessSize);
"""
NEW = """
  SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED  = 30,
  SANITIZER_INSTRUCTION_TMA_LOAD = 43,
  SANITIZER_MEMORY_DEVICE_FLAG_ATOMIC_WRITE_ONLY = 1 << 8,
typedef SanitizerPatchResult (SANITIZERAPI *SanitizerCallbackMemcpyAsync)(void* userdata, \
uint64_t pc, void* src, uint32_t dst, uint32_t accessSize, uint32_t zFillSize);
typedef SanitizerPatchResult (SANITIZERAPI *SanitizerCallbackBulkCopySharedToGlobal)(void* \
userdata, uint64_t pc, uint64_t dst, uint32_t src, uint32_t maskAndSize, uint32_t hasCpMask);
"""


def touch(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


NVCC = """#!/bin/sh
echo 'Cuda compilation tools, release 13.0, V13.0.88'
[ "$1" = --list-gpu-code ] && printf 'sm_75\\nsm_80\\nsm_90\\nsm_90a\\n'
exit 0
"""


def make_nvcc(home: Path) -> None:
    touch(home / "bin" / "nvcc", NVCC)
    (home / "bin" / "nvcc").chmod(0o755)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing is installed but what the test makes."""
    for name in ("CUDA_HOME", "CUDA_PATH", "ACCEL_TRACE_TOOLKIT", "CXX"):
        monkeypatch.delenv(name, raising=False)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    real = Path.is_file
    monkeypatch.setattr(
        Path, "is_file",
        lambda self: not str(self).startswith("/usr/local/cuda") and real(self),
    )  # fmt: skip
    compiler = tmp_path / "compiler" / "g++"
    touch(compiler, "#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path


LAYOUTS = {
    "wheel 13.0": ("include", "lib"),
    "wheel 13.5": ("compute-sanitizer/include", "compute-sanitizer"),
    "toolkit": ("compute-sanitizer/include", "compute-sanitizer"),
    "old toolkit": ("extras/Sanitizer/include", "extras/Sanitizer"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", ["ACCEL_TRACE_TOOLKIT", "CUDA_HOME", "wheels"])
def test_every_layout_is_found(
    bare: Path, monkeypatch: pytest.MonkeyPatch, layout: str, place: str
) -> None:
    home = bare / "site-packages" / "nvidia" / "cu13" if place == "wheels" else bare / "cuda"
    if place != "wheels":
        monkeypatch.setenv(place, str(home))
    include, library = LAYOUTS[layout]
    make_nvcc(home)
    touch(home / "include" / "cuda.h")
    touch(home / include / "sanitizer.h")
    touch(home / library / "libsanitizer-public.so")
    touch(home / include / "sanitizer_patching.h", NEW)
    tools = toolchain.find_toolchain()
    assert tools.nvcc == home / "bin" / "nvcc"
    assert tools.sanitizer_library == home / library / "libsanitizer-public.so"
    assert (tools.cuda_include, tools.sanitizer_include) == (home / "include", home / include)
    assert tools.nvcc_version == "13.0.88"
    assert all(tools.features().values())
    assert tools.defines() == [f"-D{name}" for name in toolchain.FEATURES]


def test_parts_may_come_from_several_places(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolkit, wheel = bare / "cuda", bare / "site-packages" / "nvidia" / "cu13"
    make_nvcc(toolkit)
    touch(toolkit / "include" / "cuda.h")
    touch(wheel / "include" / "sanitizer.h")
    touch(wheel / "include" / "sanitizer_patching.h", OLD)
    touch(wheel / "lib" / "libsanitizer-public.so")
    monkeypatch.setenv("CUDA_HOME", str(toolkit))
    tools = toolchain.find_toolchain()
    assert tools.nvcc == toolkit / "bin" / "nvcc"
    assert tools.sanitizer_include == wheel / "include"
    assert not any(tools.features().values()), "the older header has none of it"


def test_what_is_missing_is_named_with_what_would_help(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = bare / "cuda"
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(build.BuildError, match=r"nvcc is missing: install .*pip install"):
        toolchain.find_toolchain()
    make_nvcc(home)
    with pytest.raises(build.BuildError, match=r"cuda\.h is missing: .*nvidia-cuda-runtime"):
        toolchain.find_toolchain()
    touch(home / "include" / "cuda.h")
    touch(home / "include" / "sanitizer.h")  # headers without a library are none
    with pytest.raises(build.BuildError, match="pip install nvidia-cuda-sanitizer-api"):
        toolchain.find_toolchain()
    assert build.main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("accel-trace build: the Compute Sanitizer's headers")
    monkeypatch.delenv("CXX")
    with pytest.raises(build.BuildError, match="install g\\+\\+, or set CXX"):
        toolchain.find_toolchain()


def test_architectures(bare: Path) -> None:
    make_nvcc(bare)
    nvcc = bare / "bin" / "nvcc"
    assert toolchain.supported_archs(nvcc) == [75, 80, 90]
    assert build.choose_archs(None, nvcc) == [75, 80, 90], "those that this nvcc knows"
    assert build.choose_archs([90, 80, 90], nvcc) == [80, 90]
    with pytest.raises(build.BuildError, match=r"no code for sm_70; it knows sm_75, sm_80, sm_90"):
        build.choose_archs([70, 80], nvcc)


def test_code_for_each_architecture_and_ptx_of_the_highest(tmp_path: Path) -> None:
    tools = toolchain.Toolchain(Path("nvcc"), "g++", Path("cuda"), tmp_path, Path("lib.so"), "13.0")
    touch(tmp_path / "sanitizer_patching.h", OLD)
    command = build.patch_command(tools, [80, 90], Path("out"))
    assert [word for word in command if word.startswith("-gencode")] == [
        "-gencode=arch=compute_80,code=sm_80", "-gencode=arch=compute_90,code=sm_90",
        "-gencode=arch=compute_90,code=compute_90",
    ]  # fmt: skip
    assert "--compile-as-tools-patch" in command


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    need_tools()
    assert build.main(["--arch", "ninety"]) == 2
    assert "--arch is 'ninety'" in capsys.readouterr().err
    assert build.main(["--arch", "13"]) == 2
    assert "nvcc makes no code for sm_13" in capsys.readouterr().err


def test_a_build_is_made_once_and_again_when_its_parts_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compilers replaced by writers of files: what is tested is when they are called."""
    need_tools()
    calls = []

    def library(tools: toolchain.Toolchain, out: Path, *rest: object) -> None:
        calls.append("library")
        out.write_text("library")

    def patches(tools: toolchain.Toolchain, archs: object, out: Path) -> None:
        calls.append("patches")
        out.write_text("patches")

    monkeypatch.setattr(build, "build_library", library)
    monkeypatch.setattr(build, "build_patches", patches)
    monkeypatch.setattr(build, "build_compare", lambda tools, archs, out: out.write_text("compare"))
    monkeypatch.delenv("ACCEL_TRACE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = build.ensure_built([80])
    assert folder.parent == tmp_path / "cache" / "accel-trace"
    assert sorted(p.name for p in folder.iterdir()) == [
        "build.json", build.COMPARE, build.LIBRARY, build.PATCHES]  # fmt: skip
    facts = json.loads((folder / "build.json").read_text())
    assert facts["archs"] == [80]
    assert set(facts["features"]) == set(toolchain.FEATURES)
    assert build.ensure_built([80]) == folder
    assert calls == ["patches", "library"]
    assert build.ensure_built([80, 90]) != folder
    assert len(calls) == 4
    named = tmp_path / "named"
    assert build.main(["--arch", "8.0", "--out", str(named)]) == 0
    assert (named / build.LIBRARY).exists()
    assert len(calls) == 6
    build.build([90], named)
    assert json.loads((named / "build.json").read_text())["archs"] == [90], "built anew in place"
    build.build([90], named)
    assert len(calls) == 8


def test_what_an_image_brings_compiled_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "build", lambda archs=None, out=None: Path("built"))
    monkeypatch.setenv("ACCEL_TRACE_BUILT", str(tmp_path))
    assert build.ensure_built() == Path("built")  # the folder is empty
    (tmp_path / build.LIBRARY).touch()
    assert build.ensure_built() == tmp_path
    assert build.ensure_built([90]) == Path("built")  # asked for by name
    monkeypatch.delenv("ACCEL_TRACE_BUILT")
    assert build.ensure_built() == Path("built")


def test_a_failed_build_leaves_nothing_that_looks_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_tools()

    def fail(*_: object) -> None:
        raise build.BuildError("the patches do not compile")

    monkeypatch.setattr(build, "build_patches", fail)
    with pytest.raises(build.BuildError, match="do not compile"):
        build.build([80], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    need_tools()
    (tmp_path / "file").touch()
    with pytest.raises(build.BuildError, match="name another with --out"):
        build.build([80], tmp_path / "file" / "out")


def test_compilers_errors_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    tools = toolchain.Toolchain(script, str(script), tmp_path, tmp_path, tmp_path / "l.so", "13.0")
    touch(tmp_path / "sanitizer_patching.h", OLD)
    with pytest.raises(build.BuildError, match="the patches do not compile:\nno such option"):
        build.build_patches(tools, [80], tmp_path / "out")
    with pytest.raises(build.BuildError, match=r"code\.cc does not compile"):
        build.build_library(tools, tmp_path / "out", jobs=1)
    monkeypatch.setenv("ACCEL_TRACE_NATIVE", str(tmp_path))
    with pytest.raises(build.BuildError, match="name their folder in ACCEL_TRACE_NATIVE"):
        build.native_folder()


def test_the_command_line() -> None:
    env = {**os.environ, "PATH": os.environ.get("PATH", "")}
    done = subprocess.run(
        [sys.executable, "-m", "accel_trace.build", "--help"],
        capture_output=True, text=True, env=env, timeout=60, check=True,
    )  # fmt: skip
    assert "--arch" in done.stdout
    assert "--out" in done.stdout


def test_a_machine_without_the_tools_skips_and_ci_fails(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="nvcc is missing"):
        need_tools()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI must have"):
        need_tools()


def test_every_source_is_built_and_none_is_long() -> None:
    folder = build.native_folder()
    assert {path.stem for path in folder.glob("*.cc")} == set(build.SOURCES)
    files = [*folder.glob("*.*"), *(folder / "testing").glob("*.*")]
    assert [p.name for p in files if len(p.read_text().splitlines()) >= 400] == []
