"""Says in the records what a run's row ids look like and where they came from."""

from __future__ import annotations

from typing import Any

from reprokit.records import RecordWriter

from dlrm_inference import hotness
from dlrm_inference.config import Config
from dlrm_inference.data import Batches

_COVERAGE = (0.001, 0.01, 0.1)


def write_dataset(out: RecordWriter, config: Config, batches: Batches) -> None:
    """Write `unique_rows` (rows) and `unique_share` (%), one sample per batch of every table.

    Claim D12 is checked on these. The source of the ids and their coverage curve go to
    `environment.json`.
    """
    sets = [(t, b) for t in range(config.tables) for b in range(config.batches)]
    counts = [batches.unique_rows(table, batch) for table, batch in sets]
    shares = [100 * n / batches.draws(t) for (t, _), n in zip(sets, counts, strict=True)]
    labels = {"dataset": config.dataset}
    note = "; ".join((batches.source, *batches.notes))
    out.write("unique_rows", "rows", counts, labels, note=note)
    out.write("unique_share", "%", shares, labels)
    out.environment(dataset=dataset_facts(config, batches))


def dataset_facts(config: Config, batches: Batches) -> dict[str, Any]:
    """Return the source, notes and coverage of the first table's first batch, as JSON data."""
    served = hotness.coverage(batches.indices[0][0], batches.rows[0], _COVERAGE)
    return {
        "name": config.dataset,
        "source": batches.source,
        "notes": list(batches.notes),
        "hot_list": batches.hot_list,
        "coverage": {
            f"hottest {share:.1%} of rows": s for share, s in zip(_COVERAGE, served, strict=True)
        },
    }


def compulsory_bytes(config: Config, batches: Batches, table: int, batch: int) -> int:
    """Return what one batch of one table must move at least: distinct rows, ids and results."""
    row = config.row_bytes_of(table)
    ids = batches.draws(table) * batches.offsets[table].itemsize
    return batches.unique_rows(table, batch) * row + ids + config.batch * row
