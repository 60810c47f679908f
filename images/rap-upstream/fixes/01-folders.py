"""Programs write into folders that the repository does not hold.

Where: `result` beside every method (only some scripts make it), `combined_code` for the generated
programs, `generated_data`, and `data_4096` and `data_8192` of the CPU baseline.
Measurement: none; without the folders the programs end with an error after they have measured.
"""

from __future__ import annotations

from edit import Unexpected, done, folder_argument

METHODS = (
    "baseline_end_to_end/CPU_based_baseline", "baseline_end_to_end/CUDA_stream",
    "baseline_end_to_end/MPS", "baseline_end_to_end/RAP", "breakdown_study/MPS_and_sequential",
    "breakdown_study/RAP", "breakdown_study/ideal", "breakdown_study/no_fusion",
    "breakdown_study/no_mapping",
)  # fmt: skip
MADE = ("result", "generated_data")
OTHERS = (
    "RAP_end_to_end/combined_code",
    "baseline_end_to_end/CPU_based_baseline/data_4096",
    "baseline_end_to_end/CPU_based_baseline/data_8192",
)


def main() -> None:
    """Usage: 01-folders.py RAP."""
    root = folder_argument("01-folders.py RAP")
    missing = [name for name in METHODS if not (root / name).is_dir()]
    if missing:
        raise Unexpected(f"{root} lacks {', '.join(missing)}")
    wanted = [f"{method}/{name}" for method in METHODS for name in MADE] + list(OTHERS)
    for name in wanted:
        (root / name).mkdir(exist_ok=True)
    done(f"{len(wanted)} folders are there")


if __name__ == "__main__":
    main()
