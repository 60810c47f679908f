"""The methods of a figure must train the same model; in some commits the scripts do not agree.

Where: `--over_arch_layer_sizes` of plan 0 in the ten scripts. It is 512,512,256,1 in the first
commits, 1024,1024,512,1 in the last known one, and the parser's default where it is not given. One
commit in between has the first in Figure 9 and the default in Figure 10.
Measurement: none, nothing is edited; the build stops where methods would be compared that train
different models.
"""

from __future__ import annotations

import re
from pathlib import Path

from edit import Unexpected, done, folder_argument, read

SCRIPTS = (
    "baseline_end_to_end/CPU_based_baseline/run_cpu_baseline.sh",
    "baseline_end_to_end/CUDA_stream/run_stream.sh",
    "baseline_end_to_end/MPS/run_MPS.sh",
    "baseline_end_to_end/RAP/run_RAP.sh",
    "breakdown_study/MPS_and_sequential/get_MPS_result.sh",
    "breakdown_study/MPS_and_sequential/get_sequential_result.sh",
    "breakdown_study/RAP/run_RAP.sh",
    "breakdown_study/ideal/get_ideal_result.sh",
    "breakdown_study/no_fusion/get_no_fusion_result.sh",
    "breakdown_study/no_mapping/get_no_mapping_result.sh",
)
SIZES = re.compile(r"--over_arch_layer_sizes=[\"']?([\d,]+)")


def models(path: Path, plan: str) -> set[str]:
    """The top layers that a script trains for a plan. Raises Unexpected when it trains none."""
    found = set()
    for line in read(path).splitlines():
        words = line.split()
        if words[:1] != ["python"] or words[1:2] == ["data_prepare.py"]:
            continue
        if f"--preprocessing_plan={plan}" in words:
            match = SIZES.search(line)
            found.add(match[1] if match else "default")
    if not found:
        raise Unexpected(f"{path} has no program for plan {plan}")
    return found


def main() -> None:
    """Usage: 03-one-model.py RAP."""
    root = folder_argument("03-one-model.py RAP")
    said = []
    for plan in ("0", "1"):
        each = {name: models(root / name, plan) for name in SCRIPTS}
        every = set().union(*each.values())
        if len(every) != 1:
            listed = "; ".join(f"{name}: {' and '.join(sorted(one))}" for name, one in each.items())
            raise Unexpected(f"the methods train different top layers for plan {plan}: {listed}")
        said.append(f"plan {plan}: {every.pop()}")
    done(f"every method trains the same top layers ({'; '.join(said)})")


if __name__ == "__main__":
    main()
