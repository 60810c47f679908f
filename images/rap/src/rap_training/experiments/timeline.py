"""What runs beside what in one iteration of every variant."""

from __future__ import annotations

from collections.abc import Sequence

from reprokit.records import RecordWriter

from rap_training.config import Config
from rap_training.rank import CannotRun, Rank
from rap_training.sessions import run_sessions
from rap_training.sharing.green import GreenError
from rap_training.sharing.variants import VARIANTS
from rap_training.timeline import spans


def run(config: Config, out: RecordWriter) -> None:
    """Start the sessions and write their records."""
    run_sessions(config, out, on_rank)


def on_rank(rank: Rank, names: Sequence[str]) -> None:
    """What runs beside what in one iteration of every variant."""
    for name in names:
        try:
            preparation = rank.preparation(VARIANTS[name])
        except (CannotRun, GreenError) as error:
            rank.tell("skip", labels={**rank.config.labels, "variant": name}, reason=str(error))
            continue
        for index, span in enumerate(spans(rank, VARIANTS[name], preparation)):
            rank.tell(
                "record", metric="span", unit="us", samples=[span.start, span.end],
                labels={**rank.config.labels, "variant": name, "lane": span.lane,
                        "name": span.name, "index": index},
            )  # fmt: skip
