"""What can be known of the kernels without a GPU: registers, spills, occupancy (claims D6 to D9).

Registers of our kernels come from the compiler, those of published kernels out of the published
libraries.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType

from reprokit.progress import Progress
from reprokit.records import RecordWriter

from dlrm_inference.config import Config, ConfigError
from dlrm_inference.cuda import design, wheel21
from dlrm_inference.cuda.compile import CompileError
from dlrm_inference.cuda.occupancy import occupancy

# The largest part of the L2 that can be set aside, in bytes, where NVIDIA's documentation (A100)
# or a device we asked (H200) says it.
MOST_SET_ASIDE = MappingProxyType({"sm_80": 31_457_280, "sm_90": 39_321_600})
_NO_KERNEL = {
    "stock": "it is the installed PyTorch's own kernel: its registers depend on the wheel",
    "fbgemm": "it is FBGEMM's own kernel: its registers depend on the wheel",
    **dict.fromkeys(design.TUNED, "its parameters are searched for on the GPU at hand"),
}


def run(config: Config, out: RecordWriter) -> None:
    """Write `registers`, `spill_bytes`, `local_bytes` (per thread), `occupancy` (%) and `distance`
    (rows) of every variant on every architecture, and what can be pinned (claims D6 to D9)."""
    progress = Progress(len(config.variants))
    for name in config.variants:
        if name in _NO_KERNEL:
            out.skip({"variant": name}, _NO_KERNEL[name])
        elif name == "stock21":
            _write_stock21(config, out)
        else:
            for arch in config.archs:
                _write_built(config, out, name, f"sm_{arch}")
        progress.step("variants compiled")
    for arch in config.archs:
        most = MOST_SET_ASIDE.get(f"sm_{arch}")
        if most is not None:
            labels = {"arch": f"sm_{arch}"}
            note = "largest set-aside of the L2, in whole rows"
            out.write("pinned_bytes", "bytes", [most], labels, evidence="static", note=note)
            rows = most // config.row_bytes
            out.write("pinned_rows", "rows", [rows], labels, evidence="static", note=note)


def _write_built(config: Config, out: RecordWriter, name: str, arch: str) -> None:
    import_module("cuda.bindings.nvrtc")  # the compiler; an image without it cannot run this
    cap = 0 if name == "base" else config.register_cap
    try:
        built = design.build(name, arch, distance=config.distance, registers=cap)
    except CompileError as error:
        if "gpu-architecture" not in str(error):
            raise
        raise ConfigError(f"the compiler makes no code for {arch}; fix: --archs 80,90") from error
    usage = built.usage
    labels = {"variant": name, "arch": arch}
    note = f"compiled by {built.compiler}"
    _write(out, labels, note, usage.registers, built.block_warps, usage.shared_bytes)
    spilled = usage.spill_store_bytes + usage.spill_load_bytes
    for metric, unit, value in (
        ("spill_bytes", "bytes", spilled),
        ("local_bytes", "bytes", usage.stack_bytes),
        ("distance", "rows", built.distance),
    ):
        out.write(metric, unit, [value], labels, evidence="static", note=note)


def _write_stock21(config: Config, out: RecordWriter) -> None:
    try:
        kernels = wheel21.read_manifest(wheel21.find_folder())
    except wheel21.Stock21Error as error:
        out.skip({"variant": "stock21"}, str(error))
        return
    for arch in config.archs:
        labels = {"variant": "stock21", "arch": f"sm_{arch}"}
        try:
            kernel = wheel21.choose(kernels, divmod(int(arch), 10), config.index_dtype)
        except wheel21.Stock21Error as error:
            out.skip(labels, str(error))
            continue
        note = f"read out of the official wheel of torch {wheel21.TORCH_VERSION}"
        if kernel.arch != int(arch):
            note += f", its code for sm_{kernel.arch}, which runs here"
        _write(out, labels, note, kernel.registers, design.BLOCK[1], kernel.shared_bytes)
        local = kernel.local_bytes
        out.write("local_bytes", "bytes", [local], labels, evidence="static", note=note)
        if local == 0:  # spills live in local memory; how much of it they are is not recorded
            out.write("spill_bytes", "bytes", [0], labels, evidence="static", note=note)


def _write(
    out: RecordWriter,
    labels: dict[str, str],
    note: str,
    registers: int,
    warps: int,
    shared_bytes: int,
) -> None:
    held = occupancy(labels["arch"], 32 * warps, registers, shared_bytes)
    out.write("registers", "registers", [registers], labels, evidence="static", note=note)
    note = f"{held.warps} warps per SM, limited by {held.limit}; {note}"
    out.write("occupancy", "%", [held.percent], labels, evidence="static", note=note)
