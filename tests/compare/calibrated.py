"""The toy with times that hold on a machine that others use, too."""

from pathlib import Path

TIMED = """            start = time.perf_counter()
            add(variant, data)
            samples[variant].append((time.perf_counter() - start) * 1e6)
"""
# The CPU time over that of eight sums of the same data just before: others may use the machine.
CALIBRATED = """            start = time.process_time()
            for _ in range(8):
                sum(data)
            middle = time.process_time()
            add(variant, data)
            end = time.process_time()
            samples[variant].append((end - middle) / (middle - start) * 1e3)
"""


def calibrate(image: Path) -> None:
    """Let the toy below `image` measure so."""
    main = image / "src/toy/__main__.py"
    text = main.read_text()
    assert TIMED in text
    main.write_text(text.replace(TIMED, CALIBRATED))
