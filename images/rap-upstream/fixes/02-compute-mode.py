"""The scripts put all eight GPUs of the host into the compute mode EXCLUSIVE_PROCESS.

Where: the scripts that use MPS call nvidia-smi for it before and after. It needs an administrator,
changes the host for everybody, and stays so when a script dies half-way. MPS works in the default
mode too.
Measurement: none that NVIDIA documents; the mode only keeps other programs off the GPUs. The driver
runs the scripts' programs one by one and starts MPS with folders of its own, so these lines would
not run anyway: they are taken out so that nobody runs them by hand.
"""

from __future__ import annotations

from pathlib import Path

from edit import Unexpected, done, folder_argument, read

# Script -> how many lines of it set a compute mode.
SCRIPTS = {
    "baseline_end_to_end/MPS/run_MPS.sh": 2,
    "baseline_end_to_end/RAP/run_RAP.sh": 2,
    "breakdown_study/MPS_and_sequential/get_MPS_result.sh": 2,
    "breakdown_study/MPS_and_sequential/get_sequential_result.sh": 1,
    "breakdown_study/RAP/run_RAP.sh": 2,
    "breakdown_study/no_fusion/get_no_fusion_result.sh": 2,
    "breakdown_study/no_mapping/get_no_mapping_result.sh": 2,
}


def main() -> None:
    """Usage: 02-compute-mode.py RAP."""
    root = folder_argument("02-compute-mode.py RAP")
    changed: dict[Path, str] = {}
    for name, expected in SCRIPTS.items():
        lines = read(root / name).splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith("nvidia-smi -i")]
        removed = len(lines) - len(kept)
        if removed != expected:
            raise Unexpected(f"{name}: {removed} lines set a compute mode, expected {expected}")
        changed[root / name] = "".join(kept)
    for path, text in changed.items():
        path.write_text(text, encoding="utf-8")
    done(f"{sum(SCRIPTS.values())} lines that set a compute mode are gone")


if __name__ == "__main__":
    main()
