"""Not applied unless asked for (build argument HOTNESS_BLOCKS=fixed): it changes Figure 13.

What is wrong: the tool counts accesses in blocks of 1 MiB (addresses shifted by 20) but prints the
counts of every second block only (it steps by 2 MiB): half of the accesses are never shown.
Where: sanalyzer/src/tools/time_hotness_cpu.cpp, the constant SHIFT_BITS.
Measurement: with the shift of 21 a block is the 2 MiB that the figure's axis says, and every access
is shown. Records carry the label blocks=as-is or blocks=fixed.
"""

from __future__ import annotations

from edit import done, folder_argument, replace

SOURCE = "sanalyzer/src/tools/time_hotness_cpu.cpp"


def main() -> None:
    """Usage: 03-hotness-blocks.py ACCELPROF."""
    root = folder_argument("03-hotness-blocks.py ACCELPROF")
    replace(root / SOURCE, "SHIFT_BITS = 20;", "SHIFT_BITS = 21;", (1,))
    done("hotness is counted in blocks of 2 MiB")


if __name__ == "__main__":
    main()
