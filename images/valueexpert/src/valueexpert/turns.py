"""A PyTorch program to look at, or to time: operators as they are, and without the redundancy.

    python -m valueexpert.turns NAMES SIZE RUNS [DEVICE]

NAMES are comma separated, SIZE is full or quick. With SIZE quick and RUNS 1 each is run once, as it
is, for a tool to look at: inputs come from the host, so that all kernels are the operator's own.
Else both are run in turns, and a JSON object a run is printed: microseconds of GPU time.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from accel_trace.region import region

from valueexpert.operators import OPERATORS, Run


def same(one: Any, other: Any, exact: bool) -> bool:
    """Whether two results are, bit by bit or within what rounding does."""
    import torch

    return bool(torch.equal(one, other) if exact else torch.allclose(one, other, 1e-4, 1e-6))


def _spent(run: Run, device: str) -> float:
    """Microseconds: of the GPU from event to event, on a CPU of the clock."""
    import torch

    if device == "cpu":
        start = time.perf_counter()
        run()
        return 1e6 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return 1000.0 * begin.elapsed_time(end)


def main() -> None:
    """Run the operators that are named; see the module."""
    names, size, runs = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])
    device = sys.argv[4] if len(sys.argv) > 4 else "cuda"
    for name in names:
        operator = OPERATORS[name]
        with region(f"inputs of {name}"):
            before, after = operator.make(size == "full", device)
        with region(name):
            result = before()
        if runs < 2:
            del result
            continue
        equal = after is None or same(result, after(), operator.exact)
        del result
        both = {"before": before} | ({"after": after} if after else {})
        for number in range(runs):
            for variant in reversed(both) if number % 2 else both:
                spent = _spent(both[variant], device)
                print(json.dumps({"operator": name, "variant": variant, "us": spent,
                                  "same": equal}), flush=True)  # fmt: skip
        del before, after, both


if __name__ == "__main__":
    main()
