"""Records of variants that were measured in turns, each in a process of its own.

The processes of one turn have one name, so that what they took is compared in pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reprokit.records import Evidence, RecordWriter


def turn_name(number: int) -> str:
    """The `process` of a turn's records; turns are counted from 0, names from 1."""
    return str(number + 1)


def write_turns(
    out: RecordWriter, metric: str, unit: str, samples: Iterable[float],
    labels: Mapping[str, object], *, evidence: Evidence = "measured", warmup: int | None = None,
    note: str | None = None,
) -> None:  # fmt: skip
    """Append a record for each turn, with its one sample; else as `RecordWriter.write`."""
    for number, sample in enumerate(samples):
        out.write(
            metric, unit, [sample], labels, evidence=evidence, warmup=warmup, note=note,
            process=turn_name(number),
        )  # fmt: skip
