"""The architecture for the samples is put together wrongly, so make gets a word it does not know.

Where: python/utils.py of some commits writes 'ARCH={}'.join(arch) where format is meant.
Measurement: the samples are compiled for the GPU that is asked for, and not for make's default.
"""

from __future__ import annotations

from edit import done, folder_argument, replace


def main() -> None:
    """Usage: 02-make-arguments.py GVPROF."""
    root = folder_argument("02-make-arguments.py GVPROF")
    count = replace(
        root / "python/utils.py", "'ARCH={}'.join(arch)", "'ARCH={}'.format(arch)", (0, 1)
    )
    done(f"{count} times join is now format")


if __name__ == "__main__":
    main()
