"""The torch 2.1.0 kernel: extraction from a wheel, its parameter layout, and launching it."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest
from dlrm_inference.cuda import cubin, stock21, wheel21
from test_cubin import build_library, compile_cubin, pack_entry

# The same function, template arguments and parameters as PyTorch 2.1's, with another body.
SOURCE = """
namespace at { namespace native { namespace {
template <typename scalar_t, typename index_t>
__global__ void EmbeddingBag_updateOutputKernel_sum_mean(
    const index_t* input, const index_t* offsets, const scalar_t* weight, scalar_t* output,
    index_t* offset2bag, long numIndices, long numBags, long featureSize, long weight_stride0,
    long weight_stride1, int mode, index_t* bag_size, const scalar_t* per_sample_weights,
    long per_sample_weights_stride, index_t padding_idx, long numRows) {
  output[threadIdx.x] = weight[input[offsets[threadIdx.x]] * weight_stride0] * mode;
}
} } }
template __global__ void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(
    const long*, const long*, const float*, float*, long*, long, long, long, long, long, int, long*,
    const float*, long, long, long);
template __global__ void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float, int>(
    const int*, const int*, const float*, float*, int*, long, long, long, long, long, int, int*,
    const float*, long, int, long);
"""
OTHER_SIGNATURE = SOURCE.replace(", long numRows", "").replace(
    ", long, long, long)", ", long, long)"
)
OTHER_SIGNATURE = OTHER_SIGNATURE.replace(", long, int, long)", ", long, int)")


def make_wheel(path: Path, source: str = SOURCE, archs=wheel21.ARCHS, version="2.1.0") -> Path:
    """A wheel that holds a real library with really compiled kernels."""
    images = [pack_entry(arch, compile_cubin(source, arch)) for arch in archs]
    unrelated = [pack_entry(90, compile_cubin('extern "C" __global__ void none() {}', 90))]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"torch-{version}.dist-info/METADATA", f"Version: {version}")
        wheel.writestr(wheel21.LIBRARY, build_library(unrelated, images))
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("wheel") / "torch-2.1.0-test.whl")


@pytest.fixture
def extracted(wheel, tmp_path, monkeypatch) -> Path:
    kernels = cubin.read_kernels(compile_cubin(SOURCE, 90))
    ours = cubin.find_kernel(kernels, wheel21.FUNCTION, "IflE").registers
    monkeypatch.setattr(wheel21, "REGISTERS", ours)
    monkeypatch.setattr(wheel21, "ARCHS", (90,))
    monkeypatch.setattr(wheel21, "TEMPLATES", {"int64": "IflE"})
    wheel21.extract(wheel, tmp_path)
    return tmp_path


def test_the_layout_follows_from_the_signature():
    assert wheel21.expected_layout("int64") == tuple(
        (8 * i, 4 if i == 10 else 8) for i in range(16)
    )
    narrow = wheel21.expected_layout("int32")
    assert narrow[14:] == ((112, 4), (120, 8))
    assert narrow[:14] == wheel21.expected_layout("int64")[:14]


@pytest.mark.parametrize("arch", wheel21.ARCHS)
def test_the_layout_is_what_a_compiler_makes_of_that_signature(arch):
    kernels = cubin.read_kernels(compile_cubin(SOURCE, arch))
    for index, template in wheel21.TEMPLATES.items():
        kernel = cubin.find_kernel(kernels, wheel21.FUNCTION, template)
        layout = tuple((p.offset, p.size) for p in kernel.parameters)
        assert layout == wheel21.expected_layout(index)
        assert kernel.parameter_bytes == 128


def test_extraction_keeps_only_what_is_needed(extracted, wheel):
    manifest = json.loads((extracted / "manifest.json").read_text())
    assert manifest["wheel_sha256"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert manifest["launch"] == {"grid": 1024, "block": [32, 8], "shared_bytes": 0}
    image = (extracted / "embedding_bag_sm_90.cubin").read_bytes()
    assert image == compile_cubin(SOURCE, 90)
    assert manifest["cubins"] == {"embedding_bag_sm_90.cubin": hashlib.sha256(image).hexdigest()}
    assert sorted(p.name for p in extracted.iterdir()) == [
        "embedding_bag_sm_90.cubin",
        "manifest.json",
    ]
    (kernel,) = wheel21.read_manifest(extracted)
    assert kernel.arch == 90
    assert kernel.name in cubin.read_kernels(image)


def test_a_wheel_with_other_registers_is_refused(wheel, tmp_path, capsys):
    with pytest.raises(cubin.CubinError, match=r"registers, where torch 2\.1\.0 has 74"):
        wheel21.extract(wheel, tmp_path)
    assert not (tmp_path / "manifest.json").exists()
    assert stock21.main(["extract", str(wheel), str(tmp_path)]) == 1
    assert "pip download" in capsys.readouterr().err


def test_a_wheel_with_other_parameters_is_refused(tmp_path):
    wheel = make_wheel(tmp_path / "torch-2.1.0.whl", OTHER_SIGNATURE)
    with pytest.raises(cubin.CubinError, match="other parameters"):
        wheel21.extract(wheel, tmp_path / "out")


def test_a_wheel_that_lacks_an_architecture_is_refused(tmp_path):
    wheel = make_wheel(tmp_path / "torch-2.1.0.whl", archs=(80, 86))
    with pytest.raises(cubin.CubinError, match=r"no EmbeddingBag_.* for sm_90"):
        wheel21.extract(wheel, tmp_path / "out")


def test_another_version_and_no_wheel_at_all_are_refused(tmp_path, capsys):
    wheel = make_wheel(tmp_path / "torch-2.2.0.whl", version="2.2.0")
    with pytest.raises(cubin.CubinError, match=r"not a wheel of torch 2\.1\.0"):
        wheel21.extract(wheel, tmp_path / "out")
    assert stock21.main(["extract", str(tmp_path / "none.whl"), str(tmp_path / "out")]) == 1
    assert "cannot read the wheel" in capsys.readouterr().err


def test_absent_cubins_make_the_variant_unsupported_with_a_fix(tmp_path, monkeypatch):
    monkeypatch.setenv("AE_STOCK21_DIR", str(tmp_path))
    reason = stock21.Stock21().why_unsupported((9, 0))
    assert reason.startswith("built without the torch 2.1.0 wheel")
    assert "fix: pip download" in reason


def test_a_damaged_manifest_is_one_sentence(tmp_path):
    (tmp_path / "manifest.json").write_text('{"kernels": [{"arch": 90}]}')
    with pytest.raises(wheel21.Stock21Error, match="unusable"):
        wheel21.read_manifest(tmp_path)


def test_a_manifest_of_other_parameters_is_never_launched(extracted):
    path = extracted / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["kernels"][0]["parameters"][10] = [80, 8]
    path.write_text(json.dumps(manifest))
    with pytest.raises(wheel21.Stock21Error, match="other parameters"):
        wheel21.read_manifest(extracted)


def test_machine_code_is_chosen_by_compute_capability():
    def kernel(arch: int) -> wheel21.StockKernel:
        return wheel21.StockKernel(
            arch=arch,
            index="int64",
            file="",
            name="",
            registers=74,
            local_bytes=0,
            shared_bytes=0,
            parameters=wheel21.expected_layout("int64"),
            parameter_bytes=128,
        )

    kernels = [kernel(arch) for arch in wheel21.ARCHS]
    chosen = {c: wheel21.choose(kernels, c, "int64").arch for c in [(8, 0), (8, 6), (8, 9), (9, 0)]}
    assert chosen == {(8, 0): 80, (8, 6): 86, (8, 9): 86, (9, 0): 90}
    with pytest.raises(wheel21.Stock21Error, match=r"compute capability 10\.0"):
        wheel21.choose(kernels, (10, 0), "int64")
    with pytest.raises(wheel21.Stock21Error, match="no int32"):
        wheel21.choose(kernels, (9, 0), "int32")


@pytest.mark.torch
def test_arguments_the_kernel_does_not_take_are_refused():
    torch = pytest.importorskip("torch")
    weight, indices = torch.zeros(5, 8), torch.zeros(6, dtype=torch.int64)
    offsets = torch.tensor([0, 2, 6])
    assert stock21.check_arguments(weight, indices, offsets, "sum", None) == 2
    bad = [
        (weight.double(), indices, offsets, "sum", None),
        (weight, indices, offsets.int(), "sum", None),
        (weight, indices[::2], offsets, "sum", None),
        (weight, indices, offsets, "max", None),
        (weight, indices, offsets, "sum", torch.zeros(3, 8)),
        (weight, indices, offsets[:0], "sum", None),
    ]
    for arguments in bad:
        with pytest.raises(ValueError, match=r"stock21|out must|offsets must"):
            stock21.check_arguments(*arguments)


@pytest.mark.gpu
@pytest.mark.skipif("AE_TORCH21_WHEEL" not in os.environ, reason="AE_TORCH21_WHEEL names no wheel")
def test_the_official_wheel_holds_the_74_register_kernel(tmp_path):
    kernels = wheel21.extract(Path(os.environ["AE_TORCH21_WHEEL"]), tmp_path)
    assert {(k.arch, k.index): k.registers for k in kernels} == {
        (arch, index): 74 for arch in (80, 86, 90) for index in ("int64", "int32")
    }
    assert all(k.local_bytes == k.shared_bytes == 0 for k in kernels)


@pytest.mark.gpu
@pytest.mark.parametrize("index", ["int64", "int32"])
@pytest.mark.parametrize("dim", [32, 64, 100, 128, 256])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_it_equals_pytorchs_operator(index, dim, mode):
    torch = pytest.importorskip("torch")
    variant = stock21.Stock21()
    reason = variant.why_unsupported(torch.cuda.get_device_capability(), index)
    if reason:
        pytest.skip(reason)
    generator = torch.Generator("cuda").manual_seed(1)
    lengths = torch.tensor([0, 1, 2, 149, 150, 151, 0, 37], device="cuda")
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(getattr(torch, index))
    count = int(lengths.sum())
    weight = torch.rand(1000, dim, device="cuda", generator=generator) - 0.5
    indices = torch.randint(0, 1000, (count,), device="cuda", generator=generator)
    indices = indices.to(getattr(torch, index))
    expected = torch.nn.functional.embedding_bag(
        indices, weight, offsets, mode=mode, include_last_offset=True
    )
    out = torch.full_like(expected, float("nan"))
    assert variant.forward(weight, indices, offsets, mode=mode, out=out) is out
    # Same order of additions, same precision: the same bits.
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    padded = torch.rand(1000, 2 * dim, device="cuda", generator=generator)[:, ::2]
    strided = variant.forward(padded, indices, offsets, mode=mode)
    torch.testing.assert_close(
        strided,
        torch.nn.functional.embedding_bag(
            indices, padded.contiguous(), offsets, mode=mode, include_last_offset=True
        ),
        rtol=0,
        atol=0,
    )


@pytest.mark.gpu
def test_the_driver_reports_74_registers_and_3_blocks_per_sm():
    torch = pytest.importorskip("torch")
    variant = stock21.Stock21()
    capability = torch.cuda.get_device_capability()
    reason = variant.why_unsupported(capability)
    if reason:
        pytest.skip(reason)
    attributes = variant.attributes(torch.device("cuda"))
    assert attributes == {
        "registers": 74,
        "local_bytes": 0,
        "shared_bytes": 0,
        "blocks_per_sm": 3,  # 24 warps of 64: 37.5 % on sm_80 and sm_90, of 48 on sm_86
    }


@pytest.mark.gpu
def test_it_can_be_captured_in_a_cuda_graph():
    torch = pytest.importorskip("torch")
    variant = stock21.Stock21()
    reason = variant.why_unsupported(torch.cuda.get_device_capability())
    if reason:
        pytest.skip(reason)
    weight = torch.rand(100, 128, device="cuda")
    indices = torch.arange(100, device="cuda")
    offsets = torch.arange(0, 101, 10, device="cuda")
    expected = variant.forward(weight, indices, offsets).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = variant.forward(weight, indices, offsets)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
