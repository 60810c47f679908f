"""The makefiles compile for the machine that builds: the image would die on an older processor.

Where: the makefiles of sanalyzer, its parts cpp_trace and py_frame, nv-compute and nv-nvbit ask for
the native architecture, once each, or four times in the older versions.
Measurement: the GPU side does not change. Host code, and with it the analysis of CS-CPU and
NVBIT-CPU, is compiled for x86-64-v3, which both of the paper's NVIDIA machines support; a build
argument (MARCH) chooses another level.
"""

from __future__ import annotations

import sys

from edit import Unexpected, done, folder_argument, read, replace

NATIVE = "-march=native"
MUST = ("sanalyzer/Makefile", "nv-compute/Makefile")
MAY = ("sanalyzer/cpp_trace/Makefile", "sanalyzer/py_frame/Makefile", "nv-nvbit/Makefile")


def main() -> None:
    """Usage: 01-march.py ACCELPROF [LEVEL]."""
    root = folder_argument("01-march.py ACCELPROF [LEVEL]")
    level = sys.argv[2] if len(sys.argv) > 2 else "x86-64-v3"
    count = 0
    for name in MUST:
        count += replace(root / name, NATIVE, f"-march={level}", (1, 4))
    for name in MAY:  # these gained the option between two commits
        count += replace(root / name, NATIVE, f"-march={level}", (0, 1, 4))
    left = [
        str(path.relative_to(root))
        for path in sorted(root.rglob("Makefile*"))
        if "third_party" not in path.parts and "=native" in read(path)
    ]
    if left:
        raise Unexpected(f"the native architecture is still asked for in {', '.join(left)}")
    done(f"{count} times {NATIVE} is now -march={level}")


if __name__ == "__main__":
    main()
