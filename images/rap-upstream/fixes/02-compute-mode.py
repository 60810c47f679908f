"""The scripts put all eight GPUs of the host into the compute mode EXCLUSIVE_PROCESS.

Where: the scripts that use MPS call nvidia-smi for it before and after. It needs an administrator,
changes the host for everybody, and stays so when a script dies half-way. MPS works in the default
mode too.
Measurement: none that NVIDIA documents; the mode only keeps other programs off the GPUs. The driver
runs the scripts' programs one by one and starts MPS with folders of its own, so these lines would
not run anyway: they are taken out so that nobody runs them by hand.
"""

from __future__ import annotations

from edit import Unexpected, done, folder_argument

SCRIPTS = ("baseline_end_to_end/MPS/run_MPS.sh", "baseline_end_to_end/RAP/run_RAP.sh")
MAY = (
    "breakdown_study/MPS_and_sequential/get_MPS_result.sh", "breakdown_study/RAP/run_RAP.sh",
    "breakdown_study/no_fusion/get_no_fusion_result.sh",
    "breakdown_study/no_mapping/get_no_mapping_result.sh",
)  # fmt: skip


def main() -> None:
    """Usage: 02-compute-mode.py RAP."""
    root = folder_argument("02-compute-mode.py RAP")
    count = 0
    for name in (*SCRIPTS, *MAY):
        path = root / name
        if not path.is_file():
            raise Unexpected(f"{path} does not exist")
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("nvidia-smi -i")]
        removed = len(lines) - len(kept)
        if removed not in ((2,) if name in SCRIPTS else (0, 2)):
            raise Unexpected(f"{path}: {removed} lines set a compute mode, expected 2")
        path.write_text("".join(kept), encoding="utf-8")
        count += removed
    done(f"{count} lines that set a compute mode are gone")


if __name__ == "__main__":
    main()
