"""Applied to a copy of a benchmark when a point runs with cudnn=off, the default.

What is wrong: the benchmarks leave cuDNN on, while Table V can only come from runs without it:
every convolution is im2col and a GEMM per image there. With the stock wheel of PyTorch launches and
working sets of AlexNet and the ResNets would be others.
Where: <model>/run_<model>.py, after its first `import torch`.
Measurement: it makes the run the one that the paper printed. `--set cudnn=as-is` leaves the
benchmark alone; records carry the label cudnn.
"""

from __future__ import annotations

from pathlib import Path

from edit import Unexpected, done, folder_argument, read

IMPORT = "import torch"
OFF = "torch.backends.cudnn.enabled = False  # as in the paper's runs"


def switch_off(path: Path) -> None:
    """Insert the switch after the line that imports torch, which must be there exactly once."""
    lines = read(path).split("\n")
    places = [index for index, line in enumerate(lines) if line.strip() == IMPORT]
    if len(places) != 1 or lines[places[0]] != IMPORT or OFF in lines:
        raise Unexpected(f"{path}: '{IMPORT}' stands alone on {len(places)} lines, expected 1")
    lines.insert(places[0] + 1, OFF)
    path.write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    """Usage: 10-cudnn.py FOLDER, which holds run_<model>.py files."""
    folder = folder_argument("10-cudnn.py FOLDER")
    programs = sorted(folder.glob("run_*.py"))
    if not programs:
        raise Unexpected(f"there is no run_*.py in {folder}")
    for path in programs:
        switch_off(path)
    done(f"cuDNN is off in {', '.join(path.name for path in programs)}")


if __name__ == "__main__":
    main()
