"""The fat binary reader, on libraries made here from kernels that NVRTC really compiled."""

from __future__ import annotations

import functools
import struct
import sys

import numpy as np
import pytest
from dlrm_inference.cuda import compressed, cubin

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="the test compiles with NVRTC")

SOURCE = """
extern "C" __global__ void gather(const float* table, const long long* rows, float* out, int n,
                                  long long stride) {
    __shared__ float staged[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) staged[threadIdx.x] = table[rows[i] * stride];
    __syncthreads();
    if (i < n) out[i] = staged[63 - threadIdx.x];
}
template <typename T> __global__ void scale(T* values, T factor) { values[threadIdx.x] *= factor; }
template __global__ void scale<float>(float*, float);
template __global__ void scale<double>(double*, double);
"""


@functools.cache  # two compilations of one source may differ in bytes that do not matter
def compile_cubin(source: str, arch: int, *options: str) -> bytes:
    """Compile CUDA C++ to machine code, without a GPU."""

    def checked(answer):
        code, *values = answer
        assert int(code) == 0, code
        return values[0] if values else None

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"test.cu", 0, [], []))
    flags = [f"-arch=sm_{arch}".encode(), *(o.encode() for o in options)]
    checked(nvrtc.nvrtcCompileProgram(program, len(flags), flags))
    image = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def compress_lz4(plain: bytes) -> bytes:
    """A plain greedy LZ4 block compressor, so that the tests need no package for it."""
    out, seen, start, at = bytearray(), {}, 0, 0

    def length(rest: int) -> bytes:
        return b"\xff" * ((rest - 15) // 255) + bytes([(rest - 15) % 255]) if rest >= 15 else b""

    while at + 12 < len(plain):  # the format wants the last bytes to be literals
        word = plain[at : at + 4]
        back = at - seen.get(word, -70_000)
        seen[word] = at
        if back > 65_535:
            at += 1
            continue
        end = at + 4
        while end < len(plain) - 5 and plain[end] == plain[end - back]:
            end += 1
        literals, match = plain[start:at], end - at - 4
        out.append(min(len(literals), 15) << 4 | min(match, 15))
        out += length(len(literals)) + literals + struct.pack("<H", back) + length(match)
        start = at = end
    literals = plain[start:]
    return bytes(out) + bytes([min(len(literals), 15) << 4]) + length(len(literals)) + literals


def pack_entry(arch: int, image: bytes, how: str = "lz4", kind: int = cubin.KIND_ELF) -> bytes:
    """One fat binary entry, as the CUDA tools lay it out."""
    flags, packed = 0x11, image
    if how == "lz4":
        flags, packed = 0x11 | cubin.FLAG_LZ4, compress_lz4(image)
    elif how == "zstd":
        flags, packed = 0x11 | cubin.FLAG_ZSTD, pytest.importorskip("zstandard").compress(image)
    payload = packed + bytes(-len(packed) % 8)
    sizes = (0, 0) if how == "none" else (len(packed), len(image))
    head = struct.pack("<HHIQI", kind, 0x101, 64, len(payload), sizes[0])
    head += struct.pack("<IHHIIIQQQ", 0, 7, 1, arch, 64, 0, flags, 0, sizes[1])
    assert len(head) == 64
    return head + payload


def build_library(*containers: list[bytes]) -> bytes:
    """A shared library of nothing but fat binaries: each container is a list of entries."""
    fatbin = segment = b""
    for entries in containers:
        body = b"".join(entries)
        fatbin += struct.pack("<IHHQ", cubin.FATBIN_MAGIC, 1, 16, len(body)) + body + bytes(8)
        segment += struct.pack("<IIQQ", cubin.SEGMENT_MAGIC, 1, 0, 0)
    names = b"\0.shstrtab\0.nv_fatbin\0.nvFatBinSegment\0"
    bodies = [(b".shstrtab", names), (b".nv_fatbin", fatbin), (b".nvFatBinSegment", segment)]
    at, data, table = 64, b"", bytes(64)
    for name, body in bodies:
        table += struct.pack(
            "<IIQQQQIIQQ", names.index(name), 1, 0, 0, at + len(data), len(body), 0, 0, 8, 0
        )
        data += body + bytes(-len(body) % 8)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHI", 3, 62, 1)
    header += struct.pack("<QQQIHHHHHH", 0, 0, at + len(data), 0, 64, 0, 0, 64, 4, 1)
    assert len(header) == 64
    return header + data + table


@pytest.fixture(scope="module")
def images() -> dict[int, bytes]:
    return {arch: compile_cubin(SOURCE, arch) for arch in (80, 90)}


def test_every_entry_comes_out_as_it_went_in(images):
    library = build_library(
        [pack_entry(80, images[80], "lz4"), pack_entry(90, images[90], "lz4")],
        [pack_entry(80, b".version 8.0", "none", cubin.KIND_PTX)],
        [pack_entry(80, images[80], "none")],
    )
    assert list(cubin.cubins(library)) == [(80, images[80]), (90, images[90]), (80, images[80])]
    assert list(cubin.cubins(library, frozenset({90}))) == [(90, images[90])]
    assert [e.kind for e in cubin.fatbin_entries(library)] == [2, 2, 1, 2]
    assert cubin.count_segments(library) == 3


def test_zstd_as_newer_tools_use_it(images):
    library = build_library([pack_entry(90, images[90], "zstd")])
    assert list(cubin.cubins(library)) == [(90, images[90])]


def test_a_mapped_file_reads_like_bytes(images, tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(build_library([pack_entry(90, images[90])]))
    with cubin.map_file(path) as data:
        assert list(cubin.cubins(data)) == [(90, images[90])]


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_tell_what_they_need(images, arch):
    kernels = cubin.read_kernels(images[arch])
    assert len(kernels) == 3
    gather = kernels["gather"]
    assert 8 <= gather.registers <= 32
    assert gather.shared_bytes == 256
    assert gather.local_bytes == 0
    layout = [(p.offset, p.size) for p in gather.parameters]
    assert layout == [(0, 8), (8, 8), (16, 8), (24, 4), (32, 8)]
    assert gather.parameter_bytes == 40
    assert cubin.find_kernel(kernels, "scale", "IfE").parameters[1].size == 4
    assert cubin.find_kernel(kernels, "scale", "IdE").parameters[1].size == 8


@pytest.mark.parametrize("arch", [80, 90])
def test_a_register_cap_shows_in_registers_and_local_memory(arch):
    source = """extern "C" __global__ void wide(volatile float* v) {
        float keep[48];
        #pragma unroll
        for (int i = 0; i < 48; ++i) keep[i] = v[i * 32 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 48; ++i) v[i * 32 + threadIdx.x] = keep[(i * 7 + 5) % 48] - 3 * keep[i];
    }"""
    free = cubin.read_kernels(compile_cubin(source, arch))["wide"]
    capped = cubin.read_kernels(compile_cubin(source, arch, "--maxrregcount=32"))["wide"]
    assert free.registers > 48
    assert free.local_bytes == 0
    assert capped.registers <= 32
    assert capped.local_bytes > 0


def test_finding_a_kernel_wants_exactly_one(images):
    kernels = cubin.read_kernels(images[80])
    with pytest.raises(cubin.CubinError, match="2 kernels named scale"):
        cubin.find_kernel(kernels, "scale")
    with pytest.raises(cubin.CubinError, match="no kernel named scaleIxE"):
        cubin.find_kernel(kernels, "scale", "IxE")


PLAIN = [
    b"a",
    b"abcdefgh" * 4000,  # overlapping matches
    b"\0" * 70_000,
    np.random.default_rng(5).integers(0, 256, 20_000, dtype=np.uint8).tobytes(),
    np.random.default_rng(6).integers(0, 3, 20_000, dtype=np.uint8).tobytes(),
]


@pytest.mark.parametrize("plain", PLAIN)
def test_lz4_blocks_come_out_as_they_went_in(plain):
    assert compressed.decode_lz4(compress_lz4(plain), len(plain)) == plain


def test_our_lz4_agrees_with_the_package():
    lz4_block = pytest.importorskip("lz4.block")
    for plain in PLAIN:
        packed = lz4_block.compress(plain, store_size=False)
        assert compressed.decode_lz4(packed, len(plain)) == plain
        assert lz4_block.decompress(compress_lz4(plain), uncompressed_size=len(plain)) == plain


def test_our_lz4_decoder_serves_where_the_package_is_missing(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    library = build_library([pack_entry(90, images[90])])
    assert list(cubin.cubins(library)) == [(90, images[90])]


def test_damage_is_an_error_and_not_nonsense(images):
    packed = compress_lz4(images[80])
    with pytest.raises(cubin.CubinError, match="damaged"):
        compressed.decode_lz4(packed[:-40], len(images[80]) // 2)
    with pytest.raises(cubin.CubinError, match="before its start"):
        compressed.decode_lz4(b"\x10a\x09\x00", 100)
    good = pack_entry(80, images[80])
    bad = good[:64] + bytes(200) + good[264:]
    with pytest.raises(cubin.CubinError, match=r"damaged|gave"):
        list(cubin.cubins(build_library([bad])))
    with pytest.raises(cubin.CubinError, match="not a 64-bit"):
        cubin.read_kernels(b"nothing of the kind")
    with pytest.raises(cubin.CubinError, match="cut short"):
        cubin.read_kernels(images[80][: len(images[80]) // 2])
    library = build_library([good]).replace(b".nv_fatbin\0", b".nv_nobody\0")
    with pytest.raises(cubin.CubinError, match="no section"):
        list(cubin.fatbin_entries(library))
