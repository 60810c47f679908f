"""The patches are compiled for Pascal to Turing; newer GPUs would have to translate them at start.

Where: the Makefile of GVProf names compute_50, 60, 70 and 75 (-gencode), and PTX of the last.
Measurement: none on the paper's GPUs; on newer ones the patches run as machine code. CUDA 11.8 is
the first that knows sm_90, and still knows sm_50.
"""

from __future__ import annotations

import re
import sys

from edit import Unexpected, done, folder_argument, read

_GENCODE = re.compile(r"-gencode[ =]+arch=compute_(\d+),code=(?:sm|compute)_\d+")


def main() -> None:
    """Usage: 01-architectures.py GVPROF "70 75 80 90"."""
    root = folder_argument('01-architectures.py GVPROF "70 75 80 90"')
    wanted = sys.argv[2].split() if len(sys.argv) > 2 else ["70", "75", "80", "90"]
    if not wanted or not all(word.isdigit() for word in wanted):
        raise Unexpected(f"'{' '.join(wanted)}' is no list of architectures such as 80 90")
    path = root / "Makefile"
    text = read(path)
    found = _GENCODE.findall(text)
    if not 3 <= len(found) <= 8:
        raise Unexpected(f"{path}: {len(found)} architectures are named, expected 3 to 8")
    new = " ".join(f"-gencode arch=compute_{word},code=sm_{word}" for word in wanted)
    first = _GENCODE.search(text)
    assert first is not None
    rest = _GENCODE.sub("", text[first.end() :])
    path.write_text(text[: first.start()] + new + rest, encoding="utf-8")
    done(f"{', '.join(found)} are now {', '.join(wanted)}")


if __name__ == "__main__":
    main()
