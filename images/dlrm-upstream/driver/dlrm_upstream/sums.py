"""Whether a design's sums are right, which the artifact never asks.

Runs after the measurement in the design's own Python: `python -m dlrm_upstream.sums OUTPUTS TABLES
TRACE`, and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BAGS = 16  # of every table in the first batch that are summed again
# Half an ulp a step, 150 steps, in the worst order: far below what a wrong row would change.
TOLERANCE = 1e-5

Floats = NDArray[np.float32]


def largest_error(
    outputs: Sequence[Floats], tables: Sequence[Floats], ids: NDArray[np.int64], pooling: int
) -> float:
    """The largest difference between the first bags of a batch and sums made here in float64.

    outputs: a table each, (bags, columns); tables: (rows, columns); ids: the trace, read in a
    circle, table after table, as load_emb.py does. Not a number when an output is not.
    """
    worst = 0.0
    for number, (output, table) in enumerate(zip(outputs, tables, strict=True)):
        bags = min(BAGS, len(output))
        start = number * len(output) * pooling
        places = np.arange(start, start + bags * pooling) % len(ids)
        rows = table[ids[places]].astype(np.float64)
        expected = rows.reshape(bags, pooling, -1).sum(axis=1)
        worst = float(np.maximum(worst, np.abs(output[:bags] - expected).max()))
    return worst


def checksum(batches: Sequence[Sequence[Floats]]) -> int:
    """CRC-32 over all sums: equal for designs that add the same rows in the same order."""
    value = 0
    for batch in batches:
        for output in batch:
            value = zlib.crc32(np.ascontiguousarray(output).tobytes(), value)
    return value


def main() -> int:
    """Read what save_emb.py and load_emb.py saved, and print error and checksum."""
    import torch

    from dlrm_upstream.traces import read

    outputs, tables, trace, pooling = sys.argv[1:5]

    def load(path: str) -> Any:
        return torch.load(path, map_location="cpu")

    saved = [[table.detach().numpy() for table in batch] for batch in load(outputs)]
    weights = [module.weight.detach().numpy() for module in load(tables)]
    ids = read(Path(trace), "").ids
    error = largest_error(saved[0], weights, ids, int(pooling))
    print(json.dumps({"largest_error": error, "crc32": checksum(saved)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
