"""The embedding stage: kernel time of every variant beside what the copy rate would allow."""

from __future__ import annotations

from reprokit.records import RecordWriter

from dlrm_inference.config import Config


def run(config: Config, out: RecordWriter) -> None:
    """Measure on the device of the Config. Raises WrongResult."""
    if config.device == "cpu":
        from dlrm_inference.cpu.embedding import embedding
    else:
        from dlrm_inference.cuda.embedding import embedding
    embedding(config, out)
